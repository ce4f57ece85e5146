"""Append each batch to a folder of files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from headrace.flow.guarantee import Guarantee
from headrace.flow.levers import OutputMode
from headrace.flow.sink import Batch
from headrace.flow.target import Target
from headrace.sinks.local_folder import require_writable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Files:
    """Append each micro-batch to a folder of files, below the lake unless `path` is absolute.

    Exactly once, while:
      1. readers honour `_spark_metadata`, the log of committed files in the folder, as Spark does. A reader that lists
         the folder sees the files of attempts that never committed;
      2. the folder belongs to one checkpoint. The log counts batches, and skips a number that it holds already.

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

    def preflight(self, target: Target) -> None:
        """Prove that a local folder can be written."""
        require_writable(target.table(self.path))

    def prepare(self, spark: SparkSession, target: Target) -> None:
        """Nothing: the first write makes the folder."""

    def write(self, rows: DataFrame, batch: Batch) -> None:
        """Write the files of the batch and commit their names to the folder's log."""
        session = rows.sparkSession
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
