"""Delta sources: appended rows, change data feeds, and bronze tables of raw records."""
