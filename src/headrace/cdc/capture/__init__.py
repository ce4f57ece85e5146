"""The capture of a database: declared, begun, watched, deleted."""
