"""Tables of a source database, as its catalogue describes them.

`catalogue` reads them, and changes are decoded and applied with them. This module reads no database.
"""

from dataclasses import dataclass
from typing import Literal

Family = Literal["postgres", "mysql"]


@dataclass(frozen=True)
class SourceColumn:
    """One column. `type` is the type as the catalogue writes it in full.

    Postgres: `numeric(12,2)`, `timestamp(3) with time zone`, `integer[]`, `character varying(20)`. MySQL and MariaDB:
    `bigint(20) unsigned`, `datetime(6)`, `enum('a','b')`. Every enum of Postgres is `enum`, and a domain is its base
    type.
    """

    name: str
    type: str
    nullable: bool


@dataclass(frozen=True)
class SourceTable:
    """One table.

    | field    | meaning                                                                                          |
    |----------|--------------------------------------------------------------------------------------------------|
    | schema   | the schema (Postgres), or the database (MySQL, MariaDB)                                          |
    | columns  | in the order of the table                                                                        |
    | key      | the columns of its primary key in their order; empty for a table without one                     |
    | family   | the kind of log: `postgres`, or `mysql` for every database with a binlog                         |
    | identity | what the log contains of an old row: `default` (the key), `full`, `index` or `nothing`           |
    """

    schema: str
    name: str
    columns: tuple[SourceColumn, ...]
    key: tuple[str, ...]
    family: Family
    identity: str = "default"

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"

    def column(self, name: str) -> SourceColumn:
        """Return a column by its name; raises `KeyError` if the table does not have it."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)
