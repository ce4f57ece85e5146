"""What each demo adds to the common course of a demo: one file per pattern, named after it."""
