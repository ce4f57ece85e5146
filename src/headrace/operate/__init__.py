"""What people do with flows: run them, try them, compare them, repair them."""
