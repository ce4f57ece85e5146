"""The machine that drives flows: sessions, queries, checkpoints, the supervisor."""
