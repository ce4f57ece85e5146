"""What people do with flows: run them, look into them, repair them, erase from them."""
