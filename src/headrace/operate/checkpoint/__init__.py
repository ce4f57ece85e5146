"""A checkpoint shown, verified, backed up and restored."""
