"""DataFrame to DataFrame, pure: what a user calls inside a transform."""
