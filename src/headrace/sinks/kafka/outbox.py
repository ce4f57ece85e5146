"""Where the rows of a batch wait while its slots are written one by one: the same rows at every attempt.

    LAKE/_headrace/FLOW/outbox/STEP/
        rows/QUERY-BATCH-OFFSETS-ATTEMPT/slot=K/*.parquet   position, key, value
        batches/QUERY-BATCH-OFFSETS                         the attempt that counts, and its rows per slot

Every attempt may write rows. The record under `batches` is made exclusively: the first attempt that makes it decides
which rows are sent, and every later attempt sends those. Nothing is sent before the record is there.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from headrace.clients.storage import Files, files_for
from headrace.flow.sink import Batch
from headrace.sinks.kafka import errors as failures

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# As many files at once as a task can have slots. Else Spark sorts the rows by slot first, and their order may change.
_OPEN_FILES = "spark.sql.maxConcurrentOutputFileWriters"


@dataclass(frozen=True)
class Staged:
    """What the outbox holds of a batch: the attempt that staged it, and how many rows each slot has that has any."""

    attempt: str
    rows: Mapping[int, int]


class Outbox:
    """The rows of one batch, in some slots. Used on the driver, by one attempt at the batch."""

    def __init__(self, session: SparkSession, batch: Batch, slots: int) -> None:
        self.location = batch.target.table(f"_headrace/{batch.flow}/outbox/{batch.step}")
        self._session, self._batch, self._slots = session, batch, slots
        self._files: Files = files_for(self.location, session)
        # A checkpoint that was set back may give a number to other rows.
        self._name = f"{batch.query_id}-{batch.id}-{batch.offsets[:16]}"

    def stage(self, records: DataFrame) -> Staged:
        """Put the records in, unless an earlier attempt has, and return what is there.

        `records` holds the columns `key`, `value` and, when the rows of a key are to be sorted, `order`. They are not
        computed when the batch is there already.
        """
        return self._recorded() or self._written(records)

    def rows(self, staged: Staged, slot: int) -> DataFrame:
        """Return the records of a slot, as `key` and `value`, in one partition and in the order of their staging."""
        stored = self._session.read.schema("position long, key binary, value binary").parquet(
            f"{self._folder(staged.attempt)}/slot={slot}"
        )
        return stored.coalesce(1).sortWithinPartitions("position").select("key", "value")

    def tidy(self) -> None:
        """Delete everything that is not of this batch. Called when the ledger has every slot of those before it.

        Records go last: rows without a record belong to an attempt that does not count, and are found again.
        """
        for name in self._files.names(f"{self.location}/rows"):
            if not name.startswith(f"{self._name}-"):
                _delete_folder(self._session, f"{self.location}/rows/{name}")
        for name in self._files.names(f"{self.location}/batches"):
            if name != self._name:
                self._files.delete(f"{self.location}/batches/{name}")

    def _written(self, records: DataFrame) -> Staged:
        attempt = uuid.uuid4().hex
        slot = F.pmod(F.xxhash64(F.coalesce("key", "value")), F.lit(self._slots)).cast("int")
        rows = records.withColumn("slot", slot)
        if "order" in records.columns:
            rows = rows.repartitionById(self._slots, "slot").sortWithinPartitions("key", "order")
        both = (F.col(name).cast("binary").alias(name) for name in ("key", "value"))
        with _open_files(self._session, self._slots):
            (
                rows.select("slot", F.monotonically_increasing_id().alias("position"), *both)
                .write.partitionBy("slot")
                # Keys and values hardly repeat, and are read once: no dictionaries.
                .option("parquet.enable.dictionary", "false")
                .parquet(self._folder(attempt))
            )
        stored = self._session.read.schema("position long, slot int").parquet(self._folder(attempt))
        counts = {row["slot"]: row["count"] for row in stored.groupBy("slot").count().collect()}
        made = self._files.create(self._record, json.dumps({"attempt": attempt, "rows": counts}))
        staged = self._recorded()
        if staged is None or (made and staged.attempt != attempt):
            raise failures.other_staging(self._batch, f"{self._record} was made and is not there")
        return staged

    def _recorded(self) -> Staged | None:
        text = self._files.read(self._record)
        if text is None:
            return None
        try:
            fields = json.loads(text)
            return Staged(fields["attempt"], {int(slot): rows for slot, rows in fields["rows"].items()})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise failures.other_staging(self._batch, f"{self._record} holds {text[:80]!r}") from error

    @property
    def _record(self) -> str:
        return f"{self.location}/batches/{self._name}"

    def _folder(self, attempt: str) -> str:
        return f"{self.location}/rows/{self._name}-{attempt}"


def _delete_folder(session: SparkSession, folder: str) -> None:
    assert session._jvm is not None  # noqa: S101 - a classic session always has its JVM
    path = session._jvm.org.apache.hadoop.fs.Path(folder)
    path.getFileSystem(session._jsc.hadoopConfiguration()).delete(path, True)


@contextmanager
def _open_files(session: SparkSession, number: int) -> Iterator[None]:
    before = session.conf.get(_OPEN_FILES)
    session.conf.set(_OPEN_FILES, str(number))
    try:
        yield
    finally:
        session.conf.set(_OPEN_FILES, str(before))
