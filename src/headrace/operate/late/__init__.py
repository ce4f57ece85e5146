"""Summarise late rows, and repair their windows."""
