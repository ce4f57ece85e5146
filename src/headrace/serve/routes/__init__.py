"""Routes of the server, one module per subject. Each module defines one `router`."""
