"""How Headrace itself, without Spark, talks to the parts outside: Kafka, databases, HTTP, files on any storage."""
