"""The state of a query: size, memory and growth."""
