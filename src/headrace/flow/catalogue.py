"""Tables of a source database, in the words of its own catalogue. `clients` read them, changes are applied by them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Family = Literal["postgres", "mariadb"]


@dataclass(frozen=True)
class SourceColumn:
    """One column, in the words of the database.

    `type_name` is the bare name as the catalogue gives it, without arguments: `numeric`, `timestamptz`, `_int4` is
    `int4` with `dimensions` 1. `arguments` are those of the type: precision and scale, length, digits of a second.
    `labels` are the values of an enum.
    """

    name: str
    type_name: str
    nullable: bool
    arguments: tuple[int, ...] = ()
    dimensions: int = 0
    labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class SourceTable:
    """One table. `key` names the columns of its primary key in their order; empty for a table without one.

    `full_images` says that the log holds whole old rows (Postgres: replica identity full; binlog: row image full).
    """

    family: Family
    schema: str
    name: str
    columns: tuple[SourceColumn, ...]
    key: tuple[str, ...]
    full_images: bool = False

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"

    def column(self, name: str) -> SourceColumn:
        """Return a column by its name."""
        return next(column for column in self.columns if column.name == name)
