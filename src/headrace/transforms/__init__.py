"""DataFrame to DataFrame, pure: what happens to rows between a source and a sink."""
