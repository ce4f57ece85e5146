"""Runs flows: sessions, queries, checkpoints, guards and the supervisor."""
