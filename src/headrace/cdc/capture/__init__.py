"""Capture a database with Debezium: declare, start, monitor and delete a capture."""
