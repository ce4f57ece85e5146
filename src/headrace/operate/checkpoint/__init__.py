"""Show, verify, back up and restore a checkpoint."""
