"""A table that rows are enriched from: when it is read again, what is refused of it, and the rows that are in use.

A dimension is broadcast: the driver collects it, and every executor holds a copy beside each batch. So its size is
measured whenever it is read, and a larger one than the limit is refused, at the start of a flow already.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.storagelevel import StorageLevel

from headrace.clients.storage import is_local, local_path
from headrace.errors import DataError
from headrace.flow.duration import Duration
from headrace.flow.size import Size, said_bytes
from headrace.flow.target import Target
from headrace.sinks.delta.log import snapshot
from headrace.sinks.delta.table import DELETED

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# The version of a table that is not there.
ABSENT = -1
_NOTHING_WRITTEN = "No row of the batch was written; it is run again from the same offsets."
# How many keys a message names.
_FEW = 3


@dataclass(frozen=True)
class EachBatch:
    """Read the newest version anew for every batch, whether it changed or not."""


@dataclass(frozen=True)
class EveryInterval:
    """Look for a newer version when this long has passed since the last look, and at every start of the flow."""

    interval: str = "5 minutes"

    def __post_init__(self) -> None:
        Duration.parse(self.interval)


@dataclass(frozen=True)
class OnNewVersion:
    """Ask for the newest version before every batch, which is cheap, and read the table only when there is one."""


Refresh = EachBatch | EveryInterval | OnNewVersion


@dataclass(frozen=True)
class AsOf:
    """Take the row of a key that was valid when the event happened: from `valid_from` to before `valid_to`.

    `time` is the event's column. A null `valid_from` is valid from ever, and a null `valid_to` until further notice, as
    in a table of SCD type 2.
    """

    time: str
    valid_from: str = "valid_from"
    valid_to: str = "valid_to"


@dataclass(frozen=True)
class Dimension:
    """A Delta table below the lake, unless `path` is absolute, with one row per key, or per key and time.

    Rows that are marked as deleted, as a mirror or a history of captured changes marks them, count as not there.

    | field           | default        | meaning                                                                     |
    |-----------------|----------------|-----------------------------------------------------------------------------|
    | path            |                | the table                                                                   |
    | key             |                | its column that tells rows apart                                            |
    | columns         |                | the columns that rows get from it, with their types                         |
    | refresh         | OnNewVersion() | when a newer version is used: also `EachBatch()` and `EveryInterval()`      |
    | as_of           | None           | join by event time; None takes the one row of a key                         |
    | broadcast_limit | 100 MB         | the most that its rows may take in memory, key and columns                  |
    | required        | True           | whether a flow refuses to start without the table; else it counts as empty  |
    """

    path: str
    key: str
    columns: T.StructType
    refresh: Refresh = field(default_factory=OnNewVersion)
    as_of: AsOf | None = None
    broadcast_limit: str = "100 MB"
    required: bool = True

    def __post_init__(self) -> None:
        Size.parse(self.broadcast_limit)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that rows get."""
        return tuple(self.columns.names)


@dataclass(frozen=True)
class Loaded:
    """One version of a dimension, kept on the executors: `identity` is the table, `bytes` what its rows take."""

    identity: str
    version: int
    rows: DataFrame
    bytes: int


