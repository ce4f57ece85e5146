"""Every cell of the matrix on real Spark: what it refuses Spark refuses too, or takes and does wrong; the rest runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from headrace import DeltaAppend, Flow, InMemory, Input, KafkaSource, Noop, OutputMode, RocksDB, Target
from headrace.flow.checks import matrix
from headrace.flow.checks.matrix import Compatibility
from headrace.flow.checks.operators import OperatorKind
from headrace.flow.run_cache import RunCache
from headrace.flow.sink import Batch, Sink
from headrace.runtime.session import flow_session
from headrace.spark_plan.operators import read_operators, unsupported_operation_message
from headrace.spark_plan.planning import empty_stream
from operator_examples import AGGREGATED, BOUNDS, EXAMPLES, JOINS, ROW, UP_TO, Example, alarms, bare, joined
from sink_examples import LOCAL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.spark

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
Rows = Sequence[tuple[str, int, int]]


def marked(rows: DataFrame) -> DataFrame:
    return rows.withWatermark("at", "1 minute")


def blanks(spark: SparkSession) -> tuple[DataFrame, DataFrame]:
    return marked(empty_stream(spark, ROW)), marked(empty_stream(spark, ROW))


@dataclass(frozen=True)
class Stage:
    """Two folders with one file per batch, and a session with the settings of flows."""

    session: SparkSession
    folder: Path

    def put(self, batches: Sequence[Rows]) -> None:
        """Write the batches, of rows as (id, n, minutes after noon), to both folders."""
        for number, batch in enumerate(batches):
            rows = [{"id": key, "n": n, "at": NOON + timedelta(minutes=at)} for key, n, at in batch]
            for side in ("left", "right"):
                path = self.folder / side / f"{number}.parquet"
                path.parent.mkdir(parents=True, exist_ok=True)
                pq.write_table(pa.Table.from_pylist(rows, schema=to_arrow_schema(ROW, timezone="UTC")), path)
                # Spark takes files by their times, in milliseconds: two written within one come in any order.
                os.utime(path, (NOON.timestamp() + number,) * 2)

    def streams(self) -> tuple[DataFrame, DataFrame]:
        reader = self.session.readStream.schema(ROW).option("maxFilesPerTrigger", "1")
        left, right = (marked(reader.parquet(str(self.folder / side))) for side in ("left", "right"))
        return left, right

    def start(
        self, rows: DataFrame, mode: OutputMode, name: str, stored: list[list[tuple[object, ...]]]
    ) -> StreamingQuery:
        def store(batch: DataFrame, _number: int) -> None:
            stored.append(sorted(tuple(row) for row in batch.collect()))

        return (
            rows.writeStream.outputMode(mode.value)
            .foreachBatch(store)
            .option("checkpointLocation", str(self.folder / name))
            .trigger(availableNow=True)
            .start()
        )

    def outcomes(self, created: dict[OutputMode, DataFrame]) -> dict[OutputMode, str]:
        """Run a frame in each mode, concurrently, and return for each whether Spark refused it or it ran to its end."""
        actual, running = {}, {}
        for mode, rows in created.items():
            try:
                running[mode] = self.start(rows, mode, mode.value, [])
            except PySparkException:
                actual[mode] = "refused"
        for mode, query in running.items():
            try:
                query.awaitTermination()
                actual[mode] = "ran"
            except PySparkException:
                actual[mode] = "refused"
        return actual

    def played(self, example: Example, mode: OutputMode, batches: Sequence[Rows]) -> list[list[tuple[object, ...]]]:
        """Return what Spark hands on, batch by batch."""
        self.put(batches)
        stored: list[list[tuple[object, ...]]] = []
        self.start(example(*self.streams()), mode, "played", stored).awaitTermination()
        return stored


@pytest.fixture
def stage(spark: SparkSession, tmp_path: Path) -> Stage:
    return Stage(_session(spark, InMemory(shuffle_partitions=1)), tmp_path)


def _session(spark: SparkSession, state: InMemory | RocksDB) -> SparkSession:
    created = Flow("matrix", Input(KafkaSource("t"), schema=ROW), lambda rows: rows, Noop(), state=state)
    session = flow_session(spark, created)
    # One batch is enough to see whether a query runs.
    session.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    if isinstance(state, InMemory):
        # To compile a plan takes longer than to run it over three rows. Custom state needs compiled plans.
        session.conf.set("spark.sql.codegen.wholeStage", "false")
        session.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    return session


def expected(example: Example, spark: SparkSession, mode: OutputMode) -> str:
    actual = matrix.cells_in_mode(read_operators(example(*blanks(spark)), 2), mode)
    return "refused" if any(cell.verdict is Compatibility.REFUSED for _, cell in actual) else "ran"


def test_every_kind_but_the_unknown_has_an_example_and_all_cells() -> None:
    assert set(EXAMPLES) == set(OperatorKind) - {OperatorKind.OTHER}
    assert set(matrix.MODES) == set(OperatorKind)
    with_aggregation = {
        kind
        for kind, row in matrix.MODES.items()
        if any(cell.verdict is Compatibility.WITH_AGGREGATION for cell in row)
    }
    assert set(AGGREGATED) == with_aggregation - {OperatorKind.OTHER}


def test_the_kinds_are_read_from_the_plans(spark: SparkSession) -> None:
    actual = {
        kind: {operator.kind for operator in read_operators(make(*blanks(spark)), 2)} for kind, make in EXAMPLES.items()
    }
    assert {kind: kinds for kind, kinds in actual.items() if kind not in kinds} == {}
    # What an example is not about must not be found in it, or cells would be judged by another kind's verdict.
    plain = {OperatorKind.PROJECTION, OperatorKind.PYTHON}
    besides = {kind: kinds - {kind} - plain for kind, kinds in actual.items() if kinds - {kind} - plain}
    assert besides == {
        OperatorKind.READ_TWICE: {OperatorKind.UNION},
        OperatorKind.DISTINCT_AGGREGATE: {OperatorKind.AGGREGATE},
        OperatorKind.PANDAS_AGGREGATE: {OperatorKind.AGGREGATE},
        OperatorKind.PANDAS_STATE_WITHOUT_WATERMARK: {OperatorKind.PANDAS_STATE_APPEND},
        OperatorKind.PANDAS_STATE_TWICE: {OperatorKind.PANDAS_STATE_APPEND},
        OperatorKind.PANDAS_STATE_AFTER_AGGREGATE: {
            OperatorKind.PANDAS_STATE_APPEND,
            OperatorKind.AGGREGATE,
            OperatorKind.STATE_AFTER_AGGREGATE,
        },
        OperatorKind.PANDAS_UPDATES_AGGREGATED: {OperatorKind.PANDAS_STATE_UPDATE, OperatorKind.AGGREGATE_UNBOUNDED},
        OperatorKind.STATE_AFTER_AGGREGATE: {OperatorKind.AGGREGATE},
        OperatorKind.DEDUP_AFTER_AGGREGATE: {OperatorKind.AGGREGATE, OperatorKind.DEDUP_UNBOUNDED},
        OperatorKind.STATE_AFTER_TIMEOUTS: {OperatorKind.PANDAS_STATE_APPEND, OperatorKind.AGGREGATE_UNBOUNDED},
        OperatorKind.SORT: {OperatorKind.AGGREGATE_UNBOUNDED},
    }


def test_of_every_join_it_is_known_which_side_never_ends_and_spark_takes_the_same_ones(spark: SparkSession) -> None:
    for (how, bound), (kind, endless) in JOINS.items():
        left, right = blanks(spark)
        rows = joined(how, BOUNDS[bound])(left, right)
        actual = {
            operator.kind: set(operator.unbounded_inputs)
            for operator in read_operators(rows, 2, {"left": left, "right": right})
        }
        assert actual == {kind: endless, OperatorKind.PROJECTION: set()}, (how, bound)
        refused = matrix.MODES[kind][0].verdict is Compatibility.REFUSED
        assert refused == bool(unsupported_operation_message(rows, OutputMode.APPEND)), (how, bound)


@pytest.mark.parametrize("kind", EXAMPLES, ids=lambda kind: kind.name.lower())
def test_spark_accepts_and_refuses_the_same_queries_as_the_matrix(
    stage: Stage, spark: SparkSession, kind: OperatorKind
) -> None:
    if kind in (OperatorKind.CUSTOM_STATE, OperatorKind.CUSTOM_TIMERS_WITHOUT_WATERMARK):
        stage = Stage(_session(spark, RocksDB(shuffle_partitions=1)), stage.folder)
    stage.put([[("a", 1, 0), ("a", 2, 0), ("b", 3, 1)]])
    created = {mode: EXAMPLES[kind] for mode in OutputMode}
    if kind in AGGREGATED:
        # Without an aggregation complete mode is refused immediately; whether it runs with one is what is asked.
        assert unsupported_operation_message(EXAMPLES[kind](*blanks(spark)), OutputMode.COMPLETE)
        created[OutputMode.COMPLETE] = AGGREGATED[kind]
    required = {mode: expected(make, spark, mode) for mode, make in created.items()}
    assert stage.outcomes({mode: make(*stage.streams()) for mode, make in created.items()}) == required


def test_continuous_processing_refuses_what_the_matrix_refuses_there(spark: SparkSession, tmp_path: Path) -> None:
    nowhere = Target("t", str(tmp_path), str(tmp_path), kafka={"bootstrap.servers": "127.0.0.1:1"})

    def stream() -> DataFrame:
        read = KafkaSource("t").for_continuous().stream(spark, nowhere)
        return marked(
            read.select(F.col("key").cast("string").alias("id"), F.lit(1).alias("n"), read.timestamp.alias("at"))
        )

    def refused(make: Example) -> bool:
        rows = make(stream(), stream())
        try:
            # Spark judges the plan before it asks the broker, which is not there.
            writer = rows.select(F.lit("x").alias("value")).writeStream.format("kafka").option("topic", "o")
            writer = writer.options(**{"kafka.bootstrap.servers": "127.0.0.1:1"})
            writer.option("checkpointLocation", str(tmp_path / "c")).trigger(continuous="1 second").start()
        except AnalysisException:
            return True
        return False

    stopped = {kind: matrix.trigger_compatibility(kind)[0].stops for kind in EXAMPLES}
    # What is let through runs in the tests with a broker.
    assert {kind for kind, stops in stopped.items() if not stops} == {OperatorKind.PROJECTION, OperatorKind.PYTHON}
    assert [kind for kind, stops in stopped.items() if stops and not refused(EXAMPLES[kind])] == []


# ---- what Spark takes, and does wrong or otherwise than it seems ----

SAME_KEY: Sequence[Rows] = [[("a", 1, 0)], [("a", 2, 0)]]


def test_duplicates_dropped_behind_an_aggregation_lose_its_updates(stage: Stage) -> None:
    played = stage.played(EXAMPLES[OperatorKind.DEDUP_AFTER_AGGREGATE], OutputMode.UPDATE, SAME_KEY)
    # The count of `a` is 2 by the end, and no row reports it.
    assert [[row[-1] for row in batch] for batch in played] == [[1], []]


def test_timers_without_a_watermark_never_ring(spark: SparkSession, stage: Stage) -> None:
    session = _session(spark, RocksDB(shuffle_partitions=1))
    # The timer is set in the first batch, the second one moves the watermark past it, and the third one sees that.
    batches: Sequence[Rows] = [[("a", 1, 0)], [("b", 2, 120)], [("c", 2, 121)]]
    with_one = Stage(session, stage.folder / "with").played(lambda rows, _: alarms(rows), OutputMode.APPEND, batches)
    without = Stage(session, stage.folder / "without").played(
        lambda rows, _: alarms(bare(rows)), OutputMode.APPEND, batches
    )
    assert (with_one, without) == ([[], [], [("a",)]], [[], [], []])


def test_rows_of_except_all_come_again_in_update_mode(stage: Stage) -> None:
    played = stage.played(EXAMPLES[OperatorKind.EXCEPT], OutputMode.UPDATE, SAME_KEY)
    # Two rows went in, so two should come out.
    assert played == [[("a",)], [("a",), ("a",)]]


def test_a_limit_counts_over_all_batches(stage: Stage) -> None:
    batches: Sequence[Rows] = [[("a", 1, 0)], [("b", 2, 0), ("c", 3, 0)], [("d", 4, 0)]]
    played = stage.played(EXAMPLES[OperatorKind.LIMIT], OutputMode.APPEND, batches)
    assert [len(batch) for batch in played] == [1, 1, 0]


def test_a_function_per_group_sees_the_rows_of_one_batch(stage: Stage) -> None:
    def sizes(rows: DataFrame, _: DataFrame) -> DataFrame:
        return rows.groupBy("id").applyInPandas(lambda group: group[["n"]].count().to_frame().T, "n long")

    assert stage.played(sizes, OutputMode.APPEND, SAME_KEY) == [[(1,)], [(1,)]]


def test_state_without_a_watermark_stays_and_with_one_it_expires(spark: SparkSession, stage: Stage) -> None:
    def stored(example: Example, folder: str) -> int:
        place = Stage(stage.session, stage.folder / folder)
        # Each batch is an hour later than the one before, so each but the last lies behind the watermark.
        place.put([[(str(number), 1, 60 * number)] for number in range(4)])
        query = place.start(example(*place.streams()), OutputMode.APPEND, "state", [])
        query.awaitTermination()
        progress = query.lastProgress
        assert progress is not None
        return sum(operator.numRowsTotal for operator in progress.stateOperators)

    assert stored(EXAMPLES[OperatorKind.DEDUP_UNBOUNDED], "ever") == 4
    assert stored(EXAMPLES[OperatorKind.DEDUP_WITHIN], "within") < 4
    assert stored(EXAMPLES[OperatorKind.INNER_JOIN_UNBOUNDED], "join-ever") == 8
    assert stored(EXAMPLES[OperatorKind.INNER_JOIN], "join") < 8
    # Both sides have the same four rows: those on the right stay, and of those on the left the last ones.
    assert 4 < stored(EXAMPLES[OperatorKind.OUTER_JOIN_HALF_BOUNDED], "join-half") < 8


def test_a_full_join_with_a_half_open_bound_writes_the_unmatched_rows_of_one_side_only(stage: Stage) -> None:
    def apart(left: DataFrame, right: DataFrame) -> DataFrame:
        # Nothing finds a partner.
        right = right.withColumn("id", F.concat(F.lit("right "), "id"))
        return left.alias("l").join(right.alias("r"), F.expr(UP_TO), "full").select(F.coalesce("l.id", "r.id"))

    played = stage.played(apart, OutputMode.APPEND, [[("a", 1, 0)], [("b", 2, 180)], [("c", 3, 360)], [("d", 4, 540)]])
    assert sorted(row for batch in played for row in batch) == [("a",), ("b",)]


# ---- sinks ----


def test_every_sink_takes_its_modes_and_the_refused_ones_would_go_wrong(
    spark: SparkSession, stage: Stage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = Target("matrix", lake=str(tmp_path / "lake"), checkpoints=str(tmp_path / "checkpoints"))
    stage.put(SAME_KEY)

    def sinks(mode: OutputMode) -> list[Sink]:
        every = [make(mode) for make in LOCAL.values()]
        return [sink for sink in every if mode in sink.output_modes]

    def play(mode: OutputMode, into: Sequence[Sink], flow: str) -> None:
        def write(rows: DataFrame, number: int) -> None:
            stored = rows.persist()
            for step, sink in enumerate(into):
                sink.write(stored, Batch(flow, f"{flow}-1", number, target, mode=mode, step=str(step)))

        for sink in into:
            sink.prepare(stage.session, target, RunCache())
        example = EXAMPLES[OperatorKind.PROJECTION if mode is OutputMode.APPEND else OperatorKind.AGGREGATE_UNBOUNDED]
        writer = example(*stage.streams()).writeStream.outputMode(mode.value).foreachBatch(write)
        query = writer.option("checkpointLocation", str(tmp_path / flow)).trigger(availableNow=True).start()
        query.awaitTermination()

    for mode in OutputMode:
        play(mode, sinks(mode), f"taken_{mode}")
    # `a` was counted as 1, then as 2. A table of appended rows keeps both, one of each batch alone only the last.
    play(OutputMode.UPDATE, [DeltaAppend("wrong")], "refused")

    def counts(table: str) -> list[int]:
        rows = spark.read.format("delta").load(target.table(table)).collect()
        return sorted(row["count"] for row in rows)

    assert counts("wrong") == [1, 2]
    assert counts("complete/replaced") == [2]
    assert counts("update/upserted") == [2]
