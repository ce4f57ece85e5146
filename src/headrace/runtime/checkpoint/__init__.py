"""The checkpoint of a flow: what Spark wrote, what is kept beside it, who may use it."""
