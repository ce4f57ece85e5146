"""Checks of a flow before it starts: triggers, output modes, operators, state and batch size."""
