"""Sinks that write a Delta table, and its maintenance."""
