"""Checks before a flow runs: its plan, arrival rates, batch sizes, and state."""
