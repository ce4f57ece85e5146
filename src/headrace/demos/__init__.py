"""The demos: what each adds to the common run, one file per pattern, named after it."""
