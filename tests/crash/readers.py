"""What a place holds, read without Spark and without Headrace, as its readers do; and what was left half-done in it."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import cast

import psycopg
import pyarrow.parquet as pq
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from deltalake import DeltaTable, QueryBuilder
from psycopg import sql
from psycopg.rows import dict_row

from crash.cases import CarelessAppend, Case, Row, canonical
from crash.sqlite_store import place as sqlite_file, stored_rows
from headrace.cdc.apply.table import POSITION
from headrace.cdc.sink import PUBLISHED, DeltaCdc
from headrace.clients.kafka import await_last_stable_offset
from headrace.flow.secret import reveal_secret
from headrace.flow.sink import Sink
from headrace.flow.target import Target
from headrace.sinks.custom import CustomExactlyOnceSink
from headrace.sinks.delta.table import DeltaTableSink
from headrace.sinks.files import FileSink
from headrace.sinks.jdbc.upsert import JdbcUpsert
from headrace.sinks.kafka.topic import KafkaTopicSink

# How long a local broker may take to answer on a busy machine.
_ANSWER_SECONDS = 30.0


def stored_rows_of(case: Case, target: Target, *, settled: bool = True) -> Counter[tuple[int, str]]:
    """Return the rows of every place of a case; with `settled`, when no transaction into a topic is open."""
    return Counter(
        (number, canonical(row)) for number, place in enumerate(case.places) for row in rows_in(place, target, settled)
    )


def rows_in(place: Sink, target: Target, settled: bool) -> Iterator[Row]:
    """Yield the rows that a reader of the place sees."""
    match place:
        case DeltaTableSink(path=path) | CarelessAppend(path=path):
            table = Path(target.table(path))
            yield from delta_rows(DeltaTable(table)) if any((table / "_delta_log").glob("*.json")) else ()
        case DeltaCdc(path=path):
            for table, version in _published(target.table(path)).items():
                for row in delta_rows(DeltaTable(table, version=version)):
                    yield {name: value for name, value in row.items() if name != POSITION}
        case FileSink(path=path):
            for file in _committed_files(Path(target.table(path))):
                yield from _rows_of_file(file)
        case JdbcUpsert(database=database, table=table):
            with closing(_connection(target, database)) as connection:
                created = connection.execute("SELECT to_regclass(%s) AS made", [table]).fetchone()
                if created and created["made"]:
                    yield from connection.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(table)))
        case CustomExactlyOnceSink():
            yield from map(json.loads, stored_rows(target))
        case KafkaTopicSink(topic=topic):
            yield from _records(target, topic, settled)
        case _:
            raise AssertionError(f"no reader for {place}")


def _records(target: Target, topic: str, settled: bool) -> Iterator[Row]:
    if settled:
        await_last_stable_offset(target, topic)
    yield from map(json.loads, topic_values(target, topic))


def half_done(place: Sink, target: Target) -> bool:
    """Whether the place holds something of an attempt that no reader may see."""
    match place:
        case DeltaTableSink(path=path) | CarelessAppend(path=path):
            table = Path(target.table(path))
            return _unmentioned(table, (table / "_delta_log").glob("*.json"))
        case DeltaCdc(path=path):
            folder = Path(target.table(path))
            published = _published(str(folder))
            tables = [item for item in folder.glob("[!_]*") if any((item / "_delta_log").glob("*.json"))]
            # The first version of a table is the empty one.
            return any(DeltaTable(item).version() > published.get(str(item), 0) for item in tables)
        case FileSink(path=path):
            folder = Path(target.table(path))
            return _unmentioned(folder, (folder / "_spark_metadata").glob("[0-9]*"))
        case JdbcUpsert(database=database):
            with closing(_connection(target, database)) as connection:
                staging = "SELECT 1 FROM pg_tables WHERE starts_with(tablename, 'headrace_staging_')"
                return connection.execute(staging).fetchone() is not None
        case CustomExactlyOnceSink():
            return Path(f"{sqlite_file(target)}-journal").exists()
        case KafkaTopicSink(topic=topic):
            committed = sum(1 for _ in topic_values(target, topic))
            return sum(1 for _ in topic_values(target, topic, "read_uncommitted")) > committed
        case _:
            raise AssertionError(f"no look at {place}")


def delta_rows(table: DeltaTable) -> list[Row]:
    result = QueryBuilder().register("held", table).execute("SELECT * FROM held").read_all()
    names = result.schema.names
    return [
        dict(zip(names, row, strict=True)) for row in zip(*(result[name].to_pylist() for name in names), strict=True)
    ]


def delta_versions(place: DeltaTableSink, target: Target) -> Iterator[list[Row]]:
    """Yield what the readers of a table could have seen, version by version."""
    location = target.table(place.path)
    for version in range(DeltaTable(location).version() + 1):
        yield delta_rows(DeltaTable(location, version=version))


def _published(folder: str) -> dict[str, int]:
    """Return the versions of captured tables that belong together, by path."""
    table = Path(folder) / PUBLISHED
    if not any((table / "_delta_log").glob("*.json")):
        return {}
    return {str(row["path"]): int(str(row["version"])) for row in delta_rows(DeltaTable(table))}


def topic_values(target: Target, topic: str, isolation: str = "read_committed") -> Iterator[bytes]:
    """Yield the values of a topic, partition by partition, up to where a reader would wait."""
    consumer = _consumer(target, isolation)
    try:
        waiting = _assign(consumer, [topic])
        while waiting:
            message = consumer.poll(_ANSWER_SECONDS)
            assert message is not None, f"topic {topic} was not read to its end"
            if _is_end(message):
                waiting -= 1
            else:
                yield message.value() or b""
    finally:
        consumer.close()


class Follower(threading.Thread):
    """Reads topics as they grow, committed records only, on a thread of its own until `finish` is called."""

    def __init__(self, target: Target, topics: list[str]) -> None:
        super().__init__(daemon=True)
        self.observed: dict[str, list[Row]] = {topic: [] for topic in topics}
        self._target = target
        self._consumer = _consumer(target, "read_committed")
        self._ends: dict[tuple[str | None, int | None], int] = {}
        self._finishing = threading.Event()
        _assign(self._consumer, topics)

    def run(self) -> None:
        reached: dict[tuple[str | None, int | None], int] = {}
        while not (self._finishing.is_set() and all(reached.get(place, 0) >= end for place, end in self._ends.items())):
            message = self._consumer.poll(0.2)
            if message is None:
                continue
            # The event of a partition's end carries the position behind the markers of transactions.
            ended = _is_end(message)
            reached[message.topic(), message.partition()] = (message.offset() or 0) + (not ended)
            if not ended:
                self.observed[str(message.topic())].append(json.loads(message.value() or b""))
        self._consumer.close()

    def finish(self) -> None:
        """Read on to the end of every topic, and stop."""
        ends = {topic: await_last_stable_offset(self._target, topic) for topic in self.observed}
        self._ends = {(topic, number): end for topic, result in ends.items() for number, end in result.items()}
        self._finishing.set()
        self.join(_ANSWER_SECONDS)
        assert not self.is_alive(), "the follower did not reach the end of its topics"


def _consumer(target: Target, isolation: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": str(target.kafka["bootstrap.servers"]),
            "group.id": "crash-points",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "fetch.wait.max.ms": 10,
        }
    )


def _assign(consumer: Consumer, topics: list[str]) -> int:
    """Read the topics from their beginning; return how many partitions there are."""
    expected = consumer.list_topics(timeout=_ANSWER_SECONDS).topics
    partitions = [TopicPartition(topic, number, 0) for topic in topics for number in expected[topic].partitions]
    consumer.assign(partitions)
    return len(partitions)


def _is_end(message: Message) -> bool:
    error = message.error()
    if error is not None and error.code() != KafkaError._PARTITION_EOF:
        raise KafkaException(error)
    return error is not None


def _committed_files(folder: Path) -> list[Path]:
    """Return the files in a folder's log. Every tenth entry of the log holds all before it once more."""
    names = {
        json.loads(line)["path"].rsplit("/", 1)[-1]
        for entry in (folder / "_spark_metadata").glob("[0-9]*")
        for line in entry.read_text().splitlines()[1:]
    }
    return [folder / name for name in sorted(names)]


def _rows_of_file(file: Path) -> list[Row]:
    if file.suffix == ".json":
        return [json.loads(line) for line in file.read_text().splitlines()]
    return cast(list[Row], pq.ParquetFile(file).read(use_threads=False).to_pylist())


def _connection(target: Target, name: str) -> psycopg.Connection[Row]:
    database = target.databases[name]
    return psycopg.connect(
        database.url.removeprefix("jdbc:"),
        user=database.user,
        password=reveal_secret(database.password or ""),
        row_factory=dict_row,
    )


def _unmentioned(folder: Path, log: Iterator[Path]) -> bool:
    text = "".join(entry.read_text() for entry in log)
    return any(file.name not in text for file in folder.rglob("part-*"))
