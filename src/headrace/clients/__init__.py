"""How Headrace itself talks to the parts outside: Kafka, databases, HTTP, files on any storage, the JVM of Spark."""
