"""Where rows come from. The only package with a `readStream`."""
