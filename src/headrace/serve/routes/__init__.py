"""Addresses of the server, one module per subject. Each module holds one `router`."""
