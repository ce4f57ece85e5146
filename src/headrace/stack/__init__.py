"""The local parts, without Docker: the jars beside PySpark, and a Kafka broker as a plain process.

Nothing here knows Spark or a flow. A part is a file of this room: see `headrace.stack.part`.
"""
