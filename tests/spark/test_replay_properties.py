"""However a stream is cut into batches, and however often each is attempted, an exactly-once sink holds the same.

To add a sink, add a `Subject` to SUBJECTS: how it is made, and what it holds.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, given, settings, strategies as st
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from headrace.clients.kafka import read_topic
from headrace.clients.topics import create_topics
from headrace.flow.guarantee import Guarantee
from headrace.flow.sink import Batch, Sink
from headrace.flow.target import Target
from headrace.sinks.custom import CustomExactlyOnceSink
from headrace.sinks.delta.upsert import DeltaUpsert
from headrace.sinks.delta.write import DeltaAppend, DeltaOverwrite
from headrace.sinks.files import FileSink
from headrace.sinks.kafka.exactly_once import KafkaExactlyOnceSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.stack]

# A key, and the number of the row in the stream.
Row = tuple[str, int]


# ---- the stream, and what is left of it, in plain Python ----


@dataclass(frozen=True)
class Stream:
    """Rows, cut into batches, and the attempts at each batch: True is complete, False stops half-way."""

    rows: tuple[Row, ...]
    batches: tuple[tuple[Row, ...], ...]
    attempts: tuple[tuple[bool, ...], ...]


@st.composite
def streams(draw: st.DrawFn) -> Stream:
    keys = draw(st.lists(st.sampled_from("abc"), min_size=3, max_size=8))
    rows = tuple((key, number) for number, key in enumerate(keys))
    cuts = sorted(draw(st.lists(st.integers(0, len(rows)), min_size=1, max_size=2)))
    bounds = [0, *cuts, len(rows)]
    batches = tuple(rows[start:end] for start, end in itertools.pairwise(bounds))
    # Spark continues with the next batch only after an attempt that succeeded.
    before = st.lists(st.booleans(), max_size=2).map(lambda created: (*created, True))
    return Stream(rows, batches, tuple(draw(before) for _ in batches))


def every_row(stream: Stream) -> list[Row]:
    return sorted(stream.rows)


def newest_per_key(stream: Stream) -> list[Row]:
    return sorted(dict(stream.rows).items())


# ---- the sinks, and what they hold ----


@dataclass(frozen=True)
class Subject:
    """A sink under test.

    | field       | meaning                                                                       |
    |-------------|-------------------------------------------------------------------------------|
    | sink        | makes the sink; the lake of the target is another one for each stream         |
    | stored_rows | reads the rows of the sink                                                    |
    | model       | the expected rows                                                             |
    | complete    | a batch is the complete result up to it, as in complete mode                  |
    | target      | makes the target below a folder; a broker or a database is asked for here     |
    """

    sink: Callable[[Target], Sink]
    stored_rows: Callable[[SparkSession, Target], list[Row]]
    model: Callable[[Stream], list[Row]] = every_row
    complete: bool = False
    target: Callable[[pytest.FixtureRequest, Path], Target] = lambda _request, folder: Target(
        "test", lake=str(folder / "lake"), checkpoints=str(folder / "checkpoints")
    )


def of_table(spark: SparkSession, target: Target) -> list[Row]:
    return sorted((row.key, row.number) for row in spark.read.format("delta").load(target.table("held")).collect())


def of_folder(spark: SparkSession, target: Target) -> list[Row]:
    return sorted((row.key, row.number) for row in FileSink("held").read(spark, target).collect())


class InSqlite:
    """One transaction of an SQLite database in the lake."""

    def __init__(self, target: Target) -> None:
        Path(target.lake).mkdir(parents=True, exist_ok=True)
        self._connection = sqlite3.connect(target.table("held.db"), isolation_level=None)
        self._connection.execute("CREATE TABLE IF NOT EXISTS epochs (key TEXT PRIMARY KEY, text TEXT)")
        self._connection.execute("CREATE TABLE IF NOT EXISTS held (key TEXT, number INTEGER)")
        self._connection.execute("BEGIN IMMEDIATE")

    def last(self, key: str) -> str | None:
        actual = self._connection.execute("SELECT text FROM epochs WHERE key = ?", (key,)).fetchone()
        return None if actual is None else str(actual[0])

    def write(self, rows: DataFrame, batch: Batch) -> None:
        self._connection.executemany("INSERT INTO held VALUES (?, ?)", rows.toLocalIterator())

    def record(self, key: str, text: str) -> None:
        self._connection.execute("INSERT OR REPLACE INTO epochs VALUES (?, ?)", (key, text))

    def commit(self) -> None:
        self._connection.execute("COMMIT")
        self._connection.close()

    def abort(self) -> None:
        # Closing rolls back.
        self._connection.close()

    def stored_rows(self) -> list[Row]:
        actual = sorted(self._connection.execute("SELECT key, number FROM held"))
        self.abort()
        return actual


def with_broker(request: pytest.FixtureRequest, folder: Path) -> Target:
    """Return a target whose topic and ledger are named after the folder, and so are others for each stream."""
    kafka = {"bootstrap.servers": request.getfixturevalue("broker").bootstrap}
    create_topics(kafka, {_topic(folder): 2})
    return Target("test", lake=str(folder / "lake"), checkpoints=str(folder / "checkpoints"), kafka=kafka)


def into_topic(slots: int) -> Callable[[Target], Sink]:
    def created(target: Target) -> Sink:
        topic = _topic(Path(target.lake).parent)
        return KafkaExactlyOnceSink(topic, key="key", ledger=f"{topic}-ledger", slots=slots)

    return created


def of_topic(_spark: SparkSession, target: Target) -> list[Row]:
    actual = (json.loads(message.value() or b"") for message in read_topic(target, _topic(Path(target.lake).parent)))
    return sorted((row["key"], row["number"]) for row in actual)


def _topic(folder: Path) -> str:
    return f"replay-{folder.name}"


SUBJECTS = {
    "delta_append": Subject(lambda _: DeltaAppend("held"), of_table),
    "delta_upsert": Subject(lambda _: DeltaUpsert("held", ["key"], sequence="number"), of_table, newest_per_key),
    "delta_overwrite": Subject(lambda _: DeltaOverwrite("held"), of_table, complete=True),
    "files": Subject(lambda _: FileSink("held", "json", partition_by=("key",)), of_folder),
    "custom": Subject(
        lambda _: CustomExactlyOnceSink("sqlite", InSqlite), lambda _spark, target: InSqlite(target).stored_rows()
    ),
    "kafka": Subject(into_topic(slots=1), of_topic, target=with_broker),
    "kafka_slots": Subject(into_topic(slots=2), of_topic, target=with_broker),
}


@pytest.mark.parametrize("name", SUBJECTS)
@settings(
    # Seconds each: a few streams that are the same in every run. A failure is small enough without being shrunk.
    max_examples=3,
    derandomize=True,
    deadline=None,
    phases=(Phase.generate,),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(stream=streams())
def test_any_cut_into_batches_and_any_attempts_at_them_leave_the_same(
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
    name: str,
    stream: Stream,
):
    subject = SUBJECTS[name]
    target = subject.target(request, tmp_path_factory.mktemp(name))
    sink = subject.sink(target)
    assert sink.guarantee is Guarantee.EXACTLY_ONCE
    observed: tuple[Row, ...] = ()
    for number, (rows, attempts) in enumerate(zip(stream.batches, stream.attempts, strict=True)):
        observed += rows
        handed = spark.createDataFrame(observed if subject.complete else rows, "key string, number long").coalesce(1)
        broken = handed.selectExpr(
            "key", f"if(number = {observed[-1][1] if observed else -1}, raise_error(''), number) AS number"
        )
        for complete in attempts:
            # What is in already is skipped without being read: a broken attempt at it may well succeed.
            with contextlib.suppress(*() if complete else (PySparkException, Py4JJavaError)):
                sink.write(
                    handed if complete else broken, Batch("flow", "q1", number, target, offsets=f"digest {number}")
                )

    assert subject.stored_rows(spark, target) == subject.model(stream)
