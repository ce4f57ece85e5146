"""Rows merged into a table of a database, exactly once."""
