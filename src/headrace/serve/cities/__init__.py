"""The live page of rides: the city board, the feed from Kafka topics, and the API responses."""
