"""How Headrace itself talks to the parts outside: Kafka, and small files on any storage."""
