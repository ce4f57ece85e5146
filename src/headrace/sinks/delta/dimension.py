"""A dimension table that rows are joined with: its refresh policy, its checks, and its cached version.

A dimension is broadcast: the driver collects it, and every executor holds a copy. So its size is measured whenever it
is loaded, also at the start of a flow, and a table above the limit is an error.
"""

import time
from dataclasses import dataclass, field
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession, Window, functions as F, types as T
from pyspark.storagelevel import StorageLevel

from headrace.clients.spark.delta_log import is_table, snapshot
from headrace.clients.sql import column_named
from headrace.clients.storage import is_local
from headrace.errors import DataError
from headrace.flow.duration import Duration
from headrace.flow.run_cache import CachedFact
from headrace.flow.size import Size, format_bytes
from headrace.flow.target import Target
from headrace.sinks.delta.table import DELETED

# The version of a missing table.
ABSENT = -1
_NOTHING_WRITTEN = "No row of the batch was written; it is run again from the same offsets."
# The number of keys that an error names.
_FEW = 3


@dataclass(frozen=True)
class EachBatch:
    """Reload the newest version for every batch, whether it changed or not."""


@dataclass(frozen=True)
class EveryInterval:
    """Check for a newer version at this interval, and at every start of the flow."""

    interval: str = "5 minutes"

    def __post_init__(self) -> None:
        Duration.parse(self.interval)


@dataclass(frozen=True)
class OnNewVersion:
    """Check for a newer version before every batch, which is cheap, and reload the table only if there is one."""


Refresh = EachBatch | EveryInterval | OnNewVersion


@dataclass(frozen=True)
class AsOf:
    """Join with the row that was valid at the event time: from `valid_from` (inclusive) to `valid_to` (exclusive).

    `time` is the event time column. A null `valid_from` or `valid_to` is unbounded, as in a table of SCD type 2.
    """

    time: str
    valid_from: str = "valid_from"
    valid_to: str = "valid_to"


