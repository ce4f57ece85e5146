"""The sinks that are killed, each with a flow into it and a model in plain Python of what it has to hold.

The stream comes in stages. A stage is what the sources get in one step, and a flow reads it in one batch; a flow with a
watermark runs a second batch without rows, which closes what the first one has passed.

To add a sink, add a line to `CASES`, and a reader to `readers` when its kind of place is new.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa
from deltalake import write_deltalake
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from crash.sqlite_store import SqliteTransaction
from headrace.cdc.capture.source_table import SourceColumn, SourceTable
from headrace.cdc.sink import Decoder, DeltaCdc
from headrace.flow.flow import Flow
from headrace.flow.guarantee import Guarantee
from headrace.flow.inputs import Input
from headrace.flow.levers import OutputMode, RocksDB, Watermark
from headrace.flow.run_cache import RunCache
from headrace.flow.sink import Batch, Sink, leaf_sinks
from headrace.flow.target import Target
from headrace.sinks.custom import CustomExactlyOnceSink
from headrace.sinks.delta.dimension import Dimension
from headrace.sinks.delta.enriched import DeltaEnriched
from headrace.sinks.delta.roll_ups import DeltaRollUps
from headrace.sinks.delta.upsert import DeltaUpsert
from headrace.sinks.delta.write import DeltaAppend, DeltaOverwrite
from headrace.sinks.fan_out import FanOut
from headrace.sinks.files import FileSink
from headrace.sinks.jdbc.upsert import JdbcUpsert
from headrace.sinks.kafka.exactly_once import KafkaExactlyOnceSink
from headrace.sinks.kafka.topic import KafkaSink
from headrace.sources.files import FileSource
from headrace.sources.kafka.source import KafkaSource

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.group import GroupedData

POINTS = {
    "P0": "before the offset log has the batch",
    "P1": "after it, before the sink begins",
    "P2": "in the middle of the sink's write",
    "P3": "after the sink's commit, before it returns",
    "P4": "after it has returned, before the commit log has the batch",
    "P5": "after the commit log has the batch",
}
# At these the batch has to be in the sink.
WRITTEN = ("P3", "P4", "P5")

TOPIC = "crash-events"
FOLDER = "crash-events"
SCHEMA = StructType(
    [StructField("key", StringType(), False), StructField("seq", LongType()), StructField("at", TimestampType())]
)
KEYS = [f"key-{number}" for number in range(8)]
_START = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
_EVENTS = 24
# So many that every stage has kinds that are new and kinds that are not.
_KINDS = 37
_DELETES = 5
# What a dimension knows of half of the keys.
RANKS = {key: 10 * number for number, key in enumerate(KEYS[::2])}
_RANKED = Dimension("ranks", key="name", columns=StructType([StructField("rank", LongType())]))

Row = dict[str, object]


@dataclass(frozen=True)
class Event:
    """One event. No two have the same `seq`."""

    key: str
    seq: int
    at: datetime

    def encoded(self) -> str:
        return json.dumps({"key": self.key, "seq": self.seq, "at": self.at.strftime("%Y-%m-%dT%H:%M:%SZ")})


def stage(seed: int, number: int) -> list[Event]:
    """Return the events of one stage, each key at least once: from minute `number` on, half a minute into the next."""
    chance = random.Random(f"{seed}-{number}")  # noqa: S311 - an example, not a secret
    keys = KEYS + chance.choices(KEYS, k=_EVENTS - len(KEYS))
    chance.shuffle(keys)
    minute = _START + timedelta(minutes=number)
    return [
        Event(key, number * _EVENTS + place, minute + timedelta(seconds=4 * place)) for place, key in enumerate(keys)
    ]


# ---- transforms, each with its model ----

Stages = Sequence[Sequence[Event]]


def pass_through(events: DataFrame) -> DataFrame:
    # In two tasks, so that one can have written while the other is under way.
    return events.select("key", "seq").repartition(2, "key")


def each_event(stages: Stages) -> list[Row]:
    return [{"key": event.key, "seq": event.seq} for events in stages for event in events]


def per_minute(events: DataFrame) -> DataFrame:
    result = events.groupBy(F.window("at", "1 minute"), "key").agg(
        F.count("*").alias("events"), F.sum("seq").alias("sum")
    )
    return result.select(F.unix_timestamp("window.start").alias("minute"), "key", "events", "sum")


def closed_minutes(stages: Stages) -> list[Row]:
    """The minutes that ended half a minute before the newest event, or earlier."""
    events = [event for stage in stages for event in stage]
    watermark = max((event.at for event in events), default=_START) - timedelta(seconds=30)
    minutes = sorted({event.at.replace(second=0) for event in events})
    return [
        {"minute": int(minute.timestamp()), **total}
        for minute in minutes
        if minute + timedelta(minutes=1) <= watermark
        for total in totals([[event for event in events if event.at.replace(second=0) == minute]])
    ]


def running_totals(events: DataFrame) -> DataFrame:
    return events.groupBy("key").agg(F.count("*").alias("events"), F.sum("seq").alias("sum"))


def totals(stages: Stages) -> list[Row]:
    events = [event for stage in stages for event in stage]
    return [
        {"key": key, "events": len(seqs), "sum": sum(seqs)}
        for key in KEYS
        if (seqs := [event.seq for event in events if event.key == key])
    ]


def first_of_a_kind(events: DataFrame) -> DataFrame:
    return events.select("key", F.expr(f"seq % {_KINDS}").alias("kind")).dropDuplicates(["key", "kind"])


def kinds(stages: Stages) -> list[Row]:
    result = {(event.key, event.seq % _KINDS) for events in stages for event in events}
    return [{"key": key, "kind": kind} for key, kind in sorted(result)]


def minutes_of_keys(events: DataFrame) -> DataFrame:
    result = events.groupBy(F.window("at", "1 minute"), "key").agg(
        F.count("*").alias("events"), F.sum("seq").alias("sum")
    )
    window = F.col("window.start").alias("window_start"), F.col("window.end").alias("window_end")
    return result.select(F.lit("1 minute").alias("grain"), *window, "key", "events", "sum")


def summed(rows: GroupedData) -> DataFrame:
    return rows.agg(F.sum("events").alias("events"), F.sum("sum").alias("sum"))


def minutes_and_hours(stages: Stages) -> list[Row]:
    """Every minute so far, and every hour: of each key what its events add up to."""
    events = [event for stage in stages for event in stage]
    minute, hour = {"second": 0}, {"minute": 0, "second": 0}
    grains = {"1 minute": (timedelta(minutes=1), minute), "1 hour": (timedelta(hours=1), hour)}
    return [
        {"grain": grain, "window_start": start, "window_end": start + length, **total}
        for grain, (length, floor) in grains.items()
        for start in sorted({event.at.replace(**floor) for event in events})
        for total in totals([[event for event in events if event.at.replace(**floor) == start]])
    ]


def beside_their_rank(stages: Stages) -> list[Row]:
    """Every event; those of a key that the dimension lacks wait in the table."""
    return [
        {**row, "rank": RANKS.get(str(row["key"])), "enriched": row["key"] in RANKS, "dimension_version": 0}
        for row in each_event(stages)
    ]


def as_envelopes(events: DataFrame) -> DataFrame:
    """Changes of two tables, derived from events: every fifth deletes the row of its key, the others set it."""
    missing = F.expr(f"seq % {_DELETES} = 0")
    columns = F.create_map(F.lit("key"), F.col("key"), F.lit("seq"), F.col("seq").cast("string"))
    return events.select(
        F.concat(F.lit("captured-"), _half()).alias("topic"),
        F.lit(0).alias("partition"),
        F.col("seq").alias("offset"),
        F.when(missing, "d").otherwise("u").alias("op"),
        columns.alias("columns"),
        F.when(~missing, columns).alias("after"),
    ).repartition(2, "topic", "offset")


def newest_rows(stages: Stages) -> list[Row]:
    newest = {event.key: event.seq for events in stages for event in sorted(events, key=lambda event: event.seq)}
    return [{"key": key, "seq": str(seq)} for key, seq in newest.items() if seq % _DELETES]


def make_dimension(target: Target) -> None:
    """Make the table that events are enriched from, before the first driver."""
    write_deltalake(target.table(_RANKED.path), pa.table({"name": list(RANKS), "rank": list(RANKS.values())}))


def _half() -> Column:
    return F.when(F.col("key") < KEYS[len(KEYS) // 2], "low").otherwise("high")


def _captured(topic: str, _target: Target) -> SourceTable:
    columns = tuple(SourceColumn(name, "text", nullable=True) for name in ("key", "seq"))
    return SourceTable("public", topic.removeprefix("captured-"), columns, ("key",), "postgres")


def _decoder(table: SourceTable) -> Decoder:
    after = F.struct(*(F.col("after")[column.name].alias(column.name) for column in table.columns))
    return lambda rows: rows.select(
        F.col("op").alias("_op"),
        F.lpad(F.col("offset").cast("string"), 20, "0").alias("_position"),
        F.col("partition").alias("_partition"),
        F.col("offset").alias("_offset"),
        F.timestamp_seconds("offset").alias("_commit_time"),
        F.lit(None).cast("string").alias("_transaction"),
        F.struct(F.col("columns")["key"].alias("key")).alias("_key"),
        F.when(F.col("after").isNotNull(), after).alias("_after"),
        F.array().cast("array<string>").alias("_unavailable"),
    )


# ---- the table ----


@dataclass(frozen=True)
class CarelessAppend:
    """What `DeltaAppend` would be without its promise: an append that does not say which batch it is.

    Not one of its kind: those are asked before each start which batches they hold, and this one would be refused.
    """

    path: str
    name: str = "careless"
    guarantee: ClassVar[Guarantee] = Guarantee.AT_LEAST_ONCE
    output_modes: ClassVar[frozenset[OutputMode]] = frozenset({OutputMode.APPEND})

    def preflight(self, target: Target) -> None: ...

    def prepare(self, spark: SparkSession, target: Target, cache: RunCache) -> None: ...

    def write(self, rows: DataFrame, batch: Batch) -> None:
        rows.write.format("delta").mode("append").save(batch.target.table(self.path))


@dataclass(frozen=True)
class Case:
    """One sink under test.

    | field      | meaning                                                                                      |
    |------------|----------------------------------------------------------------------------------------------|
    | model      | the rows that each place of the sink holds after these stages                                |
    | delay      | of the watermark; a flow that has one runs two batches per stage                             |
    | from_files | whether the events come as files, not by Kafka                                               |
    | middle     | the number of the place that P2 is in the middle of; those before it have the batch          |
    | in_parts   | whether readers may see a part of a batch before the rest                                    |
    | repeats    | the points after which rows are there twice: none, for a sink that promises exactly once     |
    | family     | the cases that `make certify` runs together                                                  |
    """

    family: str
    name: str
    sink: Sink
    model: Callable[[Stages], list[Row]] = each_event
    transform: Callable[[DataFrame], DataFrame] = pass_through
    output_mode: str = "append"
    delay: str | None = None
    from_files: bool = False
    middle: int = 0
    in_parts: bool = False
    repeats: tuple[str, ...] = ()

    @property
    def places(self) -> list[Sink]:
        return [sink for _step, sink in leaf_sinks(self.sink)]

    def first_batch(self, number: int) -> int:
        """Return the batch that reads a stage."""
        return number * (2 if self.delay else 1)

    def last_batch(self, number: int) -> int:
        """Return the batch that is done with a stage."""
        return self.first_batch(number + 1) - 1

    def batch_to_die_in(self, point: str, number: int) -> int:
        # A batch without rows follows from what the driver has in memory: a new driver does not plan it again.
        return self.first_batch(number) if point == "P0" else self.last_batch(number)

    def flow(self, sink: Sink) -> Flow:
        """Return the flow, into `sink` in place of the case's own."""
        if self.from_files:
            source, schema = FileSource(FOLDER, "json", SCHEMA, max_files_per_trigger=1), None
        else:
            source, schema = KafkaSource(TOPIC), SCHEMA
        return Flow(
            self.name,
            Input(source, schema=schema, watermark=Watermark("at", self.delay) if self.delay else None),
            self.transform,
            sink,
            state=RocksDB(shuffle_partitions=2),
            output_mode=self.output_mode,
        )

    def expected(self, stages: Stages, earlier: Stages | None = None) -> Counter[tuple[int, str]]:
        """Return the rows of every place; in those before the middle, the rows of the stages `earlier`."""
        return Counter(
            (place, canonical(row))
            for place in range(len(self.places))
            for row in self.model(earlier if earlier is not None and place < self.middle else stages)
        )


