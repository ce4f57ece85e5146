"""Commands on this machine: its local parts, its jars, its demos and their data."""
