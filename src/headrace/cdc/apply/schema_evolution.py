"""Evolve the columns of a table with those of its source. Lossless changes are applied, others are rejected.

| at the source                     | in the table                                                                    |
|-----------------------------------|---------------------------------------------------------------------------------|
| a column is added                 | it is added; existing rows have null                                            |
| a column is dropped               | `keep`: it stays with its values; later rows have null                          |
|                                   | `drop`: it is dropped                                                           |
| a dropped column is added again   | in a mirror it starts as null; other tables keep its old values                 |
| a type becomes wider              | it becomes wider without rewriting files (Delta's type widening)                |
| a type changes in another way     | rejected (HR-542)                                                               |
| a column is renamed               | rejected (HR-542): in the log, one column is dropped and another one is added   |
| the precision of a time changes   | rejected (HR-542): records before and after use different units                 |

A type becomes wider if an integer becomes a larger integer, or a decimal or double that can represent all its values;
if `float` becomes `double`; if a decimal gets more digits before or after the point; or if the elements of an array do.

Table properties store the state of the source: dropped columns, and units of times.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pyspark.sql import SparkSession, types as T

from headrace.cdc.apply.table import TEXT_FORMAT, TableWrite, text_formats_of
from headrace.clients.spark.delta_log import snapshot
from headrace.clients.sql import quote_name, string_literal
from headrace.errors import DataError

DroppedColumns = Literal["keep", "drop"]
# A column, or one within a struct.
Path = tuple[str, ...]

_DROPPED = "headrace.dropped"
# The prefix of metadata columns.
_OWN = "_headrace_"
_MAPPING = "delta.columnMapping.mode"
_WIDENING = "delta.enableTypeWidening"

_DIGITS = {T.ByteType: 3, T.ShortType: 5, T.IntegerType: 10, T.LongType: 20}
_INTEGERS = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
_IN_DOUBLE = (T.ByteType, T.ShortType, T.IntegerType, T.FloatType)


@dataclass(frozen=True)
class EvolutionPolicy:
    """How to evolve columns if there is a choice.

    | field   | meaning                                                                                              |
    |---------|------------------------------------------------------------------------------------------------------|
    | dropped | whether a column that the source dropped stays                                                       |
    | cleared | whether a column that is added again starts as null, as at the source; a history keeps old values    |
    """

    dropped: DroppedColumns = "keep"
    cleared: bool = False


def evolve_columns(
    session: SparkSession, into: TableWrite, location: str, source_columns: T.StructType, policy: EvolutionPolicy
) -> None:
    """Change the columns of a table to those of its source. Called before a batch of changes is applied.

    `source_columns` are the columns that a new table would get. Each statement is a separate commit, which a retried
    batch does not repeat.
    """
    now = snapshot(session, location)
    if now.version < 0:
        return
    table_types, source_types = _flat_types(now.schema), _flat_types(source_columns)
    dropped_before = {tuple(path) for path in json.loads(now.table_property(_DROPPED) or "[]")}
    text_formats = text_formats_of(source_columns)
    before = json.loads(now.table_property(TEXT_FORMAT) or "{}")
    _require_kind(into, location, table_types, source_types)
    _require_same_format(into, location, before, text_formats)
    added = {path: kind for path, kind in source_types.items() if path not in table_types}
    missing = table_types.keys() - source_types.keys()
    if added and missing - dropped_before:
        raise _possible_rename_error(into, location, min(missing - dropped_before), *min(added.items()))
    statements = [
        _type_widening_clause(into, location, path, table_types[path], kind)
        for path, kind in source_types.items()
        if path in table_types and table_types[path] != kind
    ]
    if statements and now.table_property(_WIDENING) is None:
        statements.insert(0, _set_property(_WIDENING, "true"))
    if added:
        columns = ", ".join(f"{_quoted_path(path)} {kind.simpleString()}" for path, kind in added.items())
        statements.append(f"ADD COLUMNS ({columns})")
    if missing and policy.dropped == "drop":
        # Without column mapping, dropping a column would rewrite every file.
        statements += [_set_property(_MAPPING, "name")] if now.table_property(_MAPPING) is None else []
        statements.append(f"DROP COLUMNS ({', '.join(_quoted_path(path) for path in sorted(missing))})")
    elif missing != dropped_before:
        statements.append(_set_property(_DROPPED, json.dumps(sorted(missing))))
    if text_formats != before:
        statements.append(_set_property(TEXT_FORMAT, json.dumps(text_formats)))
    back = sorted(_quoted_path(path) for path in dropped_before & source_types.keys())
    if back and policy.cleared:
        empty = ", ".join(f"{name} = NULL" for name in back)
        session.sql(f"UPDATE {_quoted_table(location)} SET {empty}")  # noqa: S608 - names are quoted
    for statement in statements:
        session.sql(f"ALTER TABLE {_quoted_table(location)} {statement}")


def _type_widening_clause(into: TableWrite, location: str, path: Path, before: T.DataType, after: T.DataType) -> str:
    if isinstance(before, T.ArrayType) and isinstance(after, T.ArrayType):
        return _type_widening_clause(into, location, (*path, "element"), before.elementType, after.elementType)
    if not _is_wider(before, after):
        raise _type_change_error(into, location, path, before, after)
    return f"ALTER COLUMN {_quoted_path(path)} TYPE {after.simpleString()}"


def _is_wider(before: T.DataType, after: T.DataType) -> bool:
    """Return whether one type can represent every value of the other, and Delta reads files with both."""
    if isinstance(before, _INTEGERS) and isinstance(after, _INTEGERS):
        return _INTEGERS.index(type(before)) < _INTEGERS.index(type(after))
    if isinstance(after, T.DecimalType):
        if isinstance(before, T.DecimalType):
            precision, scale = before.precision, before.scale
        elif isinstance(before, _INTEGERS):
            precision, scale = _DIGITS[type(before)], 0
        else:
            return False
        return after.scale >= scale and after.precision - after.scale >= precision - scale
    return isinstance(after, T.DoubleType) and isinstance(before, _IN_DOUBLE)


def _flat_types(schema: T.StructType, within: Path = ()) -> dict[Path, T.DataType]:
    """Return the types of all columns, also within structs. Columns of a source are never structs."""
    types: dict[Path, T.DataType] = {}
    for field in schema:
        path = (*within, field.name)
        types |= (
            _flat_types(field.dataType, path) if isinstance(field.dataType, T.StructType) else {path: field.dataType}
        )
    return types


def _set_property(name: str, value: str) -> str:
    return f"SET TBLPROPERTIES ('{name}' = {string_literal(value)})"


def _quoted_path(path: Path) -> str:
    return ".".join(quote_name(name) for name in path)


def _quoted_table(location: str) -> str:
    return f"delta.{quote_name(location)}"


def _require_kind(
    into: TableWrite, location: str, table_types: Mapping[Path, T.DataType], source_types: Mapping[Path, T.DataType]
) -> None:
    """Raise HR-543 if the table was created with another storage kind."""
    mine, its = ({path[0] for path in paths if path[0].startswith(_OWN)} for paths in (source_types, table_types))
    if mine != its:
        names = ", ".join(f"'{name}'" for name in sorted(mine ^ its))
        raise DataError(
            f"Table {into.table} at {location} has another storage kind than declared.",
            why=f"The table and the declared storage kind differ in columns {names}.",
            state="Nothing of the batch was written to this table.",
            remedy="Declare `stored_as` and `deletes` as before, or use another flow with a new path.",
            code="HR-543",
        )


def _require_same_format(into: TableWrite, location: str, before: Mapping[str, str], now: Mapping[str, str]) -> None:
    for name in sorted(before.keys() & now.keys()):
        if before[name] != now[name]:
            raise _unsupported_change(
                into,
                f"Column '{name}' was sent as {before[name]} and is sent as {now[name]} since its type changed. A "
                "record does not contain its format.",
                "If all earlier changes were applied before the column was changed: ALTER TABLE "
                f"{_quoted_table(location)} UNSET TBLPROPERTIES ('{TEXT_FORMAT}'); If not, capture the table again.",
            )


def _possible_rename_error(into: TableWrite, location: str, old: Path, new: Path, kind: T.DataType) -> DataError:
    table = f"ALTER TABLE {_quoted_table(location)}"
    return _unsupported_change(
        into,
        f"Column '{new[-1]}' is new and '{old[-1]}' is missing: that may be one renamed column.",
        f"If it is one column: {table} {_set_property(_MAPPING, 'name')}; {table} RENAME COLUMN {_quoted_path(old)} TO "
        f"{quote_name(new[-1])}; If it is two: {table} ADD COLUMNS ({_quoted_path(new)} {kind.simpleString()});",
    )


def _type_change_error(into: TableWrite, location: str, path: Path, before: T.DataType, after: T.DataType) -> DataError:
    table, name, aside = f"ALTER TABLE {_quoted_table(location)}", path[-1], f"{path[-1]}_before"
    was, now = before.simpleString(), after.simpleString()
    previous = _quoted_path((*path[:-1], aside))
    steps = (
        f"{table} {_set_property(_MAPPING, 'name')}",
        f"{table} RENAME COLUMN {_quoted_path(path)} TO {quote_name(aside)}",
        f"{table} ADD COLUMNS ({_quoted_path(path)} {now})",
        f"UPDATE {_quoted_table(location)} SET {_quoted_path(path)} = CAST({previous} AS {now})",  # noqa: S608 - names are quoted
        f"{table} DROP COLUMN {previous}",
    )
    return _unsupported_change(
        into,
        f"Column '{name}' was {was} and is now {now} at the source, which cannot represent all its earlier values.",
        f"Run {' '.join(f'{step};' for step in steps)} The fourth fails on a value that does not fit. If the column is "
        "part of the key, capture the table again.",
    )


def _unsupported_change(into: TableWrite, why: str, plan: str) -> DataError:
    return DataError(
        f"The columns of table {into.table} changed in a way that is not supported.",
        why=why,
        state="Nothing of the batch was written to this table. It contains every earlier batch.",
        remedy=f"{plan} Then start the flow again.",
        code="HR-542",
    )
