"""The checkpoint of a flow: Spark's logs, Headrace's metadata, and the lease."""
