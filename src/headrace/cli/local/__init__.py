"""Commands for this machine: local services, jars, demos and their data."""
