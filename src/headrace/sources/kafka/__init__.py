"""Topics of Kafka: which topics and partitions, where a flow begins, how they are read."""
