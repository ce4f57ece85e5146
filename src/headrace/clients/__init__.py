"""How Headrace itself, without Spark, talks to the parts outside."""
