"""Envelopes of Debezium as typed changes of a table."""
