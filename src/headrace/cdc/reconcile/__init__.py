"""A mirror compared with its source, row by row, and repaired."""
