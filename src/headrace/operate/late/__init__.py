"""Late rows summed up, and the windows repaired that they belong to."""
