"""Delta tables: appended rows, change feeds, and tables of records as they came."""