def canonical(row: Row) -> str:
    return json.dumps(row, sort_keys=True, default=str)


CASES = {
    case.name: case
    for case in (
        Case("delta", "delta-append", DeltaAppend("append"), closed_minutes, per_minute, delay="30 seconds"),
        Case("delta", "delta-upsert", DeltaUpsert("upsert", ["key"], "events"), totals, running_totals, "update"),
        Case(
            "delta",
            "delta-roll-ups",
            DeltaRollUps("roll-ups", ["grain", "window_start", "key"], grains=["1 minute", "1 hour"], combine=summed),
            minutes_and_hours,
            minutes_of_keys,
            "update",
        ),
        Case("delta", "delta-enriched", DeltaEnriched("enriched", key="key", dimension=_RANKED), beside_their_rank),
        Case("delta", "delta-overwrite", DeltaOverwrite("overwrite"), totals, running_totals, "complete"),
        Case("stores", "delta-cdc", DeltaCdc("cdc", _captured, _decoder), newest_rows, as_envelopes),
        Case("stores", "files", FileSink("files"), from_files=True),
        Case("kafka", "kafka", KafkaExactlyOnceSink("crash-kafka", key="key")),
        Case("kafka", "kafka-slots", KafkaExactlyOnceSink("crash-slots", key="key", slots=2), in_parts=True),
        Case(
            "kafka",
            "fan-out",
            FanOut(DeltaAppend("fan"), KafkaExactlyOnceSink("crash-fan", key="key"), FileSink("fan-files", "json")),
            kinds,
            first_of_a_kind,
            from_files=True,
            middle=1,
        ),
        Case("stores", "jdbc", JdbcUpsert("shop", "crash_totals", ["key"], "events"), totals, running_totals, "update"),
        Case("stores", "custom", CustomExactlyOnceSink("shelf", SqliteTransaction), from_files=True),
        Case("delta", "careless-append", CarelessAppend("careless"), repeats=("P3", "P4")),
        Case("kafka", "kafka-at-least-once", KafkaSink("crash-plain", key="key"), repeats=("P2", "P3", "P4")),
    )
}


def family(name: str) -> dict[str, Case]:
    """Return the cases of a family, by name."""
    return {case.name: case for case in CASES.values() if case.family == name}