class DimensionInUse:
    """The dimension as one run of a flow uses it. Called on one thread, but for `upcoming`; `begin` at every start."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._loaded: Loaded | None = None
        self._looked = 0.0

    def begin(self) -> None:
        """Forget what an earlier run used."""
        if self._loaded is not None:
            self._loaded.rows.unpersist()
        self._loaded = None

    def current(self, dimension: Dimension, session: SparkSession, target: Target) -> Loaded:
        """Return the version to use now, by the policy. Raises when a newer one is refused."""
        loaded = self._loaded
        if loaded is not None and not self._is_due(dimension.refresh):
            return loaded
        self._looked = self._clock()
        identity, version = _newest(session, target.table(dimension.path))
        same = loaded is not None and (loaded.identity, loaded.version) == (identity, version)
        if loaded is not None and same and not isinstance(dimension.refresh, EachBatch):
            return loaded
        # First let go: Spark takes a second reading of one version for the rows that it keeps already.
        self.begin()
        self._loaded = _load(dimension, session, target.table(dimension.path), identity, version)
        return self._loaded

    def upcoming(self, dimension: Dimension, session: SparkSession, target: Target) -> tuple[str, int] | None:
        """Return the table and the version that `current` would use now. Changes nothing; called on any thread.

        None is before the first reading.
        """
        loaded = self._loaded
        if loaded is None:
            return None
        if not self._is_due(dimension.refresh):
            return loaded.identity, loaded.version
        return _newest(session, target.table(dimension.path))

    def _is_due(self, refresh: Refresh) -> bool:
        if isinstance(refresh, EveryInterval):
            return self._clock() - self._looked >= Duration.parse(refresh.interval).seconds
        return True


def require_there(dimension: Dimension, target: Target) -> None:
    """Raise when a table of this machine is required and not there. One on another filesystem is left to Spark."""
    location = target.table(dimension.path)
    if dimension.required and is_local(location) and not (local_path(location) / "_delta_log").is_dir():
        raise _missing(dimension, location)


def _newest(session: SparkSession, location: str) -> tuple[str, int]:
    now = snapshot(session, location)
    version = int(now.version())
    return ("", ABSENT) if version < 0 else (str(now.metadata().id()), version)


def _load(dimension: Dimension, session: SparkSession, location: str, identity: str, version: int) -> Loaded:
    """Read one version, keep it, and refuse what would be wrong or too large to join with."""
    if version == ABSENT and dimension.required:
        raise _missing(dimension, location)
    if version == ABSENT:
        return Loaded(identity, version, session.createDataFrame([], _typed(dimension, _key_type(dimension))), 0)
    table = session.read.format("delta").option("versionAsOf", str(version)).load(location)
    _require_columns(dimension, table.schema)
    there = _column(dimension.key).isNotNull()
    if DELETED in table.columns:
        there &= ~F.coalesce(_column(DELETED), F.lit(False))
    rows = table.where(there).select(*map(_column, _read(dimension)))
    files = snapshot(session, location).sizeInBytesIfKnown()
    if files.isDefined() and int(files.get()) > Size.parse(dimension.broadcast_limit).bytes:
        # Perhaps by columns that nobody takes. It is read once more, rather than kept and then refused.
        _measured(dimension, rows)
    rows = rows.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        size = _measured(dimension, rows)
        twice = [str(row[0]) for row in _ambiguous(dimension, rows).limit(_FEW).collect()]
        if twice:
            raise _more_than_one(dimension, version, twice)
    except BaseException:
        rows.unpersist()
        raise
    return Loaded(identity, version, rows, size)


def _measured(dimension: Dimension, rows: DataFrame) -> int:
    """Return what the rows take in memory; raise when that is more than the limit."""
    limit = Size.parse(dimension.broadcast_limit)
    count, size = rows.agg(F.count("*"), F.coalesce(F.sum(_bytes(rows.schema)), F.lit(0))).collect()[0]
    if size > limit.bytes:
        raise _too_large(dimension, f"{said_bytes(size)} in {count:,} rows", limit)
    return int(size)


def _read(dimension: Dimension) -> list[str]:
    """Return the columns that are read: the key, those that rows get, and the bounds of validity."""
    bounds = () if dimension.as_of is None else (dimension.as_of.valid_from, dimension.as_of.valid_to)
    return list(dict.fromkeys((dimension.key, *dimension.names, *bounds)))


def _key_type(dimension: Dimension) -> T.DataType:
    known = [each.dataType for each in dimension.columns if each.name == dimension.key]
    return known[0] if known else T.StringType()


def _typed(dimension: Dimension, key: T.DataType) -> T.StructType:
    """Return the columns that are read, for a table that is not there."""
    types = {each.name: each.dataType for each in dimension.columns} | {dimension.key: key}
    return T.StructType([T.StructField(name, types.get(name, T.TimestampType())) for name in _read(dimension)])


def _bytes(schema: T.StructType) -> Column:
    """Return what a row takes in a hash table of Spark: eight bytes per column, and those of texts beside them."""
    wide = [
        F.octet_length(_column(each.name))
        if isinstance(each.dataType, T.StringType | T.BinaryType)
        else F.octet_length(F.to_json(F.struct(_column(each.name))))
        for each in schema
        if isinstance(each.dataType, T.StringType | T.BinaryType | T.ArrayType | T.MapType | T.StructType)
    ]
    # The set of nulls, the length, and the pointers of the table.
    fixed = F.lit(32 + 8 * len(schema))
    return reduce(lambda one, other: one + F.coalesce(other, F.lit(0)), wide, fixed)


def _ambiguous(dimension: Dimension, rows: DataFrame) -> DataFrame:
    """Return the keys that would make two rows of one: they occur twice, or are valid twice at one time."""
    key = _column(dimension.key)
    if dimension.as_of is None:
        return rows.groupBy(key).count().where("count > 1").select(key)
    since, until = _column(dimension.as_of.valid_from), _column(dimension.as_of.valid_to)
    # A version that ends when it begins is never valid.
    valid = rows.where(until.isNull() | since.isNull() | (until > since))
    by_time = Window.partitionBy(key).orderBy(since.asc_nulls_first())
    following = F.lead(F.struct(since.alias("since"))).over(by_time)
    marked = valid.select(key, until.alias("_until"), following.alias("_next"))
    overlap = "_until IS NULL OR _next.since IS NULL OR _until > _next.since"
    return marked.where(f"_next IS NOT NULL AND ({overlap})").select(key)


def _require_columns(dimension: Dimension, schema: T.StructType) -> None:
    found = {each.name: each.dataType for each in schema}
    wrong = [f"'{name}' is not there" for name in _read(dimension) if name not in found]
    wrong += [
        f"'{each.name}' is {found[each.name].simpleString()} and not {each.dataType.simpleString()}"
        for each in dimension.columns
        if each.name in found and found[each.name] != each.dataType
    ]
    if wrong:
        raise DataError(
            f"The dimension {dimension.path} does not have the columns that rows are to get from it.",
            why=f"{'; '.join(wrong)}.",
            state=_NOTHING_WRITTEN,
            remedy="Correct the declaration of the dimension, or the table.",
            code="HR-563",
        )


def _missing(dimension: Dimension, location: str) -> DataError:
    return DataError(
        f"The dimension {dimension.path} is not there.",
        why=f"{location} is no Delta table.",
        state="Nothing was started and nothing was written.",
        remedy="Make the table first, or correct the path. With required=False rows wait for it in the sink's table.",
        code="HR-565",
    )


def _too_large(dimension: Dimension, found: str, limit: Size) -> DataError:
    return DataError(
        f"The dimension {dimension.path} is too large to be broadcast: {found}, and the limit is {limit}.",
        why="The driver collects it and every executor holds a copy beside each batch; without the memory they die.",
        state=_NOTHING_WRITTEN,
        remedy="Take fewer columns, keep old rows elsewhere, or raise `broadcast_limit` if driver and executors have "
        "the memory for it.",
        code="HR-561",
    )


def _more_than_one(dimension: Dimension, version: int, keys: list[str]) -> DataError:
    how = "occurs more than once" if dimension.as_of is None else "has rows that are valid at the same time"
    return DataError(
        f"The dimension {dimension.path} does not say which row belongs to a key: {dimension.key} {', '.join(keys)}.",
        why=f"In version {version} each of these {how}, so that a row joined with it would become two.",
        state=_NOTHING_WRITTEN,
        remedy="Correct the table, and start the flow again: it takes the newest version."
        + (" For a table of several versions per key declare `as_of`." if dimension.as_of is None else ""),
        code="HR-562",
    )


def _column(name: str) -> Column:
    return F.col(f"`{name}`")
