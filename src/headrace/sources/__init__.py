"""Where rows come from. The only room that holds a `readStream`."""