@dataclass(frozen=True)
class Dimension:
    """A Delta table below the lake, unless `path` is absolute, with one row per key, or per key and time.

    Ignores rows that a mirror or a history of captured changes marks as deleted.

    | field           | default        | meaning                                                                     |
    |-----------------|----------------|-----------------------------------------------------------------------------|
    | path            |                | the table                                                                   |
    | key             |                | its key column                                                              |
    | columns         |                | the columns that are added to rows, with their types                        |
    | refresh         | OnNewVersion() | when a newer version is used: also `EachBatch()` and `EveryInterval()`      |
    | as_of           | None           | join by event time; None expects one row per key                            |
    | broadcast_limit | 100 MB         | the maximum size of key and columns in memory                               |
    | required        | True           | whether a missing table is an error; otherwise it counts as empty           |
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
        """The names of the columns that are added to rows."""
        return tuple(self.columns.names)


@dataclass(frozen=True)
class LoadedDimension:
    """One persisted version of a dimension: `identity` is the table id, `bytes` the size of its rows in memory."""

    identity: str
    version: int
    rows: DataFrame
    bytes: int


class DimensionCache(CachedFact):
    """The version of a dimension that a running flow uses. Not thread-safe, except `peek_version`."""

    def __init__(self) -> None:
        self._loaded: LoadedDimension | None = None
        self._last_check = 0.0

    @staticmethod
    def clock() -> float:
        """Return the time of the refresh policy, in seconds."""
        return time.monotonic()

    def close(self) -> None:
        """Unpersist the loaded version."""
        if self._loaded is not None:
            self._loaded.rows.unpersist()
        self._loaded = None

    def current(self, dimension: Dimension, session: SparkSession, target: Target) -> LoadedDimension:
        """Return the version to use now, by the refresh policy. Raises if a newer one is invalid."""
        loaded = self._loaded
        if loaded is not None and not self._is_due(dimension.refresh):
            return loaded
        self._last_check = self.clock()
        identity, version = _newest_version(session, target.table(dimension.path))
        same = loaded is not None and (loaded.identity, loaded.version) == (identity, version)
        if loaded is not None and same and not isinstance(dimension.refresh, EachBatch):
            return loaded
        # Unpersist first: Spark would reuse the cached rows for a second read of the same version.
        self.close()
        self._loaded = _load(dimension, session, target.table(dimension.path), identity, version)
        return self._loaded

    def peek_version(self, dimension: Dimension, session: SparkSession, target: Target) -> tuple[str, int]:
        """Return the table id and version that `current` would use now. Read-only and thread-safe."""
        loaded = self._loaded
        if loaded is not None and not self._is_due(dimension.refresh):
            return loaded.identity, loaded.version
        return _newest_version(session, target.table(dimension.path))

    def _is_due(self, refresh: Refresh) -> bool:
        if isinstance(refresh, EveryInterval):
            return self.clock() - self._last_check >= Duration.parse(refresh.interval).seconds
        return True


def require_table_exists(dimension: Dimension, target: Target) -> None:
    """Raise if a required local table does not exist. Other filesystems are not checked; Spark reports them."""
    location = target.table(dimension.path)
    if dimension.required and is_local(location) and not is_table(location):
        raise _missing_table_error(dimension, location)


def _newest_version(session: SparkSession, location: str) -> tuple[str, int]:
    current = snapshot(session, location)
    version = current.version
    return ("", ABSENT) if version < 0 else (current.table_id, version)


def _load(dimension: Dimension, session: SparkSession, location: str, identity: str, version: int) -> LoadedDimension:
    """Load and persist one version; raise if it is ambiguous or too large to join with."""
    if version == ABSENT and dimension.required:
        raise _missing_table_error(dimension, location)
    if version == ABSENT:
        return LoadedDimension(identity, version, session.createDataFrame([], _read_schema(dimension)), 0)
    table = session.read.format("delta").option("versionAsOf", str(version)).load(location)
    _require_columns(dimension, table.schema)
    condition = column_named(dimension.key).isNotNull()
    if DELETED in table.columns:
        condition &= ~F.coalesce(column_named(DELETED), F.lit(False))
    rows = table.where(condition).select(*map(column_named, _columns_to_read(dimension)))
    size_in_bytes_if_known = snapshot(session, location).size_in_bytes_if_known
    if size_in_bytes_if_known is not None and size_in_bytes_if_known > Size.parse(dimension.broadcast_limit).bytes:
        # Unused columns may cause the size. Measure the used ones before persisting them.
        _require_broadcast_limit(dimension, rows)
    rows = rows.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        size = _require_broadcast_limit(dimension, rows)
        ambiguous = [str(row[0]) for row in _ambiguous_keys(dimension, rows).limit(_FEW).collect()]
        if ambiguous:
            problem = "occurs more than once" if dimension.as_of is None else "has rows that are valid at the same time"
            hint = " For a table of several versions per key declare `as_of`." if dimension.as_of is None else ""
            raise DataError(
                f"The dimension {dimension.path} has several rows for a key: {dimension.key} {', '.join(ambiguous)}.",
                why=f"In version {version} each of these {problem}, so that a row joined with it would become two.",
                state=_NOTHING_WRITTEN,
                remedy=f"Correct the table, and start the flow again: it takes the newest version.{hint}",
                code="HR-562",
            )
    except BaseException:
        rows.unpersist()
        raise
    return LoadedDimension(identity, version, rows, size)


def _require_broadcast_limit(dimension: Dimension, rows: DataFrame) -> int:
    """Return the size of the rows in memory; raise if it exceeds the limit."""
    limit = Size.parse(dimension.broadcast_limit)
    count, size = rows.agg(F.count("*"), F.coalesce(F.sum(_row_bytes(rows.schema)), F.lit(0))).collect()[0]
    if size > limit.bytes:
        raise DataError(
            f"The dimension {dimension.path} is too large to be broadcast: {format_bytes(size)} in {count:,} rows. "
            f"The limit is {limit}.",
            why="The driver collects it and every executor holds a copy; without enough memory they fail.",
            state=_NOTHING_WRITTEN,
            remedy="Take fewer columns, keep old rows elsewhere, or raise `broadcast_limit` if driver and executors "
            "have the memory for it.",
            code="HR-561",
        )
    return int(size)


def _columns_to_read(dimension: Dimension) -> list[str]:
    """Return the columns to read: the key, the added columns, and the bounds of validity."""
    bounds = () if dimension.as_of is None else (dimension.as_of.valid_from, dimension.as_of.valid_to)
    return list(dict.fromkeys((dimension.key, *dimension.names, *bounds)))


def _read_schema(dimension: Dimension) -> T.StructType:
    """Return the schema of the columns to read, for a missing table."""
    types = {dimension.key: T.StringType()} | {field.name: field.dataType for field in dimension.columns}
    return T.StructType(
        [T.StructField(name, types.get(name, T.TimestampType())) for name in _columns_to_read(dimension)]
    )


def _row_bytes(schema: T.StructType) -> Column:
    """Return the size of a row in Spark's hash table: eight bytes per column plus variable-length values."""
    sizes = [
        F.octet_length(column_named(field.name))
        if isinstance(field.dataType, T.StringType | T.BinaryType)
        else F.octet_length(F.to_json(F.struct(column_named(field.name))))
        for field in schema
        if isinstance(field.dataType, T.StringType | T.BinaryType | T.ArrayType | T.MapType | T.StructType)
    ]
    # The null bitmap, the row length, and the pointers of the hash table.
    fixed = F.lit(32 + 8 * len(schema))
    return reduce(lambda left, right: left + F.coalesce(right, F.lit(0)), sizes, fixed)


