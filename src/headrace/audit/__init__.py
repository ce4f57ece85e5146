"""The audit of running flows: every late, invalid and future row, filed once and off the hot path."""
