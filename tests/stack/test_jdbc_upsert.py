"""Batches into a Postgres table, once: run again, refused, cut off in the middle, and with the server killed."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import select
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from psycopg import sql
from pyspark.sql import types as T

from headrace.clients.postgres import address, connect
from headrace.errors import DataError, FlowError, RecoveryError, ServiceUnavailable
from headrace.flow.flow import Flow
from headrace.flow.inputs import Input
from headrace.flow.levers import AvailableNow
from headrace.flow.sink import Batch, CommittedBatches
from headrace.flow.target import Database, Target
from headrace.operate.run import Application
from headrace.sinks.jdbc.staging import StagingTable
from headrace.sinks.jdbc.upsert import JdbcUpsert
from headrace.sources.files import FileSource
from headrace.stack.local import LocalStack
from headrace.stack.postgres import database

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.stack, pytest.mark.spark]


class Place:
    """A table and a flow of one test, both named after it."""

    def __init__(self, name: str, where: Database, folder: Path) -> None:
        self.name, self.database = name, where
        roots = {"lake": str(folder / "lake"), "checkpoints": str(folder / "cp")}
        self.target = Target("test", **roots, databases={"shop": where})
        self.sink = JdbcUpsert("shop", name, key=["id"], sequence="seq")

    def batch(self, number: int, query_id: str = "q1", offsets: str = "", fence: int = 0) -> Batch:
        return Batch(self.name, query_id, number, self.target, offsets=offsets or f"digest {number}", fence=fence)

    def query(self, statement: str, *arguments: object) -> list[tuple]:
        with connect(self.database) as connection:
            cursor = connection.execute(statement, arguments or None)
            return cursor.fetchall() if cursor.description else []

    def rows(self, columns: str = "id, seq, city") -> list[tuple]:
        return self.query(f'SELECT {columns} FROM "{self.name}" ORDER BY 1')  # noqa: S608

    def staging_tables(self) -> list[tuple]:
        return self.query("SELECT tablename FROM pg_tables WHERE starts_with(tablename, 'headrace_staging_')")


@pytest.fixture
def place(postgres: Database, tmp_path: Path, request: pytest.FixtureRequest) -> Place:
    name = request.node.name.removeprefix("test_")
    # The names of the cases of one test begin alike.
    return Place(f"{name.partition('[')[0][:50]}_{zlib.crc32(name.encode()):08x}", postgres, tmp_path)


def rows(spark: SparkSession, *given: tuple[int | None, int | None, str]) -> DataFrame:
    return spark.createDataFrame(list(given), "id long, seq long, city string")


# ---- what a table holds ----


def test_rows_replace_those_of_their_key_and_an_older_one_never_a_newer(spark: SparkSession, place: Place):
    place.sink.write(rows(spark, (1, 5, "a"), (2, 5, "b"), (2, 7, "c"), (2, 6, "d"), (3, None, "e")), place.batch(0))
    place.sink.write(rows(spark, (1, 4, "old"), (2, 7, "same"), (3, 1, "f"), (4, 1, "g")), place.batch(1))
    place.sink.write(rows(spark, (3, None, "no sequence"), (4, 2, "x"), (4, 2, "y")), place.batch(2))
    assert place.rows() == [(1, 5, "a"), (2, 7, "same"), (3, 1, "f"), (4, 2, "y")]
    assert place.staging_tables() == []


def test_a_batch_that_is_run_again_changes_nothing_and_is_computed_once(spark: SparkSession, place: Place):
    place.sink.write(rows(spark, (1, 1, "a")), place.batch(0))
    for attempt in range(2):
        counted = spark.sparkContext.accumulator(0)

        def observed(item: int, counted=counted, attempt=attempt) -> tuple[int, int, str]:
            counted.add(1)
            return (item, 2, f"attempt {attempt}")

        created = spark.sparkContext.parallelize([1, 2, 3], 2).map(observed)
        place.sink.write(spark.createDataFrame(created, "id long, seq long, city string"), place.batch(1))
        assert counted.value == 3
    assert place.rows() == [(1, 2, "attempt 0"), (2, 2, "attempt 0"), (3, 2, "attempt 0")]


def test_without_a_sequence_the_last_batch_wins_and_a_key_twice_in_a_batch_is_refused(
    spark: SparkSession, place: Place
):
    sink = replace(place.sink, sequence=None)
    sink.write(rows(spark, (1, 9, "a"), (2, 9, "b")), place.batch(0))
    sink.write(rows(spark, (1, 1, "c")), place.batch(1))
    with pytest.raises(DataError, match="second time") as refused:
        sink.write(rows(spark, (1, 2, "d"), (1, 3, "e")), place.batch(2))
    assert refused.value.code == "HR-508"
    assert place.rows() == [(1, 1, "c"), (2, 9, "b")]


def test_a_table_of_keys_only_and_a_batch_without_rows_are_fine(spark: SparkSession, place: Place):
    sink = replace(place.sink, sequence=None)
    sink.write(rows(spark).select("id"), place.batch(0))
    for number in (1, 2):
        sink.write(rows(spark, (1, 1, "a"), (2, 1, "b")).select("id"), place.batch(number))
    assert place.rows("id") == [(1,), (2,)]


SCHEMA = T.StructType(
    [
        T.StructField("id", T.IntegerType()),
        T.StructField("text", T.StringType()),
        T.StructField("small", T.ByteType()),
        T.StructField("large", T.LongType()),
        T.StructField("money", T.DecimalType(38, 10)),
        T.StructField("single", T.FloatType()),
        T.StructField("double", T.DoubleType()),
        T.StructField("flag", T.BooleanType()),
        T.StructField("bytes", T.BinaryType()),
        T.StructField("day", T.DateType()),
        T.StructField("at", T.TimestampType()),
        T.StructField("local", T.TimestampNTZType()),
        T.StructField("list", T.ArrayType(T.LongType())),
        T.StructField("struct", T.StructType([T.StructField("a", T.StringType()), T.StructField("b", T.DoubleType())])),
        T.StructField("map", T.MapType(T.StringType(), T.LongType())),
    ]
)


def test_every_type_arrives_as_it_was(spark: SparkSession, place: Place):
    money = Decimal("-1234567890123456789012345678.0123456789")
    first, last = datetime(1, 1, 1, 0, 0, 0, 1, UTC), datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC)
    utc = datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)
    local = datetime(2024, 3, 31, 2, 30, 0, 123_456)  # noqa: DTZ001 - an hour that Berlin does not have
    given = [
        (1, "Zürich 🚲 'quoted' \\ \t\n", -128, 2**63 - 1, money, 1.5, 0.1, True, b"\0\xff", date(1, 1, 1), utc, local,
         [1, None], {"a": 'x"y', "b": 0.5}, {"k": 7}),
        (2, "", 127, -(2**63), Decimal("0E-10"), float("inf"), math.nan, False, b"", date(9999, 12, 31), last, local,
         [], {"a": None, "b": None}, {}),
        (3, *[None] * 14),
        (4, "first", 0, 0, Decimal("0E-10"), 0.0, float("-inf"), False, b"x", date(1582, 10, 5), first, local,
         [0], None, None),
    ]  # fmt: skip
    place.sink = JdbcUpsert("shop", place.name, key=["id"])
    place.sink.write(spark.createDataFrame(given, SCHEMA), place.batch(0))

    def reported(row: tuple) -> tuple:
        return tuple("NaN" if isinstance(item, float) and math.isnan(item) else item for item in row)

    names = ", ".join(f'"{field.name}"' for field in SCHEMA)
    assert [reported(row) for row in place.rows(names)] == [reported(row) for row in given]
    types = "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0"
    assert [row[0] for row in place.query(f"{types} ORDER BY attnum", place.name)] == [
        "integer", "text", "smallint", "bigint", "numeric(38,10)", "real", "double precision", "boolean", "bytea",
        "date", "timestamp with time zone", "timestamp without time zone", "jsonb", "jsonb", "jsonb",
    ]  # fmt: skip


def test_names_are_names_whatever_is_in_them(spark: SparkSession, postgres: Database, tmp_path: Path):
    hostile = 'we"ird; DROP TABLE "x'
    place = Place(hostile, postgres, tmp_path)
    columns = ['a"b', "c d", "e`f", "'; SELECT 1; --", "s{0}%s"]
    created = spark.createDataFrame(
        [(1, 2, 3, 4, 5)], T.StructType([T.StructField(column, T.LongType()) for column in columns])
    )
    sink = JdbcUpsert("shop", hostile, key=[columns[0], columns[3]], sequence=columns[4])
    for number in range(2):
        sink.write(created, replace(place.batch(number), flow="it's"))
    with connect(postgres) as connection:
        actual = connection.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(hostile)))
        assert [item.name for item in actual.description or ()] == columns
        assert actual.fetchall() == [(1, 2, 3, 4, 5)]


# ---- tables that are there already ----


def test_a_table_that_is_there_is_used_when_nothing_would_be_lost(spark: SparkSession, place: Place):
    columns = "extra text DEFAULT 'kept', id numeric UNIQUE NOT NULL, seq numeric, city varchar(9)"
    place.query(f'CREATE TABLE "{place.name}" ({columns})')
    there = "VALUES ('mine', 1, 1, 'there'), ('', 9, 9, 'there')"
    place.query(f'INSERT INTO "{place.name}" {there}')
    place.sink.preflight(place.target)
    place.sink.write(rows(spark, (1, 2, "a"), (9, 8, "old"), (3, 1, "new")), place.batch(0))
    assert place.rows("id, city, extra") == [(1, "a", "mine"), (3, "new", "kept"), (9, "there", "")]
    with pytest.raises(DataError, match="too long") as refused:
        place.sink.write(rows(spark, (4, 1, "more than nine")), place.batch(1))
    assert refused.value.code == "HR-508"
    assert len(place.rows("id")) == 3


def test_texts_go_into_uuid_and_jsonb_columns(spark: SparkSession, place: Place):
    place.query(f'CREATE TABLE "{place.name}" (id uuid PRIMARY KEY, doc jsonb)')
    key = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
    created = spark.createDataFrame([(key.upper(), '{"a": [1, null]}')], "id string, doc string")
    JdbcUpsert("shop", place.name, key=["id"]).write(created, place.batch(0))
    assert place.rows("id::text, doc") == [(key, {"a": [1, None]})]


@pytest.mark.parametrize(
    ("definition", "says"),
    [
        ("id bigint PRIMARY KEY, seq bigint", "no column 'city'"),
        ("id bigint PRIMARY KEY, seq integer, city text", "'seq' is integer, and the rows have bigint"),
        ("id bigint PRIMARY KEY, seq bigint, city text, must text NOT NULL", "'must' must not be null"),
        ("id bigint PRIMARY KEY, seq bigint, city text GENERATED ALWAYS AS ('x') STORED", "computed"),
        ("id bigint, seq bigint, city text", "unique constraint"),
        ("id bigint, seq bigint, city text, UNIQUE (id, seq)", "unique constraint"),
        ("id bigint UNIQUE DEFERRABLE, seq bigint, city text", "unique constraint"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(spark: SparkSession, place: Place, definition: str, says: str):
    place.query(f'CREATE TABLE "{place.name}" ({definition})')
    with pytest.raises(DataError, match=says) as refused:
        place.sink.write(rows(spark, (1, 1, "a")), place.batch(0))
    assert refused.value.code == "HR-509"
    if "unique" in says:
        with pytest.raises(DataError, match=says):
            place.sink.preflight(place.target)
    place.query(f'DROP TABLE "{place.name}"')
    place.sink.write(rows(spark, (1, 1, "a")), place.batch(0))
    assert place.rows() == [(1, 1, "a")]


def test_a_schema_that_is_not_there_or_closed_is_refused_before_the_start(place: Place):
    with pytest.raises(DataError, match="no schema 'nowhere'") as refused:
        JdbcUpsert("shop", "nowhere.t", key=["id"]).preflight(place.target)
    assert refused.value.code == "HR-509"
    place.query("CREATE ROLE jdbc_reader LOGIN PASSWORD 'r'")
    reader = replace(place.database, user="jdbc_reader", password=replace(place.database.password, _value="r"))
    with pytest.raises(DataError, match="GRANT CREATE"):
        JdbcUpsert("shop", "t", key=["id"]).preflight(replace(place.target, databases={"shop": reader}))


# ---- rows that no table takes ----


def test_a_nul_in_a_text_is_refused_by_the_name_of_its_column(spark: SparkSession, place: Place):
    with pytest.raises(DataError, match="'city' holds the character NUL") as refused:
        place.sink.write(rows(spark, (1, 1, "a"), (2, 1, "b\0c")), place.batch(0))
    assert refused.value.code == "HR-508"
    assert place.rows() == []
    assert place.staging_tables() == []


def test_a_row_without_a_key_is_refused(spark: SparkSession, place: Place):
    with pytest.raises(DataError, match="1 of 2 rows have no value in 'id'") as refused:
        place.sink.write(rows(spark, (1, 1, "a"), (None, 1, "b")), place.batch(0))
    assert refused.value.code == "HR-508"
    assert place.rows() == []


@pytest.mark.parametrize(
    ("select", "code", "says"),
    [
        ("id, seq, city, interval 1 day as i", "HR-218", "'i'"),
        ("id, seq, city, void(1) as v", "HR-218", "'v'"),
        (f"id, seq, city as `{'x' * 64}`", "HR-218", "63 bytes"),
        ("id as other, seq, city", "HR-217", "'id'"),
        ("array(id) as id, seq, city", "HR-217", "no order"),
    ],
)
def test_columns_that_have_no_place_are_an_error_of_the_flow(
    spark: SparkSession, place: Place, select: str, code: str, says: str
):
    created = rows(spark, (1, 1, "a")).selectExpr(
        *[item.strip() for item in select.replace("void(1)", "null").split(", ")]
    )
    with pytest.raises(FlowError, match=says) as refused:
        place.sink.write(created, place.batch(0))
    assert refused.value.code == code


@pytest.mark.parametrize(
    "wrong",
    [
        {"key": "id"},
        {"key": []},
        {"key": ["a", "a"]},
        {"sequence": "id"},
        {"table": "a.b.c"},
        {"table": "a%"},
        {"table": ".a"},
        {"table": "x" * 64},
    ],
)
def test_a_declaration_that_cannot_be_written_is_refused_immediately(wrong: dict[str, object]):
    with pytest.raises(FlowError) as refused:
        replace(JdbcUpsert("shop", "t", key=["id"]), **wrong)
    assert refused.value.code == "HR-217"


# ---- checkpoints and drivers that do not belong ----


def test_the_batches_of_another_checkpoint_are_refused(spark: SparkSession, place: Place):
    place.sink.write(rows(spark, (1, 1, "a")), place.batch(0))
    for number in (0, 1):
        with pytest.raises(RecoveryError, match=r"q1.*q2") as refused:
            place.sink.write(rows(spark, (2, 1, "b")), place.batch(number, "q2"))
        assert refused.value.code == "HR-315"
    assert place.rows() == [(1, 1, "a")]


def test_a_checkpoint_that_wrote_nothing_may_be_followed_by_another(spark: SparkSession, place: Place):
    with pytest.raises(DataError):
        place.sink.write(rows(spark, (None, 1, "a")), place.batch(0))
    place.sink.write(rows(spark, (1, 1, "b")), place.batch(0, "q2"))
    assert place.rows() == [(1, 1, "b")]


@pytest.mark.parametrize(
    ("written", "number", "offsets", "says"),
    [
        (1, 2, "", "those between are missing"),
        (2, 0, "", "set back"),
        (1, 0, "other", "other offsets"),
        (0, 1, "", "no record"),
    ],
)
def test_a_batch_that_does_not_follow_is_refused(
    spark: SparkSession, place: Place, written: int, number: int, offsets: str, says: str
):
    for item in range(written):
        place.sink.write(rows(spark, (item, 1, "in")), place.batch(item))
    with pytest.raises(RecoveryError, match=says) as refused:
        place.sink.write(rows(spark, (9, 1, "out")), place.batch(number, offsets=offsets))
    assert refused.value.code == "HR-316"
    if written:
        assert place.rows() == [(item, 1, "in") for item in range(written)]


def test_a_table_that_was_dropped_is_not_made_again_in_silence(spark: SparkSession, place: Place):
    place.sink.write(rows(spark, (1, 1, "a")), place.batch(0))
    place.query(f'DROP TABLE "{place.name}"')
    with pytest.raises(RecoveryError, match="The table no longer exists") as refused:
        place.sink.write(rows(spark, (2, 1, "b")), place.batch(1))
    assert refused.value.code == "HR-316"


def test_a_driver_with_a_lower_fence_is_refused_as_soon_as_a_later_one_has_started(spark: SparkSession, place: Place):
    place.sink.write(rows(spark, (1, 1, "a")), place.batch(0, fence=3))
    later, zombie = place.batch(0, fence=4), place.batch(1, fence=3)
    place.sink.write(rows(spark, (1, 1, "a")), later)  # in already: only its fence is new
    with pytest.raises(RecoveryError, match="fence is 4") as refused:
        place.sink.write(rows(spark, (2, 1, "zombie")), zombie)
    assert refused.value.code == "HR-317"
    place.sink.write(rows(spark, (2, 1, "b")), place.batch(1, fence=4))
    assert place.rows() == [(1, 1, "a"), (2, 1, "b")]


def in_between(monkeypatch: pytest.MonkeyPatch, event: Callable[[], None]) -> None:
    """Let something happen, once, when the rows of a batch are staged and not yet merged."""
    own = JdbcUpsert._merge

    def merge(*arguments) -> None:
        monkeypatch.setattr(JdbcUpsert, "_merge", own)
        event()
        own(*arguments)

    monkeypatch.setattr(JdbcUpsert, "_merge", merge)


def test_a_driver_that_was_overtaken_while_its_rows_were_staged_cannot_commit(
    spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch
):
    in_between(monkeypatch, lambda: place.sink.write(rows(spark, (1, 1, "later")), place.batch(0, fence=2)))
    with pytest.raises(RecoveryError) as refused:
        place.sink.write(rows(spark, (1, 2, "zombie")), place.batch(0, fence=1))
    assert refused.value.code == "HR-317"
    assert place.rows() == [(1, 1, "later")]


def test_committed_batches_of_a_table_are_returned_by_checkpoint_and_table(spark: SparkSession, place: Place):
    def stored() -> CommittedBatches:
        return place.sink.committed_batches(spark, place.name, "0", place.target)

    assert (stored().identity, stored().last) == (None, {})
    for number in range(2):
        place.sink.write(rows(spark, (1, 1, "a")), place.batch(number))
    assert stored().last == {"q1": 1}
    before = stored().identity
    place.query(f'DROP TABLE "{place.name}"')
    place.query(f'CREATE TABLE "{place.name}" (id bigint)')
    assert None not in (before, stored().identity)
    assert stored().identity != before
    assert place.name in stored().place


# ---- attempts that are cut off ----


def test_the_rows_of_a_task_that_ran_twice_count_once(
    spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch
):
    own = StagingTable.write

    def twice(*arguments) -> None:
        own(*arguments)
        own(*arguments)

    monkeypatch.setattr(StagingTable, "write", twice)
    sink = replace(place.sink, sequence=None)
    sink.write(rows(spark, *[(number, 1, "a") for number in range(50)]).repartition(4), place.batch(0))
    assert place.rows("id") == [(number,) for number in range(50)]
    assert place.query("SELECT rows FROM headrace_ledger WHERE flow = %s", place.name) == [(50,)]


def test_a_batch_that_fails_in_a_task_leaves_nothing(spark: SparkSession, place: Place):
    failing = rows(spark, (1, 1, "a"), (2, 1, "b")).selectExpr(
        "id", "seq", "if(id = 2, raise_error('lost'), city) as city"
    )
    with pytest.raises(Exception, match="lost"):
        place.sink.write(failing, place.batch(0))
    place.sink.write(rows(spark, (1, 1, "a"), (2, 1, "b")), place.batch(0))
    assert place.rows() == [(1, 1, "a"), (2, 1, "b")]


def test_the_staging_tables_of_dead_attempts_are_removed(
    spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("headrace.sinks.jdbc.staging._drop", lambda *_: None)
    place.sink.write(rows(spark, (1, 1, "a")), place.batch(0))
    assert len(place.staging_tables()) == 1
    monkeypatch.undo()
    place.sink.write(rows(spark, (1, 2, "b")), place.batch(1))
    assert place.staging_tables() == []


KILL = """
CREATE OR REPLACE FUNCTION headrace_test_kill() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body}; RETURN NEW; END $$
"""
TRIGGERS = {
    "in the transaction": "CREATE TRIGGER kill AFTER INSERT ON {} FOR EACH ROW EXECUTE FUNCTION headrace_test_kill()",
    "at the commit": "CREATE CONSTRAINT TRIGGER kill AFTER INSERT ON {} DEFERRABLE INITIALLY DEFERRED "
    "FOR EACH ROW EXECUTE FUNCTION headrace_test_kill()",
}


@pytest.mark.parametrize("moment", TRIGGERS)
def test_a_connection_that_is_cut_is_transient_and_the_next_attempt_writes_the_batch(
    spark: SparkSession, place: Place, moment: str
):
    place.sink.write(rows(spark, (1, 1, "a")), place.batch(0))
    place.query(KILL.format(body="PERFORM pg_terminate_backend(pg_backend_pid())"))
    place.query(TRIGGERS[moment].format(f'"{place.name}"'))
    with pytest.raises(ServiceUnavailable) as cut:
        place.sink.write(rows(spark, (1, 2, "b"), (2, 1, "c")), place.batch(1))
    assert (cut.value.code, cut.value.state) == ("HR-607", "Nothing of the batch is in the table.")
    assert place.rows() == [(1, 1, "a")]
    place.query(f'DROP TRIGGER kill ON "{place.name}"')
    place.sink.write(rows(spark, (1, 2, "b"), (2, 1, "c")), place.batch(1))
    assert place.rows() == [(1, 2, "b"), (2, 1, "c")]
    assert place.staging_tables() == []


@pytest.fixture
def deaf(postgres: Database) -> Iterator[Database]:
    """A way to Postgres that lets the commit of the first batch through, and breaks off before the answer."""
    where, broken = address(postgres), []

    def relay(client: socket.socket, behind: socket.socket) -> None:
        recorded = False
        with client, behind, contextlib.suppress(OSError):
            while True:
                for ready in select.select([client, behind], [], [])[0]:
                    data = ready.recv(65_536)
                    if not data:
                        return
                    (behind if ready is client else client).sendall(data)
                    if ready is client and recorded and not broken and b"COMMIT" in data:
                        broken.append(behind.recv(65_536))
                        return
                    recorded = recorded or (ready is client and b"SET batch_id" in data)

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                pair = server.accept()[0], socket.create_connection((where.host, where.port))
                threading.Thread(target=relay, args=pair, daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, daemon=True).start()
        yield replace(postgres, url=f"jdbc:postgresql://127.0.0.1:{server.getsockname()[1]}/{where.database}")
    assert [b"COMMIT" in answer for answer in broken] == [True]


def test_a_commit_whose_answer_was_lost_is_found_in_the_ledger(spark: SparkSession, place: Place, deaf: Database):
    target = replace(place.target, databases={"shop": deaf})
    place.sink.write(rows(spark, (1, 1, "a")), replace(place.batch(0), target=target))
    assert place.rows() == [(1, 1, "a")]
    place.sink.write(rows(spark, (1, 1, "again")), place.batch(0))
    place.sink.write(rows(spark, (2, 1, "b")), place.batch(1))
    assert place.rows() == [(1, 1, "a"), (2, 1, "b")]


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[LocalStack]:
    """A Postgres of the test's own, to be killed."""
    stack = LocalStack(tmp_path / "home")
    stack.up(["postgres"])
    yield stack
    stack.wipe()


