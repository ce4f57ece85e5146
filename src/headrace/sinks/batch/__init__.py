"""Helpers that sinks share while they write a batch: persisted rows, concurrent tasks, the batch ledger."""
