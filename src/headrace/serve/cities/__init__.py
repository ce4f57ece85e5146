"""The page of rides: the board of cities, the feed from its topics, and its answers."""
