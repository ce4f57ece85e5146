"""List invalid rows, and send them again when their cause is fixed."""
