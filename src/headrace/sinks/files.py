"""Append each batch to a folder of files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from headrace.errors import RecoveryError
from headrace.flow.guarantee import Guarantee
from headrace.flow.levers import OutputMode
from headrace.flow.sink import Batch
from headrace.flow.target import Target
from headrace.sinks.local_folder import require_writable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Names the checkpoint whose batches the folder's log counts. Readers pass over names that begin like this.
_OWNER = "_headrace_query_id"


@dataclass(frozen=True)
class Files:
    """Append each micro-batch to a folder of files, below the lake unless `path` is absolute.

    Exactly once, while:
      1. readers honour `_spark_metadata`, the log of committed files in the folder, as Spark does. A reader that lists
         the folder sees the files of attempts that never committed;
      2. the folder belongs to one checkpoint. The log counts batches, and skips a number that it holds already, so the
         folder records whose batches it counts, and those of another checkpoint are refused.

    The writing is Spark's own file sink, called with the batch, so that a fan-out can hold it too.
    """

    path: str
    format: Literal["parquet"] = "parquet"
    partition_by: Sequence[str] = ()
    guarantee: ClassVar[Guarantee] = Guarantee.EXACTLY_ONCE
    output_modes: ClassVar[frozenset[OutputMode]] = frozenset({OutputMode.APPEND})

    @property
    def name(self) -> str:
        """Return `FORMAT:PATH`."""
        return f"{self.format}:{self.path}"

    def folder(self, target: Target) -> str:
        """Return the location of the folder."""
        return target.table(self.path)

    def preflight(self, target: Target) -> None:
        """Prove that a local folder can be written."""
        require_writable(target.table(self.path))

    def prepare(self, spark: SparkSession, target: Target) -> None:
        """Nothing: the first write makes the folder."""

    def write(self, rows: DataFrame, batch: Batch) -> None:
        """Write the files of the batch and commit their names to the folder's log."""
        session = rows.sparkSession
        _claim(session, batch.target.table(self.path), batch)
        jvm = session._jvm
        assert jvm is not None  # noqa: S101 - a classic session always has its JVM
        execution = jvm.org.apache.spark.sql.execution
        file_format = execution.datasources.parquet.ParquetFileFormat()
        columns = jvm.PythonUtils.toSeq(list(self.partition_by))
        sink = execution.streaming.sinks.FileStreamSink(
            session._jsparkSession,
            batch.target.table(self.path),
            file_format,
            columns,
            jvm.PythonUtils.toScalaMap({"path": batch.target.table(self.path)}),
        )
        sink.addBatch(batch.id, rows._jdf)


def _claim(session: SparkSession, folder: str, batch: Batch) -> None:
    """Record that the folder counts the batches of this checkpoint, or raise when it counts those of another."""
    assert session._jvm is not None  # noqa: S101 - a classic session always has its JVM
    path = session._jvm.org.apache.hadoop.fs.Path(f"{folder}/{_OWNER}")
    filesystem = path.getFileSystem(session._jsc.hadoopConfiguration())
    if not filesystem.exists(path):
        stream = filesystem.create(path, False)
        stream.write(bytearray(batch.query_id.encode()))
        stream.close()
        return
    stream = filesystem.open(path)
    owner = str(session._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
    stream.close()
    if owner != batch.query_id:
        raise RecoveryError(
            f"Flow '{batch.flow}' cannot write to {folder}.",
            why=f"The folder holds the batches of another checkpoint ({owner}); this one is {batch.query_id}.",
            state="Nothing was written. A batch of this checkpoint would be taken for an old one and be lost.",
            remedy="Give the sink another path, move the folder away, or restore the checkpoint that it belongs to.",
            code="HR-305",
        )
