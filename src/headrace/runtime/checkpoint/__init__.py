"""The checkpoint of a flow: Spark's logs, Headrace's metadata beside them, and the lease."""
