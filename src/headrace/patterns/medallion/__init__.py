"""Medallion: records as they came, rows that can be trusted, figures."""
