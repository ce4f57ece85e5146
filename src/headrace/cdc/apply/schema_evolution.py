"""The columns of a kept table follow those of its source: what loses nothing is done, what would is refused.

| at the source                     | in the table                                                                    |
|-----------------------------------|---------------------------------------------------------------------------------|
| a column is added                 | it appears, null for the rows that are there                                    |
| a column is dropped               | `keep`: it stays, with what it held; rows that come later hold null in it       |
|                                   | `drop`: it goes                                                                 |
| a dropped column comes back       | a mirror begins it anew, null for the rows that are there; others go on with it |
| a type becomes wider              | it becomes wider, and files stay as they are (Delta's type widening)            |
| a type becomes another or narrower | refused (HR-542)                                                               |
| a column changes its name         | refused (HR-542): in the log it is one column less and another one more         |
| a time changes its digits         | refused (HR-542): records before and after tell it in other units               |

Wider is: a whole number into a larger one, into a decimal or a double that hold all of it; `float` into `double`; a
decimal with more digits before the point, behind it or both; an array of such elements.

What is known of a table's source stands in properties of the table: columns that are gone, and units of times.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pyspark.sql import types as T

from headrace.cdc.apply.table import TOLD, Into, told_of
from headrace.errors import DataError
from headrace.sinks.delta.log import snapshot
from headrace.sinks.delta.sql import quoted, text

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject
    from pyspark.sql import SparkSession

Dropped = Literal["keep", "drop"]
# A column, or one within a struct.
Path = tuple[str, ...]

_GONE = "headrace.gone"
# Columns that are the table's own.
_OWN = "_headrace_"
_MAPPING = "delta.columnMapping.mode"
_WIDENING = "delta.enableTypeWidening"

_DIGITS = {T.ByteType: 3, T.ShortType: 5, T.IntegerType: 10, T.LongType: 20}
_WHOLE = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
_IN_DOUBLE = (T.ByteType, T.ShortType, T.IntegerType, T.FloatType)


@dataclass(frozen=True)
class Policy:
    """What is done where the source leaves a choice.

    | field   | meaning                                                                                              |
    |---------|------------------------------------------------------------------------------------------------------|
    | dropped | whether a column that the source dropped stays                                                       |
    | cleared | whether one that comes back begins without its old values, as at the source; a history keeps its own |
    """

    dropped: Dropped = "keep"
    cleared: bool = False


def follow(session: SparkSession, into: Into, location: str, wanted: T.StructType, policy: Policy) -> None:
    """Bring the columns of a table to those of its source. Called before a batch of its changes is applied.

    `wanted` is what the table would be made with now. Each statement is a commit of its own; a batch that is run again
    finds it done.
    """
    now = snapshot(session, location)
    if int(now.version()) < 0:
        return
    held, source = _flat(T.StructType.fromJson(json.loads(now.schema().json()))), _flat(wanted)
    known, told = {tuple(path) for path in json.loads(_property(now, _GONE) or "[]")}, told_of(wanted)
    before = json.loads(_property(now, TOLD) or "{}")
    _require_kind(into, location, held, source)
    _require_told(into, location, before, told)
    added = {path: kind for path, kind in source.items() if path not in held}
    missing = held.keys() - source.keys()
    if added and missing - known:
        raise _renamed(into, location, min(missing - known), *min(added.items()))
    statements = [
        _widening(into, location, path, held[path], kind)
        for path, kind in source.items()
        if path in held and held[path] != kind
    ]
    if statements and _property(now, _WIDENING) is None:
        statements.insert(0, _set(_WIDENING, "true"))
    if added:
        columns = ", ".join(f"{_name(path)} {kind.simpleString()}" for path, kind in added.items())
        statements.append(f"ADD COLUMNS ({columns})")
    if missing and policy.dropped == "drop":
        # Without a mapping of names a column could only go by rewriting every file.
        statements += [_set(_MAPPING, "name")] if _property(now, _MAPPING) is None else []
        statements.append(f"DROP COLUMNS ({', '.join(_name(path) for path in sorted(missing))})")
    elif missing != known:
        statements.append(_set(_GONE, json.dumps(sorted(missing))))
    if told != before:
        statements.append(_set(TOLD, json.dumps(told)))
    back = sorted(_name(path) for path in known & source.keys())
    if back and policy.cleared:
        empty = ", ".join(f"{name} = NULL" for name in back)
        session.sql(f"UPDATE {_table(location)} SET {empty}")  # noqa: S608 - names are quoted
    for statement in statements:
        session.sql(f"ALTER TABLE {_table(location)} {statement}")


def _widening(into: Into, location: str, path: Path, before: T.DataType, after: T.DataType) -> str:
    if isinstance(before, T.ArrayType) and isinstance(after, T.ArrayType):
        return _widening(into, location, (*path, "element"), before.elementType, after.elementType)
    if not _is_wider(before, after):
        raise _other_type(into, location, path, before, after)
    return f"ALTER COLUMN {_name(path)} TYPE {after.simpleString()}"


def _is_wider(before: T.DataType, after: T.DataType) -> bool:
    """Return whether every value of one type is one of the other, and Delta reads files of the one as the other."""
    if isinstance(before, _WHOLE) and isinstance(after, _WHOLE):
        return _WHOLE.index(type(before)) < _WHOLE.index(type(after))
    if isinstance(after, T.DecimalType):
        if isinstance(before, T.DecimalType):
            precision, scale = before.precision, before.scale
        elif isinstance(before, _WHOLE):
            precision, scale = _DIGITS[type(before)], 0
        else:
            return False
        return after.scale >= scale and after.precision - after.scale >= precision - scale
    return isinstance(after, T.DoubleType) and isinstance(before, _IN_DOUBLE)


def _flat(schema: T.StructType, within: Path = ()) -> dict[Path, T.DataType]:
    """Return the types of all columns, those within structs too. Columns of a source are never structs."""
    found: dict[Path, T.DataType] = {}
    for field in schema:
        path = (*within, field.name)
        found |= _flat(field.dataType, path) if isinstance(field.dataType, T.StructType) else {path: field.dataType}
    return found


def _property(now: JavaObject, name: str) -> str | None:
    found = now.metadata().configuration().get(name)
    return str(found.get()) if found.isDefined() else None


def _set(name: str, value: str) -> str:
    return f"SET TBLPROPERTIES ('{name}' = {text(value)})"


def _name(path: Path) -> str:
    return ".".join(quoted(name) for name in path)


def _table(location: str) -> str:
    return f"delta.{quoted(location)}"


def _require_kind(
    into: Into, location: str, held: Mapping[Path, T.DataType], source: Mapping[Path, T.DataType]
) -> None:
    """Raise HR-543 for a table that was made to be kept in another way."""
    mine, its = ({path[0] for path in paths if path[0].startswith(_OWN)} for paths in (source, held))
    if mine != its:
        names = ", ".join(f"'{name}'" for name in sorted(mine ^ its))
        raise DataError(
            f"What is kept of table {into.table} at {location} was begun in another way.",
            why=f"Columns {names} are in one of the two ways and not in the other.",
            state="Nothing of the batch was written to this table.",
            remedy="Declare the kind and the deletes as they were, or keep the other kind by a flow with a path of its "
            "own, begun anew.",
            code="HR-543",
        )


def _require_told(into: Into, location: str, before: Mapping[str, str], now: Mapping[str, str]) -> None:
    for name in sorted(before.keys() & now.keys()):
        if before[name] != now[name]:
            raise _refused(
                into,
                f"Column '{name}' was told as {before[name]} and is told as {now[name]} since its type was changed; a "
                "record does not say how it was written.",
                "If all changes from before were applied when the column was changed: ALTER TABLE "
                f"{_table(location)} UNSET TBLPROPERTIES ('{TOLD}'); If not, capture the table anew.",
            )


def _renamed(into: Into, location: str, old: Path, new: Path, kind: T.DataType) -> DataError:
    table = f"ALTER TABLE {_table(location)}"
    return _refused(
        into,
        f"Column '{new[-1]}' is new and '{old[-1]}' is gone: that may be one column, renamed.",
        f"If it is one column: {table} {_set(_MAPPING, 'name')}; {table} RENAME COLUMN {_name(old)} TO "
        f"{quoted(new[-1])}; If it is two: {table} ADD COLUMNS ({_name(new)} {kind.simpleString()});",
    )


def _other_type(into: Into, location: str, path: Path, before: T.DataType, after: T.DataType) -> DataError:
    table, name, aside = f"ALTER TABLE {_table(location)}", path[-1], f"{path[-1]}_before"
    was, now = before.simpleString(), after.simpleString()
    beside = _name((*path[:-1], aside))
    steps = (
        f"{table} {_set(_MAPPING, 'name')}",
        f"{table} RENAME COLUMN {_name(path)} TO {quoted(aside)}",
        f"{table} ADD COLUMNS ({_name(path)} {now})",
        f"UPDATE {_table(location)} SET {_name(path)} = CAST({beside} AS {now})",  # noqa: S608 - names are quoted
        f"{table} DROP COLUMN {beside}",
    )
    return _refused(
        into,
        f"Column '{name}' was {was} and is {now} at the source now, which does not hold all that was in it.",
        f"Run {' '.join(f'{step};' for step in steps)} The fourth fails on a value that does not fit. If the column is "
        "of the key, capture the table anew.",
    )


def _refused(into: Into, why: str, plan: str) -> DataError:
    return DataError(
        f"The columns of table {into.table} changed in a way that is not followed.",
        why=why,
        state="Nothing of the batch was written to this table. It holds every batch before.",
        remedy=f"{plan} Then start the flow again.",
        code="HR-542",
    )
