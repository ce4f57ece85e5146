"""Send quarantined rows again after a fix: planned, explained, then done.

Every row is judged anew by the present declaration of its input. A row that is good by now, and that no rule would
leave out or stop the flow for, is sent, key and value as they were, to the topic that it came from, or to another one;
the others stay. A header says where the record was before.

Rows are sent at most `_AT_ONCE` at a time. Each portion has a number, counted from 0 for a flow, and is sent once:

1. The rows are staged, in one commit under the number:        LAKE/_headrace/FLOW/redrive_staged
2. They are sent in one transaction, with a record in the flow's ledger that holds the number.
3. They are filed as sent, in one commit under the number:     LAKE/_headrace/FLOW/redriven

A run that is killed leaves a portion that is staged and not filed. The next one asks the ledger whether it was sent, as
an exactly-once sink does for a batch, sends it if it was not, and files it. So no row is sent twice.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from headrace.audit.flow_audit import quarantine_table
from headrace.clients.kafka import require_topics
from headrace.clients.storage import file_store
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
from headrace.sinks.kafka.ledger import create_ledger
from headrace.sinks.kafka.transaction import REDRIVEN_COLUMN, TransactionSlot, publish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Some hundred bytes each: a transaction of a few megabytes, sent well within its two minutes.
_AT_ONCE = 10_000

# Under which identity portions are recorded: of the flow, whatever its checkpoint.
_IDENTITY = _STEP = "redrive"

_NO_INPUT = "input_not_declared"


def staged_table(target: Target, flow: str) -> str:
    """Return where rows are kept that are to be sent again."""
    return target.table(f"_headrace/{flow}/redrive_staged")


@dataclass(frozen=True)
class RedrivePlan:
    """What sending again would do.

    | field      | meaning                                                                              |
    |------------|--------------------------------------------------------------------------------------|
    | topics     | rows that are good by now, by the topic that they are sent to                        |
    | still_bad  | rows that stay, by the reason that holds now                                         |
    | late       | rows to be sent whose event time is behind the present watermark of the flow         |
    | unfinished | rows of a portion that an earlier run staged and did not finish; they go first       |
    """

    flow: str
    topics: dict[str, int]
    still_bad: dict[str, int]
    late: int
    unfinished: int
    to: str | None
    reason: str | None

    @property
    def rows(self) -> int:
        """How many rows are sent, an unfinished portion left out."""
        return sum(self.topics.values())

    def as_dict(self) -> dict[str, object]:
        """The plan as `--json` prints it."""
        return {**vars(self), "rows": self.rows}

    def lines(self) -> Iterator[str]:
        """Say what is done, for people."""
        if self.unfinished:
            yield f"An earlier run was cut off: its {self.unfinished} row(s) are finished first, none sent twice."
        for topic, rows in self.topics.items():
            yield f"{rows} row(s) are good by now and are sent to '{topic}', key and value as they were."
        if self.topics and self.to is None:
            yield "Everybody who reads that topic gets them again; --to TOPIC sends them elsewhere."
        if self.late:
            yield f"{self.late} of them are behind the flow's present watermark: where it keeps state they are late."
        for reason, rows in self.still_bad.items():
            yield f"{rows} row(s) stay: {reason}."
        if not self.rows and not self.unfinished:
            yield "Nothing is to be sent."


class Redrive:
    """Rows of one flow on their way back. Made by `redriving`; `plan`, then perhaps `apply`."""

    def __init__(self, spark: SparkSession, target: Target, flow: Flow) -> None:
        self._target, self._flow = target, flow
        self._session = flow_session(spark, flow)
        self._checkpoint = Checkpoint.of(flow.name, target, file_store(target.checkpoints, spark))

    def plan(self, reason: str | None = None, to: str | None = None) -> RedrivePlan:
        """Judge the rows anew. Changes nothing."""
        waiting = self._waiting(reason)
        topics: Counter[str] = Counter()
        still: Counter[str] = Counter()
        late = 0
        for name in self._inputs(waiting):
            rows = waiting.where(F.col("input") == name)
            given = self._flow.named_inputs.get(name)
            if given is None or given.schema is None:
                still[_NO_INPUT] += rows.count()
                continue
            verdicts = validate(rows, given)
            for staying in (invalid_rows(verdicts, given), _left_out(verdicts, given)):
                for row in staying.groupBy("reason").count().collect():
                    still[row["reason"]] += row["count"]
            fit = _fit(verdicts, given)
            for row in fit.groupBy("topic").count().collect():
                topics[to or row["topic"]] += row["count"]
            watermark = self._watermark()
            if given.watermark is not None and watermark is not None:
                late += valid_rows(fit, given).where(F.col(f"`{given.watermark.column}`") <= watermark).count()
        if topics:
            require_topics(self._target, sorted(topics))
        return RedrivePlan(
            self._flow.name, dict(topics), dict(still), late, self._unfinished_rows(), to=to, reason=reason
        )

    def apply(self, plan: RedrivePlan) -> int:
        """Finish what an earlier run began, then send what the plan says; return how many rows were filed as sent."""
        create_ledger(self._target, self._ledger)
        sent = 0
        number = self._last(staged_table(self._target, self._flow.name))
        if number > self._last(redriven_table(self._target, self._flow.name)):
            sent += self._finish(number)
        while plan.rows:
            number += 1
            if not self._stage(number, plan):
                break
            sent += self._finish(number)
        return sent

    @property
    def _ledger(self) -> str:
        return f"headrace-ledger-{self._flow.name}"

    def _stage(self, number: int, plan: RedrivePlan) -> bool:
        """Write down the next rows to be sent; False when there are none."""
        waiting = self._waiting(plan.reason)
        parts = []
        for name in self._inputs(waiting):
            given = self._flow.named_inputs.get(name)
            if given is not None and given.schema is not None:
                parts.append(_fit(validate(waiting.where(F.col("input") == name), given), given))
        if not parts:
            return False
        columns = ("input", *IDENTITY, "was", "key", "value")
        rows = reduce(DataFrame.unionByName, [part.select(*columns) for part in parts])
        chosen = rows.orderBy(*IDENTITY).limit(_AT_ONCE).withColumn("to", F.lit(plan.to) if plan.to else F.col("topic"))
        chosen = chosen.withColumn("redrive", F.lit(number).cast("long")).cache()
        try:
            if chosen.isEmpty():
                return False
            self._append(chosen.coalesce(1), staged_table(self._target, self._flow.name), number)
        finally:
            chosen.unpersist()
        return True

    def _finish(self, number: int) -> int:
        """Send a staged portion unless it was sent, and file it; return its rows."""
        staged = self._staged(number).orderBy(*IDENTITY)
        rows = staged.collect()
        places = [f"{self._flow.name}/{row['topic']}/{row['partition']}/{row['offset']}" for row in rows]
        chunk = pa.RecordBatch.from_pydict(
            {
                "topic": pa.array([row["to"] for row in rows], pa.string()),
                "key": pa.array([_bytes(row["key"]) for row in rows], pa.binary()),
                "value": pa.array([_bytes(row["value"]) for row in rows], pa.binary()),
                REDRIVEN_COLUMN: pa.array([place.encode() for place in places], pa.binary()),
            }
        )
        # The ledger refuses a portion of the same number with other rows.
        digest = hashlib.sha256("\n".join(places).encode()).hexdigest()
        batch = Batch(self._flow.name, _IDENTITY, number, self._target, step=_STEP, offsets=digest)
        publish(TransactionSlot(batch, rows[0]["to"], self._ledger), [chunk])
        filed = staged.select("input", *IDENTITY, F.col("was").alias("reason"), "to", "redrive")
        filed = filed.withColumn("at", F.current_timestamp()).coalesce(1)
        self._append(filed, redriven_table(self._target, self._flow.name), number)
        return len(rows)

    def _waiting(self, reason: str | None) -> DataFrame:
        """Return the quarantined rows that were neither sent nor staged, as they would arrive: stamped with now."""
        rows = self._table(quarantine_table(self._target, self._flow.name))
        if rows is None:
            raise RecoveryError(
                f"Flow '{self._flow.name}' has no quarantine.",
                why="No row of it was ever bad, or another target holds them.",
                state="Nothing was sent.",
                remedy="Name another flow, or another target with --target.",
                code="HR-360",
            )
        if reason is not None:
            rows = rows.where(F.col("reason") == reason)
        staged = self._table(staged_table(self._target, self._flow.name))
        if staged is not None:
            known = staged.select(*(F.col(name).alias(f"_{name}") for name in IDENTITY))
            same = [F.col(name).eqNullSafe(F.col(f"_{name}")) for name in IDENTITY]
            rows = rows.join(known, reduce(lambda one, other: one & other, same), "left_anti")
        # A record that two checkpoints have read is in quarantine twice, and is one record.
        rows = rows.dropDuplicates(list(IDENTITY)).withColumnRenamed("reason", "was")
        return rows.withColumn("timestamp", F.current_timestamp())

    def _inputs(self, waiting: DataFrame) -> list[str]:
        return sorted(row["input"] for row in waiting.select("input").distinct().collect())

    def _watermark(self) -> Column | None:
        planned = self._checkpoint.planned_batches()
        return F.timestamp_millis(F.lit(self._checkpoint.offset_entry(planned[-1]).watermark_ms)) if planned else None

    def _unfinished_rows(self) -> int:
        number = self._last(staged_table(self._target, self._flow.name))
        done = self._last(redriven_table(self._target, self._flow.name))
        return self._staged(number).count() if number > done else 0

    def _staged(self, number: int) -> DataFrame:
        staged = self._table(staged_table(self._target, self._flow.name))
        assert staged is not None  # noqa: S101 - it holds the number
        return staged.where(F.col("redrive") == number)

    def _last(self, location: str) -> int:
        """Return the last portion in a table, or -1."""
        table = self._table(location)
        found = None if table is None else table.agg(F.max("redrive")).first()
        return -1 if found is None or found[0] is None else int(found[0])

    def _table(self, location: str) -> DataFrame | None:
        there = file_store(location, self._session).names(f"{location}/_delta_log")
        return self._session.read.format("delta").load(location) if there else None

    def _append(self, rows: DataFrame, location: str, number: int) -> None:
        identity = {"txnAppId": f"{_IDENTITY}:{self._flow.name}", "txnVersion": str(number)}
        rows.write.format("delta").mode("append").options(**identity).save(location)


@contextmanager
def redriving(spark: SparkSession, target: Target, flow: Flow) -> Iterator[Redrive]:
    """Yield the redrive of a flow, one at a time. The flow may run meanwhile: it reads what is sent."""
    with lock_folder(redriven_table(target, flow.name)):
        yield Redrive(spark, target, flow)


def _fit(verdicts: DataFrame, given: Input) -> DataFrame:
    """Return the rows that the flow would take by now: neither bad, nor left out by a rule, nor such as stop it."""
    return verdicts.where(~F.col(INVALID) & ~rules.violates(given.rules, "drop", "fail"))


def _left_out(verdicts: DataFrame, given: Input) -> DataFrame:
    """Return the rows that are not bad and would be left out, or stop the flow, with the rule as the `reason`."""
    broken = verdicts.where(~F.col(INVALID) & rules.violates(given.rules, "drop", "fail"))
    return broken.withColumn("reason", rules.violated_rule(given.rules, F.lit(None), "drop", "fail"))


def _bytes(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)
