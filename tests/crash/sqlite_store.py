"""A store of one's own, as the exactly-once sink for such stores wants it: SQLite, in a file below the lake."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from headrace.flow.target import Target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.flow.sink import Batch

# Called when the rows of a batch are in an open transaction. A driver that wants to stop there puts something in.
in_the_middle: list[Callable[[Batch], None]] = []


class SqliteTransaction:
    """One transaction. It begins with the only lock for writing, so it reads what the last one committed."""

    def __init__(self, target: Target) -> None:
        self._store = sqlite3.connect(place(target), isolation_level=None, timeout=60, check_same_thread=False)
        self._store.execute("BEGIN IMMEDIATE")
        self._store.execute("CREATE TABLE IF NOT EXISTS held (row TEXT)")
        self._store.execute("CREATE TABLE IF NOT EXISTS last (key TEXT PRIMARY KEY, text TEXT)")

    def last(self, key: str) -> str | None:
        result = self._store.execute("SELECT text FROM last WHERE key = ?", [key]).fetchone()
        return None if result is None else str(result[0])

    def write(self, rows: DataFrame, batch: Batch) -> None:
        self._store.executemany("INSERT INTO held VALUES (?)", rows.select(F.to_json(F.struct("*"))).collect())
        for stop in in_the_middle:
            stop(batch)

    def record(self, key: str, text: str) -> None:
        self._store.execute("INSERT OR REPLACE INTO last VALUES (?, ?)", [key, text])

    def commit(self) -> None:
        self._store.execute("COMMIT")
        self._store.close()

    def abort(self) -> None:
        self._store.rollback()
        self._store.close()


def place(target: Target) -> Path:
    return Path(target.table("shelf.db"))


def stored_rows(target: Target) -> list[str]:
    """Return the rows that a reader sees."""
    with closing(sqlite3.connect(place(target))) as store:
        created = store.execute("SELECT count(*) FROM sqlite_master WHERE name = 'held'").fetchone()[0]
        return [row for (row,) in store.execute("SELECT row FROM held")] if created else []
