"""The outbox: staged rows of a batch, so that every attempt sends the same rows to the slots.

    LAKE/_headrace/FLOW/outbox/STEP/
        rows/QUERY-BATCH-OFFSETS-ATTEMPT/slot=K/*.parquet   position, key, value
        batches/QUERY-BATCH-OFFSETS                         the attempt that is sent, and its rows per slot

Every attempt may write rows. The record under `batches` is created exclusively: the first attempt that creates it
decides which rows are sent, and every later attempt sends those. Nothing is sent before the record exists.
"""

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession, functions as F

from headrace.clients.spark.jvm import hadoop_path
from headrace.clients.spark.settings import session_settings
from headrace.clients.storage import FileStore, file_store
from headrace.flow.sink import Batch
from headrace.sinks.kafka import errors

# At least one open file per slot. Otherwise Spark sorts the rows by slot first, and their order may change.
_OPEN_FILES = "spark.sql.maxConcurrentOutputFileWriters"


@dataclass(frozen=True)
class StagedBatch:
    """A staged batch: the attempt that staged it, and the row count of each slot that has rows."""

    attempt: str
    rows: Mapping[int, int]


class Outbox:
    """The staged rows of one batch. Used on the driver, by one attempt at the batch."""

    def __init__(self, session: SparkSession, batch: Batch, slots: int) -> None:
        self.location = batch.target.table(f"_headrace/{batch.flow}/outbox/{batch.step}")
        self._session, self._batch, self._slots = session, batch, slots
        self._files: FileStore = file_store(self.location, session)
        # A restored checkpoint may reuse a batch id for other rows.
        self._name = f"{batch.query_id}-{batch.id}-{batch.offsets[:16]}"

    def stage(self, records: DataFrame) -> StagedBatch:
        """Stage the records unless an earlier attempt has, and return the staged batch.

        `records` has the columns `key`, `value` and, if the rows of a key are sorted, `order`. They are not computed
        if the batch is already staged.
        """
        staged = self._read_record()
        if staged is not None:
            return staged
        attempt = uuid.uuid4().hex
        slot = F.pmod(F.xxhash64(F.coalesce("key", "value")), F.lit(self._slots)).cast("int")
        rows = records.withColumn("slot", slot)
        if "order" in records.columns:
            rows = rows.repartitionById(self._slots, "slot").sortWithinPartitions("key", "order")
        key_and_value = (F.col(name).cast("binary").alias(name) for name in ("key", "value"))
        with session_settings(self._session, {_OPEN_FILES: str(self._slots)}):
            (
                rows.select("slot", F.monotonically_increasing_id().alias("position"), *key_and_value)
                .write.partitionBy("slot")
                # Keys and values rarely repeat and are read once, so dictionary encoding does not pay off.
                .option("parquet.enable.dictionary", "false")
                .parquet(self._folder(attempt))
            )
        stored = self._session.read.schema("position long, slot int").parquet(self._folder(attempt))
        counts = {row["slot"]: row["count"] for row in stored.groupBy("slot").count().collect()}
        created = self._files.create(self._record, json.dumps({"attempt": attempt, "rows": counts}))
        staged = self._read_record()
        if staged is None or (created and staged.attempt != attempt):
            why = f"{self._record} was created and does not exist."
            raise errors.STAGED_ROWS_DIFFER.error(batch=self._batch, why=why)
        return staged

    def rows(self, staged: StagedBatch, slot: int) -> DataFrame:
        """Return the records of a slot as `key` and `value`, in one partition and in staging order."""
        stored = self._session.read.schema("position long, key binary, value binary").parquet(
            f"{self._folder(staged.attempt)}/slot={slot}"
        )
        return stored.coalesce(1).sortWithinPartitions("position").select("key", "value")

    def delete_other_batches(self) -> None:
        """Delete all other batches. Called when the ledger contains every slot of the earlier batches.

        Batch records are deleted last: if this is interrupted, the next call still finds the remaining rows.
        """
        for name in self._files.names(f"{self.location}/rows"):
            if not name.startswith(f"{self._name}-"):
                path, filesystem = hadoop_path(self._session, f"{self.location}/rows/{name}")
                filesystem.delete(path, True)
        for name in self._files.names(f"{self.location}/batches"):
            if name != self._name:
                self._files.delete(f"{self.location}/batches/{name}")

    def _read_record(self) -> StagedBatch | None:
        text = self._files.read(self._record)
        if text is None:
            return None
        try:
            fields = json.loads(text)
            return StagedBatch(fields["attempt"], {int(slot): rows for slot, rows in fields["rows"].items()})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            why = f"{self._record} holds {text[:80]!r}."
            raise errors.STAGED_ROWS_DIFFER.error(batch=self._batch, why=why) from error

    @property
    def _record(self) -> str:
        return f"{self.location}/batches/{self._name}"

    def _folder(self, attempt: str) -> str:
        return f"{self.location}/rows/{self._name}-{attempt}"
