"""Read the log of a Delta table: its version, its size, its recorded batches. Reads no rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.clients.spark.jvm import java_session, jvm_of

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject
    from pyspark.sql import SparkSession


def snapshot(session: SparkSession, location: str) -> JavaObject:
    """Return Delta's current snapshot of a table."""
    jvm = jvm_of(session)
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(java_session(session), location)
    return log.update(False, jvm.scala.Option.empty(), jvm.scala.Option.empty())


def version(session: SparkSession, location: str) -> int:
    """Return the version of a table; -1 if it does not exist."""
    return int(snapshot(session, location).version())


def size(session: SparkSession, location: str) -> tuple[int, int] | None:
    """Return the number of files and their bytes from the checksum file of the version; None without one.

    Delta's `numOfFilesIfKnown` reads the whole log first.
    """
    checksum = snapshot(session, location).checksumOpt()
    return (int(checksum.get().numFiles()), int(checksum.get().tableSizeBytes())) if checksum.isDefined() else None


def is_empty(session: SparkSession, location: str) -> bool:
    """Return whether the checksum of a table says that it has no files."""
    files_and_bytes = size(session, location)
    return files_and_bytes is not None and files_and_bytes[0] == 0


def last_recorded(session: SparkSession, location: str, app_id: str) -> int:
    """Return the last batch that a table records for a txnAppId, or -1."""
    jvm = jvm_of(session)
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(java_session(session), location)
    recorded = log.unsafeVolatileSnapshot().transactions().get(app_id)
    return int(recorded.get()) if recorded.isDefined() else -1
