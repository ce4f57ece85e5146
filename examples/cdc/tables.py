"""Make a small shop in the local Postgres, or change it.

From this folder, after `headrace up --with connect --with postgres`: `python tables.py`, and `python tables.py change`.
"""

import sys
from pathlib import Path

from headrace.clients.postgres import connect
from headrace.stack.local import LocalStack
from headrace.stack.postgres import database

MAKE = (
    "CREATE SCHEMA shop",
    "CREATE TABLE shop.customers (id int PRIMARY KEY, name text, since timestamptz)",
    "CREATE TABLE shop.orders (id int PRIMARY KEY, customer int, total numeric(12,2))",
    "INSERT INTO shop.customers SELECT n, 'customer ' || n, now() FROM generate_series(1, 1000) n",
    "INSERT INTO shop.orders SELECT n, 1 + n % 1000, n / 100.0 FROM generate_series(1, 5000) n",
)
CHANGE = (
    "UPDATE shop.orders SET total = total + 1 WHERE id % 10 = 0",
    "DELETE FROM shop.orders WHERE id % 17 = 0",
    "UPDATE shop.customers SET id = -id WHERE id % 100 = 0",
    "CREATE TABLE IF NOT EXISTS shop.items (id int PRIMARY KEY, order_id int, note text)",
    "INSERT INTO shop.items SELECT n, n, 'item ' || n FROM generate_series(1, 100) n ON CONFLICT DO NOTHING",
)


def main(statements, home=Path(".headrace")):
    """Run statements, each in a transaction of its own."""
    with connect(database(LocalStack(home).files("postgres"))) as link:
        for statement in statements:
            print(statement)
            link.execute(statement)


if __name__ == "__main__":
    main(CHANGE if sys.argv[1:] == ["change"] else MAKE)
