"""What an erasure asks of real parts: whether a source holds a row, and how long topics keep records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.cdc.capture.catalogue import read_tables
from headrace.cdc.capture.declaration import TableSelection
from headrace.cdc.reconcile.source_rows import row_exists
from headrace.clients import mysql
from headrace.clients.postgres import connect
from headrace.clients.topics import create_topics, topic_retention
from headrace.flow.target import Database

if TYPE_CHECKING:
    from conftest import Broker

pytestmark = pytest.mark.stack

COLUMNS = '(tenant integer, "id" bigint, mail varchar(40), PRIMARY KEY (tenant, "id"))'


def test_postgres_answers_whether_it_contains_a_row(postgres: Database):
    with connect(postgres) as connection:
        connection.execute(f"CREATE TABLE erase_people {COLUMNS}")
        connection.execute("INSERT INTO erase_people VALUES (7, 42, 'a@example.org')")
    (table,) = read_tables(postgres, TableSelection(("public.erase_people",)))

    assert table.key == ("tenant", "id")
    assert row_exists(postgres, table, {"tenant": "7", "id": "42"})
    assert not row_exists(postgres, table, {"tenant": "7", "id": "43"})
    assert not row_exists(postgres, table, {"tenant": "7", "id": "no number"})


def test_mariadb_answers_whether_it_contains_a_row(mariadb: Database):
    with mysql.session(mariadb) as cursor:
        cursor.execute(f"CREATE TABLE erase_people {COLUMNS.replace(chr(34), chr(96))}")
        cursor.execute("INSERT INTO erase_people VALUES (7, 42, 'a@example.org')")
    (table,) = read_tables(mariadb, TableSelection(pattern=r".*\.erase_people"))

    assert row_exists(mariadb, table, {"tenant": "7", "id": "42"})
    assert not row_exists(mariadb, table, {"tenant": "7", "id": "43"})


def test_a_broker_answers_how_long_topics_retain_records(broker: Broker):
    kafka = {"bootstrap.servers": broker.bootstrap}
    create_topics(kafka, {"erase.days": 1}, {"retention.ms": "172800000"})
    create_topics(kafka, {"erase.keys": 1}, {"cleanup.policy": "compact"})

    reported = topic_retention(kafka, lambda name: name.startswith("erase."))

    assert reported["erase.days"] == "Records are retained for 2 day(s)."
    assert reported["erase.keys"].startswith("It is compacted: a record without a value")
