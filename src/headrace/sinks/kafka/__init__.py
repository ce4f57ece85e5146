"""Sinks that end in a topic: at least once, or exactly once by transactions and an outbox."""
