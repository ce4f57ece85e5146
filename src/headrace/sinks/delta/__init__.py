"""Sinks that end in a Delta table, its maintenance, and the one reader of Delta's log."""
