"""Reads and rebuilds Spark's query plans: the only package that walks them."""
