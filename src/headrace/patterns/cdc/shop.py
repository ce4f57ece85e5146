"""The shop in Postgres: its tables, and its history written into them, transaction by transaction.

A table stores the progress of the history. Each transaction of the history also updates it. So a shop that was stopped
or killed resumes with the next transaction, and the model can replay exactly what was written.
"""

import time
from collections import Counter
from itertools import islice
from threading import Event

import psycopg
from psycopg import sql
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from headrace.clients.postgres import session
from headrace.errors import ConfigError
from headrace.flow.target import Database
from headrace.patterns.cdc.generator import KEYS, OPENING, RowChange, Shop, ShopTransaction, Value
from headrace.patterns.cdc.model import Tables

SCHEMA = "demo_shop"

# Relations are judged at the end of a transaction: a customer may get another key before its orders name it.
# A note is stored outside of its row and not compressed, so that updates do not log a long one.
_TABLES = f"""
CREATE SCHEMA IF NOT EXISTS {SCHEMA};
CREATE TABLE IF NOT EXISTS {SCHEMA}.customers (
    id bigint PRIMARY KEY,
    name text NOT NULL,
    email text,
    balance numeric(12,2) NOT NULL,
    tags text[] NOT NULL,
    profile jsonb NOT NULL,
    since timestamptz NOT NULL
);
CREATE TABLE IF NOT EXISTS {SCHEMA}.orders (
    id bigint PRIMARY KEY,
    customer_id bigint NOT NULL REFERENCES {SCHEMA}.customers DEFERRABLE INITIALLY DEFERRED,
    status text NOT NULL,
    total numeric(12,2) NOT NULL,
    placed_at timestamptz NOT NULL,
    note text,
    details jsonb NOT NULL
);
ALTER TABLE {SCHEMA}.orders ALTER COLUMN note SET STORAGE EXTERNAL;
CREATE TABLE IF NOT EXISTS {SCHEMA}.items (
    order_id bigint REFERENCES {SCHEMA}.orders DEFERRABLE INITIALLY DEFERRED,
    line integer,
    product text NOT NULL,
    quantity integer NOT NULL,
    price numeric(10,2) NOT NULL,
    PRIMARY KEY (order_id, line)
);
CREATE INDEX IF NOT EXISTS orders_of ON {SCHEMA}.orders (customer_id);
CREATE TABLE IF NOT EXISTS {SCHEMA}.history (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    seed bigint NOT NULL,
    done bigint NOT NULL
);
"""


def open_shop(database: Database, *, seed: int) -> None:
    """Create the tables and the opening rows of the shop unless they exist. Raises HR-124 for another seed."""
    with session(database) as connection:
        connection.execute(_TABLES)
        connection.execute(
            sql.SQL("INSERT INTO {} (seed, done) VALUES (%s, 0) ON CONFLICT DO NOTHING").format(_name("history")),
            (seed,),
        )
        current_seed, done = progress(connection)
        if current_seed != seed:
            raise ConfigError(
                "The shop was created with another seed.",
                why=f"Its history has the seed {current_seed} and cannot continue with the seed {seed}.",
                state="Nothing was changed.",
                remedy=f"Continue with `--seed {current_seed}`, or start in another folder: `--home`.",
                code="HR-124",
            )
        for transaction in islice(Shop(seed).history(), done, OPENING):
            write(connection, transaction)


def live(database: Database, *, seed: int, rate: float, stop: Event) -> Counter[str]:
    """Continue the history, `rate` transactions per second, until `stop` is set. Returns the changes by kind."""
    counts: Counter[str] = Counter()
    with session(database) as connection:
        _, done = progress(connection)
        started = time.monotonic()
        for number, transaction in enumerate(islice(Shop(seed).history(), done, None)):
            if stop.wait(max(0.0, started + number / rate - time.monotonic())):
                break
            write(connection, transaction)
            counts.update(change.kind for change in transaction.changes)
    return counts


def progress(connection: psycopg.Connection) -> tuple[int, int]:
    """Return the seed of the history, and the number of its committed transactions."""
    row = connection.execute(sql.SQL("SELECT seed, done FROM {}").format(_name("history"))).fetchone()
    assert row is not None  # noqa: S101 - written when the tables are created
    return int(row[0]), int(row[1])


def counts(connection: psycopg.Connection) -> dict[str, int]:
    """Return the number of rows of each table, at one point in time."""
    counters = sql.SQL(", ").join(sql.SQL("(SELECT count(*) FROM {})").format(_name(table)) for table in KEYS)
    row = connection.execute(sql.SQL("SELECT {}").format(counters)).fetchone()
    return dict(zip(KEYS, row or (), strict=True))


def table_rows(connection: psycopg.Connection) -> Tables:
    """Return every row of the tables, in the form of the model. The shop must be idle."""
    tables: Tables = {}
    for table, key in KEYS.items():
        with connection.cursor(row_factory=dict_row) as cursor:
            rows = cursor.execute(sql.SQL("SELECT * FROM {}").format(_name(table))).fetchall()
        tables[table] = {tuple(row[name] for name in key): row for row in rows}
    return tables


def write(connection: psycopg.Connection, transaction: ShopTransaction) -> None:
    """Commit a transaction together with its number."""
    with connection.pipeline(), connection.transaction():
        for change in transaction.changes:
            statement, values = _statement(change)
            connection.execute(statement, values)
        connection.execute(sql.SQL("UPDATE {} SET done = %s").format(_name("history")), (transaction.number + 1,))


def _statement(change: RowChange) -> tuple[sql.Composed, list[object]]:
    names = [sql.Identifier(name) for name in change.values]
    values = [_adapted(value) for value in change.values.values()]
    table, key = _name(change.table), KEYS[change.table]
    where = sql.SQL(" AND ").join(sql.SQL("{} = %s").format(sql.Identifier(name)) for name in key)
    match change.op:
        case "insert":
            marks = sql.SQL(", ").join([sql.Placeholder()] * len(names))
            text = sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(table, sql.SQL(", ").join(names), marks)
            return text, values
        case "update":
            sets = sql.SQL(", ").join(sql.SQL("{} = %s").format(name) for name in names)
            return sql.SQL("UPDATE {} SET {} WHERE {}").format(table, sets, where), [*values, *change.key]
        case _:
            return sql.SQL("DELETE FROM {} WHERE {}").format(table, where), list(change.key)


def _adapted(value: Value) -> object:
    return Jsonb(value) if isinstance(value, dict) else value


def _name(table: str) -> sql.Identifier:
    return sql.Identifier(SCHEMA, table)
