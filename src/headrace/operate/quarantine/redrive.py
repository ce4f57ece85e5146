"""Send quarantined rows again after a fix: plan, explain, then apply.

Every row is validated by the present declaration of its input. A row that is valid now, and that no rule would drop or
fail the flow for, is sent with its key and value to its original topic, or to another one; the others stay. A header
has the original position of the record.

Rows are sent in portions of at most `_ROWS_PER_PORTION`. Each portion of a flow has a number, counted from 0, and is
sent once:

1. Stage the rows, in one commit with the number:              LAKE/_headrace/FLOW/redrive_staged
2. Send them in one transaction, with a record in the flow's ledger that has the number.
3. Record them as sent, in one commit with the number:         LAKE/_headrace/FLOW/redriven

A killed run leaves a portion that is staged and not recorded as sent. The next run checks the ledger, as an
exactly-once sink does for a batch, sends the portion if necessary, and records it. So no row is sent twice.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, functions as F

from headrace.audit.flow_audit import quarantine_table
from headrace.clients.kafka import require_topics
from headrace.clients.spark.delta_log import is_table
from headrace.clients.sql import column_named
from headrace.errors import RecoveryError
from headrace.flow.flow import Flow
from headrace.flow.inputs import Input
from headrace.flow.sink import Batch
from headrace.flow.target import Target
from headrace.ingest import rules
from headrace.ingest.parse import INVALID, invalid_rows, valid_rows, validate
from headrace.operate.quarantine.listing import IDENTITY, redriven_table
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.checkpoint.folder_lock import lock_folder
from headrace.runtime.session import flow_session
from headrace.sinks.delta.sql import idempotent_options
from headrace.sinks.kafka.ledger import create_ledger
from headrace.sinks.kafka.transaction import REDRIVEN_COLUMN, TransactionSlot, publish

# A transaction of a few megabytes, sent well within its two minutes.
_ROWS_PER_PORTION = 10_000

# The identity under which portions are recorded: independent of the flow's checkpoint.
_IDENTITY = _STEP = "redrive"

_NO_INPUT = "input_not_declared"


def staged_table(target: Target, flow: str) -> str:
    """Return the location of the rows that are staged to be sent again."""
    return target.table(f"_headrace/{flow}/redrive_staged")


@dataclass(frozen=True)
class RedrivePlan:
    """The plan of a redrive.

    | field      | meaning                                                                              |
    |------------|--------------------------------------------------------------------------------------|
    | topics     | rows that are valid now, by the topic that they are sent to                          |
    | still_invalid | rows that stay, by their present reason                                              |
    | late       | rows to be sent whose event time is behind the present watermark of the flow         |
    | unfinished | rows of an unfinished portion of an earlier run; they go first                       |
    """

    flow: str
    topics: dict[str, int]
    still_invalid: dict[str, int]
    late: int
    unfinished: int
    to: str | None
    reason: str | None

    @property
    def rows(self) -> int:
        """The number of rows to send, without an unfinished portion."""
        return sum(self.topics.values())

    def as_dict(self) -> dict[str, object]:
        """The plan as `--json` prints it."""
        return {**vars(self), "rows": self.rows}

    def lines(self) -> Iterator[str]:
        """Describe the plan, for people."""
        if self.unfinished:
            yield f"An earlier run was interrupted: its {self.unfinished} row(s) are finished first, none sent twice."
        for topic, rows in self.topics.items():
            yield f"{rows} row(s) are valid now and are sent to '{topic}' with the same key and value."
        if self.topics and self.to is None:
            yield "All consumers of that topic get them again; --to TOPIC sends them elsewhere."
        if self.late:
            yield f"{self.late} of them are behind the flow's present watermark: stateful operators drop them as late."
        for reason, rows in self.still_invalid.items():
            yield f"{rows} row(s) stay: {reason}."
        if not self.rows and not self.unfinished:
            yield "There is nothing to send."


class Redrive:
    """A redrive of a flow. Created by `open_redrive`; call `plan`, then optionally `apply`."""

    def __init__(self, spark: SparkSession, target: Target, flow: Flow) -> None:
        self._target, self._flow = target, flow
        self._session = flow_session(spark, flow)
        self._checkpoint = Checkpoint.of(flow.name, target, spark)

    def plan(self, reason: str | None = None, to: str | None = None) -> RedrivePlan:
        """Validate the quarantined rows. Changes nothing."""
        quarantined = self._quarantined(reason)
        topics: Counter[str] = Counter()
        still_invalid: Counter[str] = Counter()
        late = 0
        for name in self._inputs(quarantined):
            rows = quarantined.where(F.col("input") == name)
            input_ = self._flow.named_inputs.get(name)
            if input_ is None or input_.schema is None:
                still_invalid[_NO_INPUT] += rows.count()
                continue
            validated = validate(rows, input_)
            for rejected in (invalid_rows(validated, input_), _rejected_by_rule(validated, input_)):
                for row in rejected.groupBy("reason").count().collect():
                    still_invalid[row["reason"]] += row["count"]
            redrivable = _redrivable(validated, input_)
            for row in redrivable.groupBy("topic").count().collect():
                topics[to or row["topic"]] += row["count"]
            watermark = self._watermark()
            if input_.watermark is not None and watermark is not None:
                late += valid_rows(redrivable, input_).where(column_named(input_.watermark.column) <= watermark).count()
        if topics:
            require_topics(self._target, sorted(topics))
        return RedrivePlan(
            self._flow.name, dict(topics), dict(still_invalid), late, self._unfinished_rows(), to=to, reason=reason
        )

    def apply(self, plan: RedrivePlan) -> int:
        """Finish an earlier run, then send the rows of the plan; return how many rows were recorded as sent."""
        create_ledger(self._target, self._ledger)
        sent = 0
        number = self._last(staged_table(self._target, self._flow.name))
        if number > self._last(redriven_table(self._target, self._flow.name)):
            sent += self._send_staged(number)
        while plan.rows:
            number += 1
            if not self._stage(number, plan):
                break
            sent += self._send_staged(number)
        return sent

    @property
    def _ledger(self) -> str:
        return f"headrace-ledger-{self._flow.name}"

    def _stage(self, number: int, plan: RedrivePlan) -> bool:
        """Stage the next rows to send; False if there are none."""
        quarantined = self._quarantined(plan.reason)
        frames = []
        for name in self._inputs(quarantined):
            input_ = self._flow.named_inputs.get(name)
            if input_ is not None and input_.schema is not None:
                frames.append(_redrivable(validate(quarantined.where(F.col("input") == name), input_), input_))
        if not frames:
            return False
        columns = ("input", *IDENTITY, "was", "key", "value")
        rows = reduce(DataFrame.unionByName, [part.select(*columns) for part in frames])
        portion = (
            rows.orderBy(*IDENTITY)
            .limit(_ROWS_PER_PORTION)
            .withColumn("to", F.lit(plan.to) if plan.to else F.col("topic"))
        )
        portion = portion.withColumn("redrive", F.lit(number).cast("long")).cache()
        try:
            if portion.isEmpty():
                return False
            self._append(portion.coalesce(1), staged_table(self._target, self._flow.name), number)
        finally:
            portion.unpersist()
        return True

    def _send_staged(self, number: int) -> int:
        """Send a staged portion unless it was sent, and record it; return its number of rows."""
        staged = self._staged(number).orderBy(*IDENTITY)
        rows = staged.collect()
        origins = [f"{self._flow.name}/{row['topic']}/{row['partition']}/{row['offset']}" for row in rows]
        chunk = pa.RecordBatch.from_pydict(
            {
                "topic": pa.array([row["to"] for row in rows], pa.string()),
                "key": pa.array([_bytes(row["key"]) for row in rows], pa.binary()),
                "value": pa.array([_bytes(row["value"]) for row in rows], pa.binary()),
                REDRIVEN_COLUMN: pa.array([origin.encode() for origin in origins], pa.binary()),
            }
        )
        # The ledger refuses a portion with the same number and other rows.
        digest = hashlib.sha256("\n".join(origins).encode()).hexdigest()
        batch = Batch(self._flow.name, _IDENTITY, number, self._target, step=_STEP, offsets=digest)
        publish(TransactionSlot(batch, rows[0]["to"], self._ledger), [chunk])
        redriven = staged.select("input", *IDENTITY, F.col("was").alias("reason"), "to", "redrive")
        redriven = redriven.withColumn("at", F.current_timestamp()).coalesce(1)
        self._append(redriven, redriven_table(self._target, self._flow.name), number)
        return len(rows)

    def _quarantined(self, reason: str | None) -> DataFrame:
        """Return the quarantined rows that were neither sent nor staged, with the present time as their timestamp."""
        rows = self._table(quarantine_table(self._target, self._flow.name))
        if rows is None:
            raise RecoveryError(
                f"Flow '{self._flow.name}' has no quarantine.",
                why="None of its rows was ever invalid, or they are in another target.",
                state="Nothing was sent.",
                remedy="Name another flow, or another target with --target.",
                code="HR-360",
            )
        if reason is not None:
            rows = rows.where(F.col("reason") == reason)
        staged = self._table(staged_table(self._target, self._flow.name))
        if staged is not None:
            staged_keys = staged.select(*(F.col(name).alias(f"_{name}") for name in IDENTITY))
            is_same = [F.col(name).eqNullSafe(F.col(f"_{name}")) for name in IDENTITY]
            rows = rows.join(staged_keys, reduce(lambda left, right: left & right, is_same), "left_anti")
        # A record that two checkpoints have read is in quarantine twice, but is the same record.
        rows = rows.dropDuplicates(list(IDENTITY)).withColumnRenamed("reason", "was")
        return rows.withColumn("timestamp", F.current_timestamp())

    def _inputs(self, quarantined: DataFrame) -> list[str]:
        return sorted(row["input"] for row in quarantined.select("input").distinct().collect())

    def _watermark(self) -> Column | None:
        planned = self._checkpoint.planned_batches()
        return F.timestamp_millis(F.lit(self._checkpoint.offset_entry(planned[-1]).watermark_ms)) if planned else None

    def _unfinished_rows(self) -> int:
        number = self._last(staged_table(self._target, self._flow.name))
        done = self._last(redriven_table(self._target, self._flow.name))
        return self._staged(number).count() if number > done else 0

    def _staged(self, number: int) -> DataFrame:
        staged = self._table(staged_table(self._target, self._flow.name))
        assert staged is not None  # noqa: S101 - it has the number
        return staged.where(F.col("redrive") == number)

    def _last(self, location: str) -> int:
        """Return the last portion in a table, or -1."""
        table = self._table(location)
        newest = None if table is None else table.agg(F.max("redrive")).first()
        return -1 if newest is None or newest[0] is None else int(newest[0])

    def _table(self, location: str) -> DataFrame | None:
        return self._session.read.format("delta").load(location) if is_table(location, self._session) else None

    def _append(self, rows: DataFrame, location: str, number: int) -> None:
        identity = idempotent_options(f"{_IDENTITY}:{self._flow.name}", number)
        rows.write.format("delta").mode("append").options(**identity).save(location)


@contextmanager
def open_redrive(spark: SparkSession, target: Target, flow: Flow) -> Iterator[Redrive]:
    """Yield the redrive of a flow, which may be running. Only one redrive runs at a time."""
    with lock_folder(redriven_table(target, flow.name)):
        yield Redrive(spark, target, flow)


def _redrivable(validated: DataFrame, input_: Input) -> DataFrame:
    """Return the rows that the flow would accept now: valid, and not rejected by a rule."""
    return validated.where(~F.col(INVALID) & ~rules.violates(input_.rules, "drop", "fail"))


def _rejected_by_rule(validated: DataFrame, input_: Input) -> DataFrame:
    """Return the valid rows that a rule would drop or fail the flow for, with the rule as `reason`."""
    broken = validated.where(~F.col(INVALID) & rules.violates(input_.rules, "drop", "fail"))
    return broken.withColumn("reason", rules.violated_rule(input_.rules, F.lit(None), "drop", "fail"))


def _bytes(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)
