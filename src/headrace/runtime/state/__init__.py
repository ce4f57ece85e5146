"""The state of a query: its size, its memory, its growth."""
