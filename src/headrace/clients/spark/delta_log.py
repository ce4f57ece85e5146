"""The log of a Delta table: the only module that reads it. It reads no rows of the table.

| question                                             | answered by                                        |
|------------------------------------------------------|----------------------------------------------------|
| is there a table?                                    | `is_table`: lists files, local ones without Spark  |
| version, identity, schema, properties, size, batches | `snapshot`: Delta's own state, in the JVM          |
| which files did a version add or remove?             | `version_files`: one entry, as JSON                |
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from py4j.java_gateway import JavaObject
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from headrace.clients.spark.jvm import java_session, jvm_of
from headrace.clients.storage import file_store, local_path

# The folder with the log, below that of the table.
LOG_FOLDER = "_delta_log"

_ACTION = "STRUCT<path: STRING, dataChange: BOOLEAN>"


class TableSnapshot:
    """One version of a table, as its log describes it. Every answer is a call into the JVM."""

    def __init__(self, state: JavaObject) -> None:
        self._state = state

    @property
    def version(self) -> int:
        """The number of the version; -1 if there is no table."""
        return int(self._state.version())

    @property
    def table_id(self) -> str:
        """The identity of the table. One that is created again in the same folder has another."""
        return str(self._state.metadata().id())

    @property
    def schema(self) -> StructType:
        """The columns."""
        return StructType.fromJson(json.loads(self._state.schema().json()))

    def table_property(self, name: str) -> str | None:
        """Return the value of a table property, or None if it is not set."""
        value = self._state.metadata().configuration().get(name)
        return str(value.get()) if value.isDefined() else None

    @property
    def files_and_bytes(self) -> tuple[int, int] | None:
        """The number of files and their bytes from the checksum file of the version; None without one.

        Delta's `numOfFilesIfKnown` reads the whole log first.
        """
        checksum = self._state.checksumOpt()
        return (int(checksum.get().numFiles()), int(checksum.get().tableSizeBytes())) if checksum.isDefined() else None

    @property
    def size_in_bytes_if_known(self) -> int | None:
        """The size of the files, if Delta knows it without reading the whole log."""
        total = self._state.sizeInBytesIfKnown()
        return int(total.get()) if total.isDefined() else None

    @property
    def may_have_deletion_vectors(self) -> bool:
        """Whether files may have deletion vectors."""
        if "deletionVectors" not in self._state.protocol().toString():
            return False
        count = self._state.numDeletionVectorsOpt()
        return not count.isDefined() or int(count.get()) > 0

    @property
    def recorded_batches(self) -> dict[str, int]:
        """The last recorded batch by txnAppId."""
        records = self._state.setTransactions()
        transactions = [records.apply(number) for number in range(records.size())]
        return {str(transaction.appId()): int(transaction.version()) for transaction in transactions}

    def load_transactions(self) -> None:
        """Read the recorded batches, which Delta then keeps with this version for the next commit."""
        self._state.transactions()


def snapshot(session: SparkSession, location: str) -> TableSnapshot:
    """Return the newest version of a table."""
    return TableSnapshot(_newest_state(session, location))


def version(session: SparkSession, location: str) -> int:
    """Return the newest version of a table; -1 if it does not exist."""
    return snapshot(session, location).version


def size(session: SparkSession, location: str) -> tuple[int, int] | None:
    """Return the number of files of a table and their bytes, if its newest version has a checksum file."""
    return snapshot(session, location).files_and_bytes


def is_empty(session: SparkSession, location: str) -> bool:
    """Return whether the checksum of a table says that it has no files."""
    files_and_bytes = size(session, location)
    return files_and_bytes is not None and files_and_bytes[0] == 0


def last_txn_version(session: SparkSession, location: str, app_id: str) -> int:
    """Return the last batch that a table records for a txnAppId, or -1.

    For the only writer of the table: it does not look for commits of other processes.
    """
    recorded = _delta_log(session, location).unsafeVolatileSnapshot().transactions().get(app_id)
    return int(recorded.get()) if recorded.isDefined() else -1


def is_table(location: str, session: SparkSession | None = None) -> bool:
    """Return whether there is a table. Without a session the location has to be local."""
    names = file_store(location, session).names(f"{location}/{LOG_FOLDER}")
    return any(name.endswith(".json") for name in names)


@dataclass(frozen=True)
class VersionFiles:
    """The names of the files that one version added, removed, or wrote as change data, in the order of the log."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changes: tuple[str, ...]


def version_files(session: SparkSession, location: str, number: int) -> VersionFiles | None:
    """Read the log entry of one version; None if the log no longer has it."""
    schema = f"add {_ACTION}, remove {_ACTION}, cdc {_ACTION}"
    try:
        # One partition preserves the order of the lines, which is the order of the files in an offset.
        rows = session.read.schema(schema).json(f"{location}/{LOG_FOLDER}/{number:020d}.json")
        entries = rows.coalesce(1).collect()
    except AnalysisException:
        return None

    def names(action: str) -> tuple[str, ...]:
        actions = [entry[action] for entry in entries if entry[action] is not None]
        return tuple(logged["path"].rpartition("/")[2] for logged in actions if action == "cdc" or logged["dataChange"])

    return VersionFiles(names("add"), names("remove"), names("cdc"))


def local_log_entries(location: str) -> Iterator[Path]:
    """Yield the log entries of a local table, one file per version."""
    return (local_path(location) / LOG_FOLDER).glob("*.json")


def added_sizes(entry: str) -> Iterator[int]:
    """Yield the sizes of the data files that a log entry adds, with those of change data."""
    for line in entry.splitlines():
        action = json.loads(line)
        for kind in ("add", "cdc"):
            if kind in action and (kind == "cdc" or action[kind]["dataChange"]):
                yield int(action[kind]["size"])


def write_log_checkpoint(session: SparkSession, location: str) -> int:
    """Write a checkpoint of the log at the newest version, and return that version."""
    state = _newest_state(session, location)
    _delta_log(session, location).checkpoint(state, jvm_of(session).scala.Option.empty())
    return int(state.version())


def invalidate_delta_log_cache(session: SparkSession, location: str) -> None:
    """Remove the table from Delta's cache: its state may refer to entries that were deleted."""
    jvm = jvm_of(session)
    jvm.org.apache.spark.sql.delta.DeltaLog.invalidateCache(
        java_session(session), jvm.org.apache.hadoop.fs.Path(location)
    )


def _delta_log(session: SparkSession, location: str) -> JavaObject:
    return jvm_of(session).org.apache.spark.sql.delta.DeltaLog.forTable(java_session(session), location)


def _newest_state(session: SparkSession, location: str) -> JavaObject:
    none = jvm_of(session).scala.Option.empty()
    return _delta_log(session, location).update(False, none, none)
