"""The local stack without Docker: Kafka, databases and Kafka Connect as plain processes, and the jars for Spark.

Nothing here depends on Spark or on flows. Each part is one module of this package: see `headrace.stack.part`.
"""
