"""Changes applied to Delta tables: a mirror, a history or a log of changes for each source table."""
