"""Captured databases: the capture, its changes decoded, applied to tables of the lake, compared with the source."""
