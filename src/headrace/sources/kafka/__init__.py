"""The Kafka source: which topics and partitions it reads, and where it starts."""
