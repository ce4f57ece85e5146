"""Tables of real databases, as their catalogues describe them, and the position of their logs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.cdc.capture.catalogue import position_now, read_tables
from headrace.cdc.capture.declaration import TableSelection
from headrace.cdc.capture.source_table import SourceColumn, SourceTable
from headrace.clients import mysql
from headrace.clients.postgres import connect
from headrace.errors import ConfigError, DataError, ServiceUnavailable
from headrace.flow.secret import Secret
from headrace.flow.target import Database

pytestmark = pytest.mark.stack


def test_tables_of_postgres_are_described_with_full_types_key_order_and_identity(postgres: Database):
    with connect(postgres) as link:
        link.execute("CREATE SCHEMA told")
        link.execute("CREATE TYPE told.mood AS ENUM ('sad', 'ok')")
        link.execute("CREATE DOMAIN told.cents AS numeric(12,2)")
        link.execute("CREATE DOMAIN told.price AS told.cents NOT NULL")
        link.execute(
            "CREATE TABLE told.kinds (b text, a bigint, n told.price, m told.mood, ms told.mood[], t timestamptz(3),"
            " i integer[], g bigint GENERATED ALWAYS AS (a * 2) STORED, PRIMARY KEY (b, a))"
        )
        link.execute("ALTER TABLE told.kinds DROP COLUMN i")
        link.execute("CREATE TABLE told.parted (id int) PARTITION BY RANGE (id)")
        link.execute("CREATE TABLE told.parted_1 PARTITION OF told.parted FOR VALUES FROM (0) TO (9)")
        link.execute("ALTER TABLE told.parted REPLICA IDENTITY FULL")
    kinds, parted = read_tables(postgres, TableSelection(pattern=r"told\..*"))
    assert kinds == SourceTable(
        "told",
        "kinds",
        (
            SourceColumn("b", "text", False),
            SourceColumn("a", "bigint", False),
            SourceColumn("n", "numeric(12,2)", True),
            SourceColumn("m", "enum", True),
            SourceColumn("ms", "enum[]", True),
            SourceColumn("t", "timestamp(3) with time zone", True),
            SourceColumn("g", "bigint", True),
        ),
        ("b", "a"),
        "postgres",
    )
    assert (parted.name, parted.key, parted.identity) == ("parted", (), "full")
    with pytest.raises(DataError, match=r"Did you mean 'told\.kinds'") as missing:
        read_tables(postgres, TableSelection(("told.kind",)))
    assert missing.value.code == "HR-520"


def test_the_position_of_postgres_moves_with_a_commit(postgres: Database):
    before = position_now(postgres)
    with connect(postgres) as link:
        # Within a transaction: what is outside of one is written to the log some time later.
        link.execute("SELECT pg_logical_emit_message(true, 'moves', 'on')")
    assert len(before) == 20
    assert before < position_now(postgres)


def test_tables_of_mariadb_are_described_and_its_position_moves(mariadb: Database):
    before = position_now(mariadb)
    with mysql.session(mariadb) as cursor:
        cursor.execute(
            "CREATE TABLE told (b varchar(20), a bigint unsigned, n decimal(12,2), e enum('x','y'), t datetime(6),"
            " PRIMARY KEY (b, a))"
        )
    assert read_tables(mariadb, TableSelection(("headrace.told",))) == (
        SourceTable(
            "headrace",
            "told",
            (
                SourceColumn("b", "varchar(20)", False),
                SourceColumn("a", "bigint(20) unsigned", False),
                SourceColumn("n", "decimal(12,2)", True),
                SourceColumn("e", "enum('x','y')", True),
                SourceColumn("t", "datetime(6)", True),
            ),
            ("b", "a"),
            "mysql",
            "full",
        ),
    )
    assert before < position_now(mariadb)


def test_a_refused_login_is_hr_119_and_a_silent_server_is_transient(mariadb: Database):
    with pytest.raises(ConfigError) as refused:
        position_now(replace(mariadb, password=Secret("${env:X}", "hunter2")))
    assert refused.value.code == "HR-119"
    assert "hunter2" not in str(refused.value)
    with pytest.raises(ServiceUnavailable) as silent:
        position_now(replace(mariadb, url="jdbc:mariadb://127.0.0.1:1/headrace"))
    assert silent.value.code == "HR-612"
