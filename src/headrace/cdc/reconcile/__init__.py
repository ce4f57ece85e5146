"""Compare a mirror with its source row by row, and repair it."""
