"""Decode Debezium envelopes into typed changes of one table.

An envelope is read with its columns as maps of text, exactly as in the JSON: an absent column differs from a null, and
no text is parsed as a number or a time before its type is known. The decoder gives each column the type in the source's
catalogue.

The DataFrame of changes, one row per change of a row:

| column         | type             | contains                                                                 |
|----------------|------------------|--------------------------------------------------------------------------|
| `_op`          | string           | `c`, `u`, `d`, `r` (snapshot) or `t` (truncate)                          |
| `_position`    | string           | the position in the source's log, as text that sorts like the log        |
| `_partition`   | int              | of the topic                                                             |
| `_offset`      | bigint           | of the record; the order is `_position`, then `_offset`, never a clock   |
| `_commit_time` | timestamp        | the commit time at the source, in microseconds if the source sends them  |
| `_transaction` | string           | the id of the transaction; null if the source has none                   |
| `_key`         | struct           | the columns of the primary key, typed; null for `t`                      |
| `_after`       | struct           | all columns, typed; null for `d` and `t`                                 |
| `_unavailable` | array of strings | columns that an update does not contain: keep the old value              |
| `_unreadable`  | array of strings | columns whose text does not fit their type; usually empty                |
| `_before`      | struct           | optional: all columns before a `u` or `d`, as far as the log has them    |

`_unavailable` lists the columns with the placeholder for a value that is not in the log (TOAST), and those that an
update does not contain, because the source no longer has them or did not have them yet. They are null in `_after`.

An update that moves a row to another key is a `d` of the old key and a `c` of the new one. Debezium usually sends two
records. A record with both keys is decoded to two rows.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame, functions as F, types as T

from headrace.cdc.apply.table import TEXT_FORMAT
from headrace.cdc.capture.source_table import SourceColumn, SourceTable
from headrace.cdc.decode.types import TypeDecoder, decoder_for, describe_value_loss
from headrace.errors import FlowError

# What Debezium writes for a value that is not in the log, unless `unavailable.value.placeholder` says otherwise.
PLACEHOLDER = "__debezium_unavailable_value"

Step = Callable[[DataFrame], DataFrame]

_COLUMNS = T.MapType(T.StringType(), T.StringType())
_SOURCE = {
    "ts_ms": T.LongType(),
    "ts_us": T.LongType(),
    "snapshot": T.StringType(),
    "db": T.StringType(),
    "schema": T.StringType(),
    "table": T.StringType(),
    # A number in Postgres, absent in MySQL: sent as text.
    "txId": T.StringType(),
    "lsn": T.LongType(),
    "sequence": T.StringType(),
    "file": T.StringType(),
    "pos": T.LongType(),
    "row": T.IntegerType(),
    "gtid": T.StringType(),
}
_TRANSACTION = {"id": T.StringType(), "total_order": T.LongType(), "data_collection_order": T.LongType()}

ENVELOPE = T.StructType(
    [
        T.StructField("before", _COLUMNS),
        T.StructField("after", _COLUMNS),
        T.StructField("op", T.StringType(), nullable=False),
        T.StructField("source", T.StructType([T.StructField(name, kind) for name, kind in _SOURCE.items()])),
        T.StructField("ts_ms", T.LongType()),
        T.StructField("transaction", T.StructType([T.StructField(name, kind) for name, kind in _TRANSACTION.items()])),
    ]
)

# The number of changes by table; log messages have a separate name.
_COUNTS = T.ArrayType(
    T.StructType([T.StructField("data_collection", T.StringType()), T.StructField("event_count", T.LongType())])
)

# The records of Debezium's transaction topic.
TRANSACTION = T.StructType(
    [
        T.StructField("status", T.StringType(), nullable=False),
        T.StructField("id", T.StringType(), nullable=False),
        T.StructField("ts_ms", T.LongType()),
        T.StructField("event_count", T.LongType()),
        T.StructField("data_collections", _COUNTS),
    ]
)

# Names of intermediate columns. Texts and values are in numbered columns, so that Spark computes each of them once.
_KEY, _OLD, _NEW = "_headrace_key", "_headrace_old", "_headrace_new"
_TEXT, _VALUE, _KEY_TEXT, _KEY_VALUE = "_headrace_t", "_headrace_v", "_headrace_kt", "_headrace_kv"
_META = ("_op", "_position", "_partition", "_offset", "_commit_time", "_transaction")

_CHANGES, _WITH_ROW = ("c", "u", "d", "r", "t"), ("c", "u", "r")


def change_decoder(
    table: SourceTable, *, placeholder: str = PLACEHOLDER, before: bool = False, cleared: bool = False
) -> Callable[[DataFrame], DataFrame]:
    """Return the function that decodes envelopes of a table into the changes that the module describes.

    It expects envelopes of this table's topic, with Kafka's `partition`, `offset` and `key`: a batch or a stream.
    Log messages (`m`) are dropped. Raises what `require_lossless` raises.

    The function is for many batches. It has hundreds of columns, and each is a call into the JVM: creating them takes
    longer than reading ten thousand records.

    With `cleared`, a `t` comes with the last row of a snapshot, right before the position of all its rows:
    older rows are from an earlier snapshot that was interrupted, and were deleted since.

    The metadata of a column within `_after` (`headrace.text_format`) names the format of its texts, if another column
    of the same Spark type may use another one: a time in milliseconds, for example.
    """
    require_lossless(table)
    steps = _decoding_steps(table, placeholder, before, cleared)
    return lambda rows: reduce(lambda decoded, step: step(decoded), steps, rows)


def _decoding_steps(table: SourceTable, placeholder: str, before: bool, cleared: bool) -> tuple[Step, ...]:
    """Return the steps from envelopes to changes."""
    keys = [table.column(name) for name in table.key]
    texts = {
        **{_numbered_column_name(_TEXT, n): _column_text(_NEW, column) for n, column in enumerate(table.columns)},
        **{_numbered_column_name(_KEY_TEXT, n): _key_text(column) for n, column in enumerate(keys)},
    }
    decoders = [decoder_for(column.type, table.family) for column in table.columns]
    lacking = _unavailable_columns(table, decoders, placeholder)
    values = {
        **{
            _numbered_column_name(_VALUE, n): F.when(~lacking[n], decoder.read(F.col(_numbered_column_name(_TEXT, n))))
            for n, decoder in enumerate(decoders)
        },
        **{
            _numbered_column_name(_KEY_VALUE, n): decoder_for(column.type, table.family).read(
                F.col(_numbered_column_name(_KEY_TEXT, n))
            )
            for n, column in enumerate(keys)
        },
    }
    formats = [{TEXT_FORMAT: decoder.text_format} if decoder.text_format else {} for decoder in decoders]
    unread = _names_where(_undecodable_fields(table, keys, lacking))
    if before:
        # A text of the old row that does not fit is not a null.
        unread = F.concat(unread, _undecodable_before_fields(table, decoders, placeholder))
    olds = {"_before": _row_before(table, decoders, placeholder, formats)} if before else {}
    result = [
        *(F.col(name) for name in _META),
        F.when(F.col("_op") != "t", _numbered_struct(_KEY_VALUE, keys)).alias("_key"),
        F.when(F.col("_op").isin(*_WITH_ROW), _numbered_struct(_VALUE, table.columns, formats)).alias("_after"),
        _names_where((column.name, lacking[n]) for n, column in enumerate(table.columns)).alias("_unavailable"),
        unread.alias("_unreadable"),
        *(F.col(name) for name in olds),
    ]
    return (
        *_metadata_steps(),
        *_split_key_changes(keys, cleared=cleared),
        lambda rows: rows.withColumns(texts),
        lambda rows: rows.withColumns(values),
        *((lambda rows: rows.withColumns(olds),) if olds else ()),
        lambda rows: rows.select(*result),
    )


def has_ambiguous_unit(table: SourceTable) -> Column | None:
    """Return the condition that an envelope has a time that may be in another unit than the type of its column.

    A record does not contain the unit of a time, which depends on the precision of the column at the source. If the
    condition is true, the sink reads the source catalogue again. None for a table without such columns.
    """
    conditions = []
    for column in table.columns:
        ambiguous = decoder_for(column.type, table.family).is_ambiguous
        if ambiguous is not None:
            conditions += [F.coalesce(ambiguous(_column_text(of, column)), F.lit(False)) for of in ("after", "before")]
    return reduce(or_, conditions) if conditions else None


def require_key(table: SourceTable) -> None:
    """Raise HR-245 for a table without a primary key."""
    if not table.key:
        raise FlowError(
            f"Table {table} has no primary key.",
            why="Without one, an update does not identify its row.",
            state="Nothing was read or written for it.",
            remedy=f"Add one (ALTER TABLE {table} ADD PRIMARY KEY ...), or exclude the table from the capture.",
            code="HR-245",
        )


def require_lossless(table: SourceTable) -> None:
    """Raise HR-245 for a table without a primary key, HR-246 for one with columns whose values the connector loses."""
    require_key(table)
    losses = {column: describe_value_loss(column.type, table.family, table.identity) for column in table.columns}
    reasons = [f"{column.name} ({column.type}): {why}" for column, why in losses.items() if why]
    if reasons:
        raise FlowError(
            f"Table {table} has columns whose values the connector loses.",
            why=f"Values are lost in: {'; '.join(reasons)}.",
            state="Nothing was read or written for it.",
            remedy=f"Run ALTER TABLE {table} REPLICA IDENTITY FULL if that helps, change the types, or exclude the "
            "columns.",
            code="HR-246",
        )


def _metadata_steps() -> tuple[Step, ...]:
    """Read the metadata of every change, and drop log messages."""
    source, is_change = F.col("source"), F.col("op") != "m"
    at = F.coalesce(F.timestamp_micros(source["ts_us"]), F.timestamp_millis(source["ts_ms"]))
    columns = {
        "_op": F.col("op"),
        "_position": position(source),
        "_partition": F.col("partition"),
        "_offset": F.col("offset"),
        "_commit_time": at,
        # The id in Postgres's transaction metadata ends with the position of the single change.
        "_transaction": F.coalesce(source["txId"], F.col("transaction")["id"]),
        _KEY: F.from_json(F.col("key").cast("string"), "map<string,string>"),
        _OLD: F.col("before"),
        _NEW: F.col("after"),
        _SNAPSHOT: source["snapshot"],
        _BEFORE: position(source, before=1),
    }
    named = [column.alias(name) for name, column in columns.items()]
    return lambda rows: rows.where(is_change), lambda rows: rows.select(*named)


def position(source: Column, *, before: int = 0) -> Column:
    """Return the log position as text that sorts like the log; null if the source has none.

    With `before`, the position that many bytes earlier, where no change starts.

    Postgres: the LSN. MySQL and MariaDB: the number of the binlog file, the position in it, the row of the event.

    Positions of Postgres snapshot rows start with `-` and sort before every change. A transaction that was open during
    the snapshot is not in it, and its changes have lower log positions than the snapshot.
    """
    lsn = source["lsn"] - before
    log = F.when(F.col("op") == "r", F.concat(F.lit("-"), _digits(lsn, 19))).otherwise(_digits(lsn, 20))
    number = F.regexp_extract(source["file"], r"\.(\d+)$", 1)
    binlog = F.concat(
        F.when(F.length(number) > 0, F.lpad(number, 10, "0")),
        _digits(source["pos"] - before, 20),
        _digits(F.coalesce(source["row"], F.lit(0)), 10),
    )
    return F.coalesce(log, binlog)


def _digits(number: Column, width: int) -> Column:
    return F.lpad(number.cast("string"), width, "0")


def _split_key_changes(keys: list[SourceColumn], *, cleared: bool) -> tuple[Step, ...]:
    """Split an update that changes the key, and the last row of a snapshot, into two changes."""
    moved = F.lit(False)
    for column in keys:
        old = _column_text(_OLD, column)
        moved = moved | (old.isNotNull() & (old != F.coalesce(_column_text(_KEY, column), _column_text(_NEW, column))))
    both = F.when((F.col("_op") == "u") & moved, F.array(F.lit("d"), F.lit("c")))
    if cleared:
        is_last = (F.col("_op") == "r") & F.col(_SNAPSHOT).isin(*_LAST_OF_SNAPSHOT)
        both = F.coalesce(both, F.when(is_last, F.array(F.lit("t"), F.lit("r"))))
    split_op = F.explode(F.coalesce(both, F.array("_op"))).alias("_op")
    rest = [F.col(name) for name in (*_META[1:], _KEY, _OLD, _NEW, _BEFORE)]
    was = F.col("_op").alias(_OP)
    clears = (F.col(_OP) == "r") & (F.col("_op") == "t")
    # The key of the delete of a split update is in `before`; the key of the record is the new one.
    is_old = (F.col(_OP) == "u") & (F.col("_op") == "d")
    moved_to = {
        "_position": F.when(clears, F.col(_BEFORE)).otherwise(F.col("_position")),
        _KEY: F.when(is_old, F.col(_OLD)).otherwise(F.col(_KEY)),
    }
    return (
        lambda rows: rows.select(was, split_op, *rest),
        lambda rows: rows.withColumns(moved_to),
        lambda rows: rows.drop(_BEFORE, _OP),
    )


_OP, _SNAPSHOT, _BEFORE = "_headrace_op", "_headrace_snapshot", "_headrace_before"
_LAST_OF_SNAPSHOT = ("last", "last_in_data_collection")


def _column_text(of: str, column: SourceColumn) -> Column:
    return F.try_element_at(F.col(of), F.lit(column.name))


def _key_text(column: SourceColumn) -> Column:
    otherwise = F.when(F.col("_op") == "d", _column_text(_OLD, column)).otherwise(_column_text(_NEW, column))
    return F.coalesce(_column_text(_KEY, column), otherwise)


def _unavailable_columns(table: SourceTable, decoders: list[TypeDecoder], placeholder: str) -> list[Column]:
    """Return, for each column, the condition that the change does not contain it."""
    lacking = []
    for n, (column, decoder) in enumerate(zip(table.columns, decoders, strict=True)):
        absent = (F.col("_op") == "u") & ~F.map_contains_key(_NEW, F.lit(column.name))
        if table.family == "postgres":
            # For any op: a `c` of a moved row contains the placeholder too.
            absent = absent | F.col(_numbered_column_name(_TEXT, n)).isin(*decoder.placeholders(placeholder))
        lacking.append(F.coalesce(absent, F.lit(False)))
    return lacking


def _undecodable_fields(
    table: SourceTable, keys: list[SourceColumn], lacking: list[Column]
) -> Iterable[tuple[str, Column]]:
    op = F.col("_op")
    yield "_op", ~op.isin(*_CHANGES)
    yield "_position", F.col("_position").isNull()
    yield "_after", op.isin(*_WITH_ROW) & F.col(_NEW).isNull()
    key_names = set()
    for n, column in enumerate(keys):
        key_names.add(column.name)
        text = (op != "t") & F.col(_numbered_column_name(_KEY_VALUE, n)).isNull()
        place = table.columns.index(column)
        yield column.name, text | (_is_undecodable(place) & ~lacking[place])
    for n, column in enumerate(table.columns):
        if column.name not in key_names:
            yield column.name, _is_undecodable(n) & ~lacking[n]


def _is_undecodable(n: int) -> Column:
    """Return whether a column has a text that was decoded to no value."""
    return F.col(_numbered_column_name(_TEXT, n)).isNotNull() & F.col(_numbered_column_name(_VALUE, n)).isNull()


def _names_where(conditions: Iterable[tuple[str, Column]]) -> Column:
    """Return the names whose condition is true."""
    return F.array_compact(F.array(*(F.when(condition, F.lit(name)) for name, condition in conditions)))


def _numbered_struct(of: str, columns: Sequence[SourceColumn], formats: Sequence[dict[str, str]] = ()) -> Column:
    metadata = formats or [{} for _ in columns]
    values = (
        F.col(_numbered_column_name(of, n)).alias(column.name, metadata=metadata[n]) for n, column in enumerate(columns)
    )
    return F.struct(*values)


def _texts_before(table: SourceTable, decoders: list[TypeDecoder], placeholder: str) -> Iterable[Column]:
    """Return the texts of the old row; null for values that are not in the log."""
    for column, decoder in zip(table.columns, decoders, strict=True):
        text = _column_text(_OLD, column)
        yield F.when(~text.isin(*decoder.placeholders(placeholder)), text) if table.family == "postgres" else text


def _row_before(
    table: SourceTable, decoders: list[TypeDecoder], placeholder: str, formats: Sequence[dict[str, str]]
) -> Column:
    texts = _texts_before(table, decoders, placeholder)
    values = [decoder.read(text) for decoder, text in zip(decoders, texts, strict=True)]
    names = (column.name for column in table.columns)
    row = F.struct(
        *(value.alias(name, metadata=metadata) for value, name, metadata in zip(values, names, formats, strict=True))
    )
    return F.when(F.col("_op").isin("u", "d") & F.col(_OLD).isNotNull(), row)


def _undecodable_before_fields(table: SourceTable, decoders: list[TypeDecoder], placeholder: str) -> Column:
    texts = _texts_before(table, decoders, placeholder)
    exists = F.col("_before").isNotNull()
    return _names_where(
        (column.name, exists & text.isNotNull() & F.col("_before")[column.name].isNull())
        for column, text in zip(table.columns, texts, strict=True)
    )


def _numbered_column_name(prefix: str, n: int) -> str:
    return f"{prefix}{n}"
