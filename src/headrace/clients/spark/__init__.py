"""What PySpark has no API for: the JVM behind a session, Delta's log, and names in SQL."""
