"""Custom state per key: its declaration, the same class on Spark and in memory."""
