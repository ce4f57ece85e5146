"""What the log of a Delta table says: its version, its size, the batches that are in. Reads no rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject
    from pyspark.sql import SparkSession


def snapshot(session: SparkSession, location: str) -> JavaObject:
    """Return Delta's own view of a table as it is now. Reads the log, and no rows."""
    jvm = session._jvm
    assert jvm is not None  # noqa: S101 - a classic session always has its JVM
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(session._jsparkSession, location)
    return log.update(False, jvm.scala.Option.empty(), jvm.scala.Option.empty())


def version(session: SparkSession, location: str) -> int:
    """Return the version of a table; -1 when it is not there."""
    return int(snapshot(session, location).version())


def size(session: SparkSession, location: str) -> tuple[int, int] | None:
    """Return the number of a table's files and their bytes, as the checksum beside its version says; None without one.

    Delta's own `numOfFilesIfKnown` reads the whole log first.
    """
    told = snapshot(session, location).checksumOpt()
    return (int(told.get().numFiles()), int(told.get().tableSizeBytes())) if told.isDefined() else None


def is_empty(session: SparkSession, location: str) -> bool:
    """Return whether a table is known to have no files."""
    told = size(session, location)
    return told is not None and told[0] == 0


def last_recorded(session: SparkSession, location: str, app_id: str) -> int:
    """Return the last batch that a table records under an identity, or -1."""
    jvm = session._jvm
    assert jvm is not None  # noqa: S101 - a classic session always has its JVM
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(session._jsparkSession, location)
    found = log.unsafeVolatileSnapshot().transactions().get(app_id)
    return int(found.get()) if found.isDefined() else -1
