"""Sinks that end in a part or in several tables, in every output mode: what their readers see after two batches.

Those that need no part are played in `tests/spark/test_matrix.py`.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

import headrace
from cdc_changes import decoder
from crash.readers import rows_in
from crash.sqlite_store import SqliteTransaction
from headrace import (
    CustomExactlyOnceSink,
    FanOut,
    Filtered,
    Flow,
    InMemory,
    Input,
    JdbcUpsert,
    KafkaExactlyOnceSink,
    KafkaSink,
    KafkaSource,
    Noop,
    OutputMode,
    Rest,
    Severity,
    Target,
    cdc,
    check,
    sinks,
)
from headrace.cdc.apply.change_log import ChangeLog
from headrace.cdc.capture.source_table import SourceColumn, SourceTable
from headrace.cdc.sink import DeltaCdc
from headrace.clients.topics import create_topics
from headrace.flow.run_cache import RunCache
from headrace.flow.sink import Batch, Sink, WritesTopic, leaf_sinks
from headrace.flow.target import HttpEndpoint
from headrace.runtime.session import flow_session
from headrace.sinks.delta.dimension import Dimension
from headrace.sinks.delta.enriched import DeltaEnriched
from headrace.sinks.delta.roll_ups import DeltaRollUps
from operator_examples import ROW
from rest_service import Ledger, serving
from sink_examples import LOCAL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from conftest import Broker
    from headrace.flow.target import Database

APPEND, UPDATE, COMPLETE = OutputMode
Row = Mapping[str, Any]

# 2026-01-01T12:00:00Z
NOON = 1_767_268_800
# What a flow reads, batch by batch: `id`, `n` and minutes after noon.
BATCHES = ([("a", 10, 0), ("b", 20, 5), ("c", 30, 10)], [("a", 11, 0), ("c", 31, 10)])


def as_read(rows: DataFrame) -> DataFrame:
    return rows


def totals(rows: DataFrame) -> DataFrame:
    return rows.groupBy("id", "at").agg(F.sum("n").cast("int").alias("n"))


def small_totals(rows: DataFrame) -> DataFrame:
    return totals(rows).where("n < 60")


# The results that sinks are handed: a=10 b=20 c=30, and then
#   append:    a=11 c=31
#   update:    a=21 c=61
#   complete:  a=21 b=20, for the total of c is not small any more.
TRANSFORMS = {APPEND: as_read, UPDATE: totals, COMPLETE: small_totals}


# ---- the rows as each sink takes them ----


def plain(rows: DataFrame, _batch: int) -> DataFrame:
    return rows.select("id", "n")


def windows(rows: DataFrame, _batch: int) -> DataFrame:
    times = F.col("at").alias("window_start"), F.expr("at + INTERVAL 5 MINUTES").alias("window_end")
    return rows.select(F.lit("5 minutes").alias("grain"), *times, "n")


def envelopes(rows: DataFrame, batch: int) -> DataFrame:
    position = (F.lit(100 * batch) + F.col("n")).cast("bigint")
    values = "map<string,string>"
    return rows.select(
        F.lit("shop.items").alias("topic"),
        F.lit(0).alias("partition"),
        position.alias("offset"),
        F.col("id").alias("key"),
        F.lit("u" if batch else "c").alias("op"),
        F.lit(None).cast(values).alias("before"),
        F.create_map(F.lit("id"), F.col("id"), F.lit("n"), F.col("n").cast("string")).alias("after"),
        F.struct(position.alias("lsn")).alias("source"),
    )


# ---- a row as the tables below show it ----


def pair(row: Row) -> str:
    return f"{row['id']}={row['n']}"


def pair_and_name(row: Row) -> str:
    return f"{pair(row)}:{row['name'] or '-'}"


def window(row: Row) -> str:
    name = "hour" if row["grain"] == "1 hour" else f"{row['window_start']:%H:%M}"
    return f"{name}={row['n']}"


def change(row: Row) -> str:
    return pair(row["after"])


@dataclass(frozen=True)
class Case:
    """A sink, and by output mode what its readers see in the end.

    Records of a topic, requests and rows of the store come in their order, rows of a table by name. A line parts the
    sinks of a fan-out.
    """

    sink: Callable[[OutputMode], Sink]
    contents: Mapping[OutputMode, str]
    shape: Callable[[DataFrame, int], DataFrame] = plain
    text: Callable[[Row], str] = pair


def topic(name: str) -> Callable[[OutputMode], KafkaSink]:
    return lambda mode: KafkaSink(f"sink-modes-{mode}-{name}", key="id")


def table(name: str) -> Callable[[OutputMode], JdbcUpsert]:
    return lambda mode: JdbcUpsert("shop", f"sink_modes_{mode}_{name}", key=["id"])


def roll_up(mode: OutputMode) -> DeltaRollUps:
    return DeltaRollUps(
        f"{mode}/rolled-up",
        ["grain", "window_start"],
        grains=["5 minutes", "1 hour"],
        combine=lambda parts: parts.agg(F.sum("n").cast("int").alias("n")),
    )


NAMES = Dimension("names", key="id", columns=StructType([StructField("name", StringType())]))


def enriched(mode: OutputMode) -> DeltaEnriched:
    return DeltaEnriched(f"{mode}/enriched", key="id", dimension=NAMES)


def items(_topic: str, _target: Target) -> SourceTable:
    columns = tuple(SourceColumn(name, "text", nullable=True) for name in ("id", "n"))
    return SourceTable("public", "items", columns, ("id",), "postgres")


STREAM = {
    APPEND: "a=10 b=20 c=30 a=11 c=31",
    UPDATE: "a=10 b=20 c=30 a=21 c=61",
    # The result comes again as often as there are batches, and nothing says that c has left it.
    COMPLETE: "a=10 b=20 c=30 a=21 b=20",
}
SHORT_STREAM = {APPEND: "a=10 b=20 a=11", UPDATE: "a=10 b=20 a=21", COMPLETE: "a=10 b=20 a=21 b=20"}
BY_KEY = {APPEND: "a=11 b=20 c=31", UPDATE: "a=21 b=20 c=61"}
SHORT_BY_KEY = {APPEND: "a=11 b=20", UPDATE: "a=21 b=20"}

# Every sink in every mode that it takes.
TAKEN = {
    "KafkaSink": Case(topic("plain"), STREAM),
    "KafkaExactlyOnceSink": Case(lambda mode: KafkaExactlyOnceSink(f"sink-modes-{mode}-once", key="id"), STREAM),
    "CustomExactlyOnce": Case(lambda _mode: CustomExactlyOnceSink("shelf", SqliteTransaction), STREAM),
    "Rest": Case(lambda _mode: Rest("crm"), {mode: STREAM[mode] for mode in (APPEND, UPDATE)}),
    "JdbcUpsert": Case(table("by_key"), BY_KEY),
    "DeltaRollUps": Case(
        roll_up,
        {APPEND: "12:00=11 12:05=20 12:10=31 hour=62", UPDATE: "12:00=21 12:05=20 12:10=61 hour=102"},
        windows,
        window,
    ),
    "DeltaEnriched": Case(enriched, {APPEND: "a=10:Ann a=11:Ann b=20:- c=30:- c=31:-"}, text=pair_and_name),
    "DeltaCdc": Case(lambda mode: DeltaCdc(f"{mode}/mirrored", items, decoder), {APPEND: "a=11 b=20 c=31"}, envelopes),
    "Only": Case(lambda mode: Filtered("n < 30", topic("short")(mode)), SHORT_STREAM),
    "FanOut of topics": Case(
        lambda mode: FanOut(topic("fan")(mode), Filtered("n < 30", topic("fan-short")(mode))),
        {mode: f"{STREAM[mode]} | {SHORT_STREAM[mode]}" for mode in OutputMode},
    ),
    "FanOut of a topic and a table": Case(
        lambda mode: FanOut(topic("fan-with-table")(mode), Filtered("n < 30", table("fan_short")(mode))),
        {mode: f"{STREAM[mode]} | {SHORT_BY_KEY[mode]}" for mode in (APPEND, UPDATE)},
    ),
}

# What readers would see in the modes that a sink refuses.
REFUSED = {
    # The result is a=21 b=20: c stays, or was never taken back.
    "Rest": Case(lambda _mode: Rest("crm"), {COMPLETE: "a=10 b=20 c=30 a=21 b=20"}),
    "JdbcUpsert": Case(table("by_key"), {COMPLETE: "a=21 b=20 c=30"}),
    # The result adds up to 41.
    "DeltaRollUps": Case(roll_up, {COMPLETE: "12:00=21 12:05=20 12:10=30 hour=71"}, windows, window),
    # The first a is no row of the result any more, and b is only one.
    "DeltaEnriched": Case(
        enriched,
        {UPDATE: "a=10:Ann a=21:Ann b=20:- c=30:- c=61:-", COMPLETE: "a=10:Ann a=21:Ann b=20:- b=20:- c=30:-"},
        text=pair_and_name,
    ),
    # A change that replaces an earlier one is one change more.
    "DeltaCdc": Case(
        lambda mode: DeltaCdc(f"{mode}/logged", items, decoder, stored_as=ChangeLog()),
        {UPDATE: "a=10 a=21 b=20 c=30 c=61", COMPLETE: "a=10 a=21 b=20 b=20 c=30"},
        envelopes,
        change,
    ),
}


@dataclass(frozen=True)
class Stage:
    """A folder with a file per batch, and a target of its own."""

    session: SparkSession
    target: Target
    folder: Path

    def put(self, batches: Sequence[Sequence[tuple[str, int, int]]]) -> None:
        (self.folder / "in").mkdir()
        for number, batch in enumerate(batches):
            rows = [{"id": key, "n": n, "at": f"2026-01-01T12:{minute:02}:00Z"} for key, n, minute in batch]
            path = self.folder / "in" / f"{number}.json"
            path.write_text("\n".join(map(json.dumps, rows)))
            # Files are read in the order of their times, which two of one millisecond do not have.
            os.utime(path, (NOON + number, NOON + number))

    def play(self, mode: OutputMode, into: Sequence[tuple[Sink, Case]]) -> None:
        """Run one query in the mode, and hand each batch to all sinks."""

        def write(rows: DataFrame, number: int) -> None:
            batch = rows.coalesce(1).sortWithinPartitions("id").persist()
            for step, (sink, case) in enumerate(into):
                attempt = Batch(f"sink-modes-{mode}", "q1", number, self.target, mode=mode, step=str(step))
                sink.write(case.shape(batch, number), attempt)
            batch.unpersist()

        for sink, _case in into:
            sink.preflight(self.target)
            sink.prepare(self.session, self.target, RunCache())
        stream = self.session.readStream.schema(ROW).option("maxFilesPerTrigger", "1").json(str(self.folder / "in"))
        writer = TRANSFORMS[mode](stream).writeStream.outputMode(mode.value).foreachBatch(write)
        query = writer.option("checkpointLocation", str(self.folder / "cp")).trigger(availableNow=True).start()
        query.awaitTermination()


def read(sink: Sink, case: Case, target: Target, service: Ledger) -> str:
    """Return what the readers of a sink see."""
    parts = []
    for _step, leaf in leaf_sinks(sink):
        if isinstance(leaf, Rest):
            rows = [row for request in service.taken.values() for row in request]
        else:
            rows = list(rows_in(leaf, target, settled=True))
        texts = [case.text(row) for row in rows]
        in_order = isinstance(leaf, WritesTopic | Rest | CustomExactlyOnceSink)
        parts.append(" ".join(texts if in_order else sorted(texts)))
    return " | ".join(parts)


@dataclass(frozen=True)
class ModeResult:
    """What the readers of all sinks see after a query in one mode, by the names of the cases."""

    mode: OutputMode
    taken: Mapping[str, str]
    refused: Mapping[str, str]


@pytest.fixture(scope="module", params=OutputMode, ids=str)
def mode_result(
    request: pytest.FixtureRequest,
    spark: SparkSession,
    broker: Broker,
    postgres: Database,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ModeResult]:
    """Play all sinks in a mode by one query."""
    mode, folder = request.param, tmp_path_factory.mktemp("sink-modes")
    levers = Flow(
        "sink-modes", Input(KafkaSource("t"), schema=ROW), as_read, Noop(), state=InMemory(shuffle_partitions=1)
    )
    with serving() as service:
        target = Target(
            "sink-modes",
            lake=str(folder / "lake"),
            checkpoints=str(folder / "checkpoints"),
            kafka={"bootstrap.servers": broker.bootstrap},
            databases={"shop": postgres},
            services={"crm": HttpEndpoint(service.url, private=True)},
        )
        session = flow_session(spark, levers)
        # To compile a plan takes longer than to run it over three rows.
        session.conf.set("spark.sql.codegen.wholeStage", "false")
        stage = Stage(session, target, folder)
        stage.put(BATCHES)
        write_deltalake(target.table(NAMES.path), pa.table({"id": ["a"], "name": ["Ann"]}))
        taken, refused = (
            {name: (case.sink(mode), case) for name, case in cases.items() if mode in case.contents}
            for cases in (TAKEN, REFUSED)
        )
        into = [*taken.values(), *refused.values()]
        topics = [
            leaf.written_topic()
            for sink, _case in into
            for _step, leaf in leaf_sinks(sink)
            if isinstance(leaf, WritesTopic)
        ]
        create_topics(target.kafka, dict.fromkeys(topics, 1))
        stage.play(mode, into)
        yield ModeResult(
            mode,
            {name: read(sink, case, target, service) for name, (sink, case) in taken.items()},
            {name: read(sink, case, target, service) for name, (sink, case) in refused.items()},
        )


def in_mode(cases: Mapping[str, Case], mode: OutputMode) -> dict[str, str]:
    return {name: case.contents[mode] for name, case in cases.items() if mode in case.contents}


@pytest.mark.stack
@pytest.mark.spark
def test_readers_of_a_sink_see_what_its_output_mode_hands_on(mode_result: ModeResult) -> None:
    assert mode_result.taken == in_mode(TAKEN, mode_result.mode)


@pytest.mark.stack
@pytest.mark.spark
def test_readers_of_a_sink_would_see_wrong_rows_in_a_mode_that_it_refuses(mode_result: ModeResult) -> None:
    assert mode_result.refused == in_mode(REFUSED, mode_result.mode)


def test_a_sink_declares_the_modes_in_which_it_is_played() -> None:
    declared = {name: case.sink(APPEND).output_modes for name, case in TAKEN.items()}
    assert declared == {name: set(case.contents) for name, case in TAKEN.items()}


def test_a_sink_is_played_in_the_modes_that_it_refuses() -> None:
    # A fan-out refuses what one of its sinks refuses.
    ends = {name: case for name, case in TAKEN.items() if not isinstance(case.sink(APPEND), FanOut)}
    refused = {name: set(OutputMode) - set(case.contents) for name, case in ends.items()}
    played = {name: set(case.contents) for name, case in REFUSED.items()}
    assert {name: modes for name, modes in refused.items() if modes} == played


@pytest.mark.parametrize("mode", OutputMode, ids=str)
@pytest.mark.parametrize("name", TAKEN)
def test_the_check_refuses_a_sink_in_the_modes_that_it_does_not_take(name: str, mode: OutputMode) -> None:
    sink = TAKEN[name].sink(mode)
    flow = Flow("sink-modes", Input(KafkaSource("t"), schema=ROW), as_read, sink, output_mode=mode)
    errors = [(finding.code, finding.place) for finding in check([flow]) if finding.severity is Severity.ERROR]
    if mode in TAKEN[name].contents:
        assert errors == []
    else:
        # Of a fan-out, the one that refuses.
        refusing = list(leaf_sinks(sink))[-1][1]
        assert errors == [("HRC-104", f"flow 'sink-modes', sink {refusing.name}")]


def public_sinks() -> set[type]:
    """Return the classes with all members of `Sink` that the packages with sinks and the root export."""
    packages = (sinks, cdc)
    names = [module.name for room in packages for module in pkgutil.walk_packages(room.__path__, f"{room.__name__}.")]
    modules = [headrace, *map(importlib.import_module, names)]
    classes = {kind for module in modules for kind in vars(module).values() if isinstance(kind, type)}
    members = {name for name in vars(Sink) if not name.startswith("_")}

    def has_all(kind: type) -> bool:
        fields = {field.name for field in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()
        return members <= {*dir(kind), *fields}

    return {kind for kind in classes - {Sink} if not kind.__name__.startswith("_") and has_all(kind)}


def test_every_public_sink_is_played() -> None:
    # A new one goes into `TAKEN`, and into `REFUSED` if it does not take every mode; into `LOCAL` if it needs no part.
    assert public_sinks() == {*LOCAL, *(type(case.sink(APPEND)) for case in TAKEN.values())}
