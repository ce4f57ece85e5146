"""Append each batch to a folder of files."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, get_args

from pyspark.sql import DataFrame, SparkSession

from headrace.clients.file_sink_log import (
    LOG,
    READ_OPTIONS,
    WRITE_OPTIONS,
    FileFormat,
    FolderMetadata,
    committed_files,
    folder_metadata,
    is_glob,
    last_batch,
)
from headrace.clients.spark.jvm import java_dataset, java_session, jvm_of, to_seq
from headrace.clients.sql import column_named
from headrace.clients.storage import FileStore, file_store
from headrace.errors import DataError, FlowError, RecoveryError, did_you_mean
from headrace.flow.guarantee import Guarantee
from headrace.flow.levers import OutputMode
from headrace.flow.sink import BaseSink, Batch, CommittedBatches, TracksBatches, WritesFolder
from headrace.flow.target import Target
from headrace.sinks.batch.errors import LEDGER_ERRORS, must_write
from headrace.sinks.batch.ledger import LedgerEntry, decide
from headrace.sinks.file_schema import HOUR_PARTITIONS, require_writable_columns, unwritable_rows, with_hour_partitions
from headrace.sinks.local_folder import require_writable

# Spark's own writers, below org.apache.spark.sql.execution.datasources.
_WRITERS = {
    "parquet": "parquet.ParquetFileFormat",
    "json": "json.JsonFileFormat",
    "csv": "csv.CSVFileFormat",
    "orc": "orc.OrcFileFormat",
}


@dataclass(frozen=True)
class FileSink(BaseSink, WritesFolder, TracksBatches):
    """Append each micro-batch to a folder of files, below the lake unless `path` is absolute.

    Exactly once, while:
      1. readers honour `_spark_metadata`, the log of committed files in the folder: `read` here, `committed_files` for
         readers without Spark, `FileSource` in another flow, or Spark itself if it reads the folder. A reader that
         lists the folder, or reads a glob or a subfolder, sees the files of attempts that never committed;
      2. the folder belongs to one checkpoint and stays where it is. The log counts batches and contains full paths; the
         batches of another checkpoint, or of a checkpoint that was restored to an earlier batch, are rejected.

    | field        | meaning                                                                                      |
    |--------------|----------------------------------------------------------------------------------------------|
    | format       | parquet, json, csv or orc, with options that preserve every value                            |
    | partition_by | partition columns: strings, integers, dates. An empty string becomes null                    |
    | hourly       | a timestamp column: rows are partitioned by its hour in UTC, `date=2024-05-06/hour=07`,      |
    |              | before `partition_by`. The column stays in the files; rows with a null timestamp go to the   |
    |              | null partition, `__HIVE_DEFAULT_PARTITION__`                                                 |

    A folder has one schema. Rows with other columns, or with types that the format cannot store, are rejected before
    anything is written. The sink calls Spark's own file sink with the batch, so it also works in a fan-out.
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
            raise _invalid_sink(
                f"{self.name} is not a format of files that can be written.",
                f"The formats are {', '.join(formats)}.{did_you_mean(self.format, formats)}",
                "Set format to one of them.",
            )
        taken = [name for name in self.partition_by if name in (*HOUR_PARTITIONS, self.hourly)] if self.hourly else []
        if taken:
            raise _invalid_sink(
                f"{self.name} is partitioned by {taken[0]} and hourly by {self.hourly}.",
                f"hourly adds the partitions {' and '.join(HOUR_PARTITIONS)}, and keeps its own column in the files.",
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
        """Check that a local folder is writable, and that readers will find the log."""
        if is_glob(target.table(self.path)):
            raise _invalid_sink(
                f"{target.table(self.path)} cannot be a folder of files.",
                "Spark's readers take a path with one of the characters * ? [ ] { } \\ for a pattern, and read no log.",
                "Choose another path.",
            )
        require_writable(target.table(self.path))

    def write(self, rows: DataFrame, batch: Batch) -> None:
        """Write the files of the batch and commit their names to the folder's log.

        1. Reject rows that do not match the format or the folder.
        2. Reject a batch that does not follow the last one in the log; return if it is the last one.
        3. Record the digest of the batch, so that step 2 recognizes a retry.
        4. Write the files and commit them.
        """
        if self.hourly is not None:
            rows = with_hour_partitions(rows, self.hourly, self.name)
        require_writable_columns(rows.schema, self.format, self._partitions, self.name)
        session, folder = rows.sparkSession, batch.target.table(self.path)
        files = file_store(folder, session)
        # As DDL, all nullable: the nullability of a transform can differ between starts.
        columns = str(java_dataset(rows).schema().asNullable().toDDL())
        owner = self._owner(files, folder, columns, batch)
        last_committed = last_batch(files, folder)
        last = (
            None if last_committed is None else LedgerEntry(owner.query_id, last_committed, owner.offsets, owner.fence)
        )
        if not must_write(decide(last, batch), LEDGER_ERRORS, batch=batch, last=last, place=f"the folder {folder}"):
            return
        replace(owner, offsets=batch.offsets, fence=batch.fence).record(files, folder)
        execution = jvm_of(session).org.apache.spark.sql.execution
        writer = execution.datasources
        for part in _WRITERS[self.format].split("."):
            writer = getattr(writer, part)
        sink = execution.streaming.sinks.FileStreamSink(
            java_session(session),
            folder,
            writer(),
            to_seq(session, self._partitions),
            jvm_of(session).PythonUtils.toScalaMap({**WRITE_OPTIONS[self.format], "path": folder}),
        )
        sink.addBatch(batch.id, java_dataset(rows))

    def read(self, spark: SparkSession, target: Target) -> DataFrame:
        """Return the rows of all committed batches, with the columns and types that were written.

        Raises a DataError if nothing was ever written here, or the log is damaged.
        """
        folder = target.table(self.path)
        owner = folder_metadata(file_store(folder, spark), folder)
        if owner is None:
            raise DataError(
                f"{folder} cannot be read.",
                why="No FileSink has written to it.",
                state="Nothing was read.",
                remedy="Run the flow that writes it first, or correct the path.",
                code="HR-516",
            )
        empty = spark.createDataFrame([], owner.schema)
        files = committed_files(folder, spark)
        if not files:
            return empty
        reader = spark.read.format(owner.format).options(**READ_OPTIONS[owner.format]).schema(owner.schema)
        if owner.format == "csv" and owner.partitions:
            # With a log, Spark expects partition columns in the CSV lines too, so read the files instead.
            rows = reader.options(basePath=folder, __globPaths__="false").load(files)
        else:
            rows = reader.load(folder)
        # Spark puts partition columns last.
        return rows.select(*(column_named(name) for name in empty.columns))

    def committed_batches(self, spark: SparkSession, flow: str, step: str, target: Target) -> CommittedBatches:
        """Return the query id and the last committed batch of the folder."""
        folder = target.table(self.path)
        files = file_store(folder, spark)
        owner, last = folder_metadata(files, folder), last_batch(files, folder)
        batches = {} if owner is None or last is None else {owner.query_id: last}
        return CommittedBatches(f"the folder {folder}", None if owner is None else owner.identity, batches)

    @property
    def _partitions(self) -> tuple[str, ...]:
        return (*(HOUR_PARTITIONS if self.hourly else ()), *self.partition_by)

    def _owner(self, files: FileStore, folder: str, columns: str, batch: Batch) -> FolderMetadata:
        """Return the folder's metadata, or new metadata for a new folder; raise if it does not match the batch."""
        owner = folder_metadata(files, folder)
        if owner is None:
            if LOG in files.names(folder) and last_batch(files, folder) is not None:
                raise _foreign_folder(batch, folder, "The folder holds the batches of a query that is no flow.")
            return FolderMetadata(
                str(uuid.uuid4()), batch.query_id, self.format, self._partitions, columns, "", batch.fence
            )
        if owner.query_id != batch.query_id:
            raise _foreign_folder(
                batch,
                folder,
                f"The folder holds the batches of another checkpoint ({owner.query_id}); this one is {batch.query_id}.",
            )
        for property_text, existing, declared in (
            ("is in the format", owner.format, self.format),
            ("has the partitions", ", ".join(owner.partitions), ", ".join(self._partitions)),
            ("has the columns", owner.schema, columns),
        ):
            if existing != declared:
                raise unwritable_rows(
                    self.name,
                    f"The folder {property_text} {existing or '(none)'}, and the batch {declared or '(none)'}. "
                    "Readers take all files of a folder to be alike.",
                    "Undo the change, or give the flow a new name and the sink another path.",
                )
        return owner


def _foreign_folder(batch: Batch, folder: str, why: str) -> RecoveryError:
    return RecoveryError(
        f"Flow '{batch.flow}' cannot write to {folder}.",
        why=why,
        state="Nothing was written. A batch of this checkpoint would be taken for an old one and be lost.",
        remedy="Give the sink another path, move the folder away, or restore the checkpoint that it belongs to.",
        code="HR-305",
    )


def _invalid_sink(what: str, why: str, remedy: str) -> FlowError:
    return FlowError(what, why=why, remedy=remedy, code="HR-214")