def _ambiguous_keys(dimension: Dimension, rows: DataFrame) -> DataFrame:
    """Return the keys that match more than one row: duplicate keys, or overlapping validity."""
    key = column_named(dimension.key)
    if dimension.as_of is None:
        return rows.groupBy(key).count().where("count > 1").select(key)
    since, until = column_named(dimension.as_of.valid_from), column_named(dimension.as_of.valid_to)
    # A version that ends when it begins is never valid.
    valid = rows.where(until.isNull() | since.isNull() | (until > since))
    by_time = Window.partitionBy(key).orderBy(since.asc_nulls_first())
    following = F.lead(F.struct(since.alias("since"))).over(by_time)
    marked = valid.select(key, until.alias("_until"), following.alias("_next"))
    overlap = "_until IS NULL OR _next.since IS NULL OR _until > _next.since"
    return marked.where(f"_next IS NOT NULL AND ({overlap})").select(key)


def _require_columns(dimension: Dimension, schema: T.StructType) -> None:
    types = {field.name: field.dataType for field in schema}
    problems = [f"'{name}' does not exist" for name in _columns_to_read(dimension) if name not in types]
    problems += [
        f"'{field.name}' is {types[field.name].simpleString()} and not {field.dataType.simpleString()}"
        for field in dimension.columns
        if field.name in types and types[field.name] != field.dataType
    ]
    if problems:
        raise DataError(
            f"The dimension {dimension.path} does not have the declared columns.",
            why=f"{'; '.join(problems)}.",
            state=_NOTHING_WRITTEN,
            remedy="Correct the declaration of the dimension, or the table.",
            code="HR-563",
        )


def _missing_table_error(dimension: Dimension, location: str) -> DataError:
    return DataError(
        f"The dimension {dimension.path} does not exist.",
        why=f"{location} is not a Delta table.",
        state="Nothing was started and nothing was written.",
        remedy="Create the table first, or correct the path. With required=False rows wait for it in the sink's table.",
        code="HR-565",
    )
