"""Erase a subject from tables and files, with a proof."""
