"""What the tables of the shop hold after a history, in plain Python: no database, no log, no Spark."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.patterns.cdc.generator import KEYS, Change, Key, Row, Transaction

Tables = dict[str, dict[Key, Row]]


def replayed(history: Iterable[Transaction]) -> Tables:
    """Return the rows of each table by their keys, after all transactions of a history, its first one included."""
    tables: Tables = {name: {} for name in KEYS}
    for transaction in history:
        for change in transaction.changes:
            _apply(tables, change)
    return tables


def unrelated(tables: Tables) -> list[str]:
    """Return what belongs to nothing: orders without their customer, items without their order."""
    customers, orders = tables["customers"], tables["orders"]
    lost = [f"order {key[0]}" for key, row in orders.items() if (row["customer_id"],) not in customers]
    return lost + [f"item {key}" for key in tables["items"] if key[:1] not in orders]


def differences(expected: Tables, held: Tables) -> list[str]:
    """Return every row in which two states of the shop differ, in words."""
    found = []
    for table, rows in expected.items():
        there = held.get(table, {})
        found += [f"{table} {key} is not there" for key in rows if key not in there]
        found += [f"{table} {key} should not be there" for key in there if key not in rows]
        for key in rows.keys() & there.keys():
            names = [name for name in rows[key] if rows[key][name] != there[key].get(name)]
            found += [f"{table} {key} differs in {', '.join(names)}"] if names else []
    return sorted(found)


def _apply(tables: Tables, change: Change) -> None:
    rows = tables[change.table]
    if (change.key in rows) is (change.op == "insert"):
        raise ValueError(
            f"{change.op} of {change.table} {change.key}: the row is {'' if change.key in rows else 'not '}there"
        )
    if change.op == "delete":
        del rows[change.key]
        return
    row = {**rows.pop(change.key, {}), **change.values}
    key = tuple(int(str(row[name])) for name in KEYS[change.table])
    if key in rows:
        raise ValueError(f"{change.table} {key} is there already")
    rows[key] = row
