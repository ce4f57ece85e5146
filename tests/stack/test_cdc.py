"""A database in, Delta tables out: whatever happens to rows of Postgres, their mirrors equal them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from headrace import AvailableNow, Target
from headrace.cdc.capture.catalogue import read_tables
from headrace.cdc.capture.declaration import Capture
from headrace.cdc.capture.lifecycle import ConnectWorker, delete_capture, start_capture
from headrace.cdc.flows import CdcSettings, mirror
from headrace.cdc.reconcile.compare import compare
from headrace.cli.main import app
from headrace.clients.postgres import connect as open_postgres
from headrace.flow.target import Database
from headrace.operate.run import Application, FlowMetrics
from headrace.stack.connect import secrets_folder
from headrace.stack.local import LocalStack
from systems.capture_topics import changes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.stack

CAPTURE = Capture("shop", r"mirrored\..*", prefix="mirrored", heartbeat="1 second")


@pytest.fixture
def target(broker: Any, connect: Any, postgres: Database, tmp_path: Path) -> Iterator[Target]:
    """A shop with a customer and an order in it, captured."""
    run(
        postgres,
        "CREATE SCHEMA mirrored",
        "CREATE TABLE mirrored.customers (id int PRIMARY KEY, name text, since timestamptz)",
        "CREATE TABLE mirrored.orders (id int PRIMARY KEY, customer int, total numeric(12,2))",
        "INSERT INTO mirrored.customers VALUES (1, 'Ada', '2026-01-01 00:00:00.000001+02'), (2, 'São', NULL)",
        "INSERT INTO mirrored.orders VALUES (10, 1, 0.10), (11, 2, 9999999999.99)",
    )
    worker = ConnectWorker(connect.url, broker.bootstrap, secrets_folder(LocalStack(connect.home).files("connect")))
    start_capture(CAPTURE, postgres, worker)
    yield Target(
        "cdc",
        lake=str(tmp_path / "lake"),
        checkpoints=str(tmp_path / "checkpoints"),
        kafka={"bootstrap.servers": broker.bootstrap},
        databases={"shop": postgres},
    )
    delete_capture(CAPTURE, postgres, worker)


def run(where: Database, *statements: str) -> None:
    with open_postgres(where) as link:
        for statement in statements:
            link.execute(statement)


def applied(spark: SparkSession, target: Target) -> FlowMetrics:
    flow = mirror(CdcSettings(CAPTURE, path="shop", trigger=AvailableNow()))
    figures = Application(spark, target, [flow]).run()[flow.name]
    assert figures.error is None
    return figures


def unequal(spark: SparkSession, target: Target, where: Database) -> dict[str, object]:
    """Return what differs, by table; nothing, when every mirror equals its table."""
    actual = {
        table.name: compare(spark, where, table, target.table(f"shop/{table.name}"))
        for table in read_tables(where, CAPTURE.selection)
    }
    assert {name: item.rows for name, item in actual.items() if not item.rows} == {}, "a comparison of nothing"
    return {name: item.as_dict() for name, item in actual.items() if not item.equal}


class CommandLine:
    """`headrace reconcile cdc` in a project with the tables, on the Spark of this run."""

    def __init__(self, folder: Path, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
        source = target.databases["shop"]
        assert source.password is not None
        monkeypatch.setenv("MIRRORED_PASSWORD", source.password.reveal())
        database = {"url": source.url, "user": source.user, "password": "${env:MIRRORED_PASSWORD}"}
        places = {"lake": target.lake, "checkpoints": target.checkpoints, "databases": {"shop": database}}
        (folder / "headrace.yml").write_text(json.dumps({"name": "mirrored", "flows": [], "targets": {"dev": places}}))
        self._words = ["reconcile", "cdc", "shop", "shop", "--tables", r"mirrored\..*", "--project", str(folder)]

    def __call__(self, *words: str) -> tuple[int, dict[str, Any]]:
        """Return the exit code and the one JSON object."""
        done = CliRunner().invoke(app, [*self._words, "--wait", "0s", "--json", *words])
        (line,) = done.stdout.splitlines()
        return done.exit_code, json.loads(line)


def test_mirrors_equal_their_tables_after_changes_of_rows_keys_columns_and_tables(
    spark: SparkSession,
    broker: Any,
    target: Target,
    postgres: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with changes(broker.bootstrap, "mirrored.mirrored.orders") as orders:
        orders(("r", 11))
        applied(spark, target)
        assert unequal(spark, target, postgres) == {}

        run(
            postgres,
            "UPDATE mirrored.customers SET name = 'Ada L.' WHERE id = 1",
            "UPDATE mirrored.customers SET id = 3 WHERE id = 2",
            "DELETE FROM mirrored.orders WHERE id = 10",
            "INSERT INTO mirrored.orders VALUES (12, 3, 5)",
            "UPDATE mirrored.orders SET total = 6 WHERE id = 12",
            "CREATE TABLE mirrored.emptied (id int PRIMARY KEY)",
            "INSERT INTO mirrored.emptied VALUES (1), (2)",
            "TRUNCATE mirrored.emptied",
            "INSERT INTO mirrored.emptied VALUES (3)",
            "ALTER TABLE mirrored.orders ADD COLUMN note text",
            "CREATE TABLE mirrored.items (id int PRIMARY KEY, order_id int)",
            "INSERT INTO mirrored.items VALUES (100, 12)",
            "INSERT INTO mirrored.orders VALUES (13, 1, 7, 'gift')",
        )
        orders(("c", 13))
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce("mirrored.mirrored.orders", b"not an envelope")
        producer.produce("mirrored.mirrored.orders", None, key=b"a tombstone")
        assert producer.flush(30) == 0
        figures = applied(spark, target)
        assert figures.invalid == {"malformed_json": 1}
        assert unequal(spark, target, postgres) == {}

    reconcile = CommandLine(tmp_path, target, monkeypatch)
    code, message = reconcile()
    assert (code, message["equal"], len(message["tables"])) == (0, True, 4)

    orders = f"delta.`{target.table('shop/orders')}`"
    spark.sql(f"UPDATE {orders} SET total = 1 WHERE id = 11")  # noqa: S608
    spark.sql(f"DELETE FROM {orders} WHERE id = 12")  # noqa: S608
    code, message = reconcile()
    assert (code, message["equal"]) == (1, False)
    differ = {item["table"]: item["differences"] for item in message["tables"] if not item["equal"]}
    assert differ == {
        "mirrored.orders": [
            {"key": {"id": "11"}, "kind": "different", "columns": ["total"]},
            {"key": {"id": "12"}, "kind": "missing", "columns": []},
        ]
    }
    assert reconcile("--repair")[0] == 2  # it cannot ask
    assert unequal(spark, target, postgres) != {}
    code, message = reconcile("--repair", "--yes")
    assert (code, message["equal"]) == (0, True)
    assert unequal(spark, target, postgres) == {}
