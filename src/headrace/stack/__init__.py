"""The local parts, without Docker: the jars beside PySpark, and the parts as plain processes.

Nothing here knows Spark or a flow. A part is a file of this room: see `headrace.stack.part`.
"""