def killed_and_back(stack: LocalStack) -> None:
    pid = next(item.pid for item in stack.ps() if item.name == "postgres")
    assert pid is not None
    process = psutil.Process(pid)
    process.kill()
    process.wait(timeout=30)
    stack.up(["postgres"])


def test_a_server_that_is_killed_at_every_stage_of_a_batch_loses_and_doubles_nothing(
    spark: SparkSession, mortal: LocalStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    place = Place("accounts", database(mortal.files("postgres")), tmp_path)
    batches = [[(key, number, f"{number}-{key}") for key in range(number, number + 20)] for number in range(4)]
    model: dict[int, tuple[int, int, str]] = {}
    for item in batches:
        model.update({row[0]: row for row in item})

    def write(number: int) -> None:
        place.sink.write(rows(spark, *batches[number]).repartition(3), place.batch(number))

    write(0)
    # While the rows are staged and not yet merged: the crash empties the staging table.
    in_between(monkeypatch, lambda: killed_and_back(mortal))
    with pytest.raises(ServiceUnavailable):
        write(1)
    # The same, and the driver's connection survives: as when the server lost only a child, or a pooler is in between.
    own = StagingTable.write

    def emptied(staged: StagingTable, *arguments) -> None:
        own(staged, *arguments)
        with connect(place.database) as connection:
            connection.execute(sql.SQL("TRUNCATE {}").format(staged.table.identifier))

    monkeypatch.setattr(StagingTable, "write", emptied)
    with pytest.raises(ServiceUnavailable, match="emptied the staging table"):
        write(1)
    monkeypatch.undo()
    write(1)

    # In the middle of the transaction: a row waits in a trigger, so that the insert is under way.
    place.query(KILL.format(body="PERFORM pg_advisory_lock(42)"))
    place.query(TRIGGERS["in the transaction"].format("accounts"))
    with closing(connect(place.database)) as holder:
        holder.execute("SELECT pg_advisory_lock(42)")

        def kill_when_it_waits() -> None:
            while not holder.execute("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted").fetchone():
                time.sleep(0.01)  # Postgres gives no event when a lock is waited for
            killed_and_back(mortal)

        killer = threading.Thread(target=kill_when_it_waits)
        killer.start()
        with pytest.raises(ServiceUnavailable) as cut:
            write(2)
        killer.join()
    assert cut.value.code == "HR-607"
    place.query("DROP TRIGGER kill ON accounts")
    write(2)
    write(2)
    # The server is down when a batch begins.
    mortal.down()
    with pytest.raises(ServiceUnavailable) as down:
        write(3)
    assert down.value.code == "HR-606"
    mortal.up(["postgres"])
    write(3)
    assert place.rows() == [model[key] for key in sorted(model)]


def test_a_server_that_goes_away_under_the_executors_is_transient(
    spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch
):
    own = StagingTable.write

    def elsewhere(staged: StagingTable, given: DataFrame, where: Database, batch: Batch) -> None:
        own(staged, given, replace(where, url="jdbc:postgresql://127.0.0.1:1/headrace"), batch)

    monkeypatch.setattr(StagingTable, "write", elsewhere)
    with pytest.raises(ServiceUnavailable, match=r"An executor says: Connection to 127\.0\.0\.1:1 refused") as failed:
        place.sink.write(rows(spark, (1, 1, "a")), place.batch(0))
    assert failed.value.code == "HR-607"


def test_the_password_is_in_no_plan_no_log_and_no_error(
    spark: SparkSession, place: Place, tmp_path_factory: pytest.TempPathFactory
):
    canary = "canary-7f3a"
    place.query(f"CREATE ROLE jdbc_canary SUPERUSER LOGIN PASSWORD '{canary}'")
    secret = replace(place.database.password, _value=canary)
    target = replace(place.target, databases={"shop": replace(place.database, user="jdbc_canary", password=secret)})
    batch = replace(place.batch(0), target=target)
    place.sink.write(rows(spark, (1, 1, "a")), batch)
    with pytest.raises(DataError) as refused:
        place.sink.write(rows(spark, (1, 1, "a\0")), replace(batch, id=1))
    reported = [str(refused.value), repr(batch), repr(refused.value.__cause__)]
    # Spark keeps plans on a thread of its own.
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(60_000)
    plans = spark._jsparkSession.sharedState().statusStore().executionsList()
    reported += [plans.apply(number).physicalPlanDescription() for number in range(plans.size())]
    logs = list(tmp_path_factory.getbasetemp().glob("spark*/jvm.log"))
    assert logs
    assert any("headrace_staging_" in item for item in reported)
    assert [item for item in [*reported, *(log.read_text() for log in logs)] if canary in item] == []


# ---- in a running flow, and in any order ----


def test_a_flow_with_state_continues_after_its_last_batch_is_retried(spark: SparkSession, place: Place, tmp_path: Path):
    folder = tmp_path / "in"
    folder.mkdir()

    def send(name: str, *ids: int) -> None:
        lines = "".join(json.dumps({"id": item}) + "\n" for item in ids)
        (tmp_path / name).write_text(lines)
        (tmp_path / name).rename(folder / name)

    flow = Flow(
        name="counts",
        inputs=Input(FileSource(str(folder), "json", T.StructType([T.StructField("id", T.LongType())]), 1)),
        transform=lambda given: given.groupBy("id").count(),
        sink=JdbcUpsert("shop", place.name, key=["id"]),
        output_mode="update",
        trigger=AvailableNow(),
    )

    def run() -> None:
        flow.sink.preflight(place.target)
        assert Application(spark, place.target, [flow]).run()["counts"].error is None

    send("one.json", 1, 2)
    run()
    # As if the driver had been killed between the commit of the transaction and Spark's own.
    for entry in Path(place.target.flow_folder("counts")).glob("spark/commits/*0*"):
        entry.unlink()
    send("two.json", 1, 3)
    run()
    assert place.rows("id, count") == [(1, 2), (2, 1), (3, 1)]


CHANGES = st.lists(st.tuples(st.integers(0, 4), st.text("ab'\\\n", max_size=3)), min_size=1, max_size=12)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=CHANGES, cuts=st.lists(st.integers(0, 12), max_size=3), order=st.randoms(), again=st.sets(st.integers(0, 3))
)
def test_any_split_any_order_and_any_retried_batch_result_in_the_newest_row_of_each_key(
    spark: SparkSession, place: Place, changes, cuts, order, again
):
    numbered = [(key, sequence, city) for sequence, (key, city) in enumerate(changes)]
    model = {row[0]: row for row in numbered}
    shuffled = list(numbered)
    order.shuffle(shuffled)
    edges = [0, *sorted(cuts), len(shuffled)]
    place.query(f'DROP TABLE IF EXISTS "{place.name}"')
    if place.query("SELECT to_regclass('headrace_ledger')") != [(None,)]:
        place.query("DELETE FROM headrace_ledger WHERE flow = %s", place.name)
    for number, (start, end) in enumerate(itertools.pairwise(edges)):
        for _ in range(1 + (number in again)):
            place.sink.write(rows(spark, *shuffled[start:end]), place.batch(number))
    assert place.rows() == [model[key] for key in sorted(model)]
