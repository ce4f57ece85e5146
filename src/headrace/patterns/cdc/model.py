"""The tables of the shop after a history, in plain Python: no database, no log, no Spark."""

from collections.abc import Iterable

from headrace.patterns.cdc.generator import KEYS, Key, Row, RowChange, ShopTransaction

Tables = dict[str, dict[Key, Row]]


def replay(history: Iterable[ShopTransaction]) -> Tables:
    """Return the rows of each table by their keys, after all transactions of a history, its first one included."""
    tables: Tables = {name: {} for name in KEYS}
    for transaction in history:
        for change in transaction.changes:
            _apply(tables, change)
    return tables


def differences(expected: Tables, actual: Tables) -> list[str]:
    """Return every row in which two states of the shop differ, in words."""
    messages = []
    for table, rows in expected.items():
        actual_rows = actual.get(table, {})
        messages += [f"{table} {key} is not there" for key in rows if key not in actual_rows]
        messages += [f"{table} {key} should not be there" for key in actual_rows if key not in rows]
        for key in rows.keys() & actual_rows.keys():
            names = [name for name in rows[key] if rows[key][name] != actual_rows[key].get(name)]
            messages += [f"{table} {key} differs in {', '.join(names)}"] if names else []
    return sorted(messages)


def _apply(tables: Tables, change: RowChange) -> None:
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
