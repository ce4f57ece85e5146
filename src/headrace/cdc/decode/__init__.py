"""Decode Debezium envelopes into typed changes of a table."""
