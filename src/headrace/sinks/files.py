"""Append each batch to a folder of files."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, get_args

from pyspark.sql import functions as F

from headrace.clients.file_folder import (
    LOG,
    READING,
    WRITING,
    FileFormat,
    Owner,
    committed_files,
    is_pattern,
    last_batch,
    owner_of,
)
from headrace.clients.storage import Files as SmallFiles
from headrace.clients.storage import files_for
from headrace.errors import DataError, FlowError, RecoveryError, nearest
from headrace.flow.guarantee import Guarantee
from headrace.flow.levers import OutputMode
from headrace.flow.sink import Batch, Held
from headrace.flow.target import Target
from headrace.sinks.batch.ledger import Epoch, following
from headrace.sinks.file_schema import HOURLY, require_writable_columns, unfit, with_hours
from headrace.sinks.local_folder import require_writable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Spark's own writers, below org.apache.spark.sql.execution.datasources.
_WRITERS = {
    "parquet": "parquet.ParquetFileFormat",
    "json": "json.JsonFileFormat",
    "csv": "csv.CSVFileFormat",
    "orc": "orc.OrcFileFormat",
}


@dataclass(frozen=True)
class FileSink:
    """Append each micro-batch to a folder of files, below the lake unless `path` is absolute.

    Exactly once, while:
      1. readers honour `_spark_metadata`, the log of committed files in the folder: `read` here, `committed_files` for
         readers without Spark, `FileSource` in another flow, or Spark itself when it is given the folder. A reader that
         lists the folder, or reads a pattern or a folder below it, sees the files of attempts that never committed;
      2. the folder belongs to one checkpoint and stays where it is. The log counts batches and holds full paths; the
         batches of another checkpoint, and of one that was set back, are refused.

    | field        | meaning                                                                                      |
    |--------------|----------------------------------------------------------------------------------------------|
    | format       | parquet, json, csv or orc, with options by which the rows come back as they were             |
    | partition_by | columns that become folders: texts, whole numbers, dates. An empty text becomes null         |
    | hourly       | a timestamp column by whose hour, in UTC, rows are put into folders `date=2024-05-06/hour=07` |
    |              | before those of `partition_by`. The column stays; rows without a time are put into the       |
    |              | folder of null, `__HIVE_DEFAULT_PARTITION__`                                                 |

    A folder has one set of columns. Rows that have others, or that the format cannot hold, are refused before anything
    is written. The writing is Spark's own file sink, called with the batch, so that a fan-out can hold it too.
    """

    path: str
    format: FileFormat = "parquet"
    partition_by: Sequence[str] = ()
    hourly: str | None = None
    guarantee: ClassVar[Guarantee] = Guarantee.EXACTLY_ONCE
    output_modes: ClassVar[frozenset[OutputMode]] = frozenset({OutputMode.APPEND})

    def __post_init__(self) -> None:
        formats = get_args(FileFormat)
        if self.format not in formats:
            raise _undeclarable(
                f"{self.name} is not a format of files that can be written.",
                f"The formats are {', '.join(formats)}.{nearest(self.format, formats)}",
                "Set format to one of them.",
            )
        taken = [name for name in self.partition_by if name in (*HOURLY, self.hourly)] if self.hourly else []
        if taken:
            raise _undeclarable(
                f"{self.name} is partitioned by {taken[0]} and hourly by {self.hourly}.",
                f"hourly makes the folders {HOURLY[0]} and {HOURLY[1]}, and keeps its own column in the files.",
                f"Take {taken[0]} out of partition_by.",
            )

    @property
    def name(self) -> str:
        """Return `FORMAT:PATH`."""
        return f"{self.format}:{self.path}"

    def folder(self, target: Target) -> str:
        """Return the location of the folder."""
        return target.table(self.path)

    def preflight(self, target: Target) -> None:
        """Prove that a local folder can be written, and that its readers will find the log."""
        if is_pattern(target.table(self.path)):
            raise _undeclarable(
                f"{target.table(self.path)} cannot be a folder of files.",
                "Spark's readers take a path with one of the characters * ? [ ] { } \\ for a pattern, and read no log.",
                "Choose another path.",
            )
        require_writable(target.table(self.path))

    def prepare(self, spark: SparkSession, target: Target) -> None:
        """Nothing: the first write makes the folder."""

    def write(self, rows: DataFrame, batch: Batch) -> None:
        """Write the files of the batch and commit their names to the folder's log.

        1. Refuse rows that the format or the folder cannot hold.
        2. Refuse a batch that does not follow the last one in the log; return when it is that one.
        3. Note the digest of the batch, by which step 2 knows it again.
        4. Write the files and commit them.
        """
        if self.hourly is not None:
            rows = with_hours(rows, self.hourly, self.name)
        require_writable_columns(rows.schema, self.format, self._partitions, self.name)
        session, folder = rows.sparkSession, batch.target.table(self.path)
        files = files_for(folder, session)
        owner = self._owner(files, folder, _columns(rows), batch)
        held = last_batch(files, folder)
        last = None if held is None else Epoch(owner.identity, owner.query_id, held, owner.offsets, owner.fence)
        if following(last, batch, f"the folder {folder}", whole=True) is None:
            return
        replace(owner, offsets=batch.offsets, fence=batch.fence).record(files, folder)
        jvm = session._jvm
        assert jvm is not None  # noqa: S101 - a classic session always has its JVM
        execution = jvm.org.apache.spark.sql.execution
        writer = execution.datasources
        for part in _WRITERS[self.format].split("."):
            writer = getattr(writer, part)
        sink = execution.streaming.sinks.FileStreamSink(
            session._jsparkSession,
            folder,
            writer(),
            jvm.PythonUtils.toSeq(list(self._partitions)),
            jvm.PythonUtils.toScalaMap({**WRITING[self.format], "path": folder}),
        )
        sink.addBatch(batch.id, rows._jdf)

    def read(self, spark: SparkSession, target: Target) -> DataFrame:
        """Return the rows of all batches that are committed, with the columns and types that were written.

        Raises a DataError when nothing was ever written here, or what the log names cannot be trusted.
        """
        folder = target.table(self.path)
        owner = owner_of(files_for(folder, spark), folder)
        if owner is None:
            raise DataError(
                f"{folder} cannot be read.",
                why="No Files sink has written to it.",
                state="Nothing was read.",
                remedy="Run the flow that writes it first, or correct the path.",
                code="HR-510",
            )
        none = spark.createDataFrame([], owner.schema)
        files = committed_files(folder, spark)
        if not files:
            return none
        reader = spark.read.format(owner.format).options(**READING[owner.format]).schema(owner.schema)
        if owner.format == "csv" and owner.partitions:
            # Of a folder with a log, Spark looks for all columns in the lines, also for those that are folders.
            rows = reader.options(basePath=folder, __globPaths__="false").load(files)
        else:
            rows = reader.load(folder)
        # Spark puts the columns that are folders last.
        return rows.select(*(F.col(f"`{name}`") for name in none.columns))

    def held(self, spark: SparkSession, flow: str, step: str, target: Target) -> Held:
        """Return whose batches the folder holds, and up to which."""
        folder = target.table(self.path)
        files = files_for(folder, spark)
        owner, last = owner_of(files, folder), last_batch(files, folder)
        held = {} if owner is None or last is None else {owner.query_id: last}
        return Held(f"the folder {folder}", None if owner is None else owner.identity, held)

    @property
    def _partitions(self) -> tuple[str, ...]:
        return (*(HOURLY if self.hourly else ()), *self.partition_by)

    def _owner(self, files: SmallFiles, folder: str, columns: str, batch: Batch) -> Owner:
        """Return what the folder says about itself, or what it is to say; raise when that does not fit."""
        owner = owner_of(files, folder)
        if owner is None:
            if LOG in files.names(folder) and last_batch(files, folder) is not None:
                raise _foreign(batch, folder, "The folder holds the batches of a query that is no flow.")
            return Owner(str(uuid.uuid4()), batch.query_id, self.format, self._partitions, columns, "", batch.fence)
        if owner.query_id != batch.query_id:
            raise _foreign(
                batch,
                folder,
                f"The folder holds the batches of another checkpoint ({owner.query_id}); this one is {batch.query_id}.",
            )
        for what, held, given in (
            ("is in the format", owner.format, self.format),
            ("has the partitions", ", ".join(owner.partitions), ", ".join(self._partitions)),
            ("has the columns", owner.schema, columns),
        ):
            if held != given:
                raise unfit(
                    self.name,
                    f"The folder {what} {held or '(none)'}, and the batch {given or '(none)'}. Readers take all files "
                    "of a folder to be alike.",
                    "Undo the change, or give the flow a new name and the sink another path.",
                )
        return owner


def _columns(rows: DataFrame) -> str:
    """Return the columns as DDL. Each may be null: what a transform says about that differs from start to start."""
    return str(rows._jdf.schema().asNullable().toDDL())


def _foreign(batch: Batch, folder: str, why: str) -> RecoveryError:
    return RecoveryError(
        f"Flow '{batch.flow}' cannot write to {folder}.",
        why=why,
        state="Nothing was written. A batch of this checkpoint would be taken for an old one and be lost.",
        remedy="Give the sink another path, move the folder away, or restore the checkpoint that it belongs to.",
        code="HR-305",
    )


def _undeclarable(what: str, why: str, remedy: str) -> FlowError:
    return FlowError(what, why=why, state="Nothing was started.", remedy=remedy, code="HR-214")
