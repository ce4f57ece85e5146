"""Fill the large values of rows that moved to another primary key from the row under the old key.

Debezium sends an update that changes the key as a `d` of the old key and a `c` of the new one, at one log
position. Neither contains a large value that did not change. It is looked up under the old key: in an earlier change
of the batch, or in the table.
"""

from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame, functions as F

from headrace.cdc.apply.latest_change import log_order
from headrace.cdc.apply.table import POSITION, struct_fields
from headrace.clients.sql import column_named

_OLD, _EARLIER, _ENDED = "_headrace_old", "_headrace_earlier", "_headrace_ended"


def fill_unavailable_values_after_key_change(
    changes: DataFrame, table: DataFrame, deleted_at: Column | None = None
) -> DataFrame:
    """Return changes in which moved rows have the large values of the rows under their old keys.

    `table` is the target table before the changes. A value without a copy stays `_unavailable`. For a table with old
    versions of rows, `deleted_at` is the log position at which each was deleted, or null.
    """
    deleted_at = F.lit(None).cast("string") if deleted_at is None else deleted_at
    # A row may move twice in a batch: the second move uses the values that were filled for the first one.
    before, lacks = None, _count_unavailable_values(changes)
    while lacks and lacks != before:
        changes = _fill_unavailable_values(changes, table, deleted_at).localCheckpoint(eager=True)
        before, lacks = lacks, _count_unavailable_values(changes)
    return changes


def _count_unavailable_values(changes: DataFrame) -> int:
    """Count the missing values of moved rows."""
    total = changes.where(_has_unavailable_values()).agg(F.sum(F.size("_unavailable"))).first()
    return (total and total[0]) or 0


def _has_unavailable_values() -> Column:
    return (F.col("_op") == "c") & (F.size("_unavailable") > 0)


def _fill_unavailable_values(changes: DataFrame, table: DataFrame, deleted_at: Column) -> DataFrame:
    names = struct_fields(changes, "_after").names
    earlier_values = _earlier_values(changes, table, names, deleted_at)
    deletes = changes.where(F.col("_op") == "d").select("_position", F.col("_key").alias(_OLD))
    # The delete may be in an earlier batch.
    earlier = earlier_values.where(F.col("deleted_at").isNotNull()).select(
        F.col("deleted_at").alias("_position"), F.col("old").alias(_OLD)
    )
    deletes = deletes.union(earlier).distinct()
    moves = changes.where(_has_unavailable_values()).select("_position", "_key").join(deletes, "_position")
    moves = moves.where(F.col("_key") != F.col(_OLD))
    # Values from before a delete of the old key belong to another row.
    deletes = deletes.select(F.col("_position").alias("at"), F.col(_OLD).alias("old"))
    before = (F.col("old") == F.col(_OLD)) & (F.col("at") < F.col("_position"))
    moves = moves.join(deletes, before, "left").groupBy("_position", "_key", _OLD).agg(F.max("at").alias(_ENDED))
    values_of_moves = moves.join(earlier_values, F.col("old") == F.col(_OLD)).where(
        (F.col("at") < F.col("_position"))
        & (F.col(_ENDED).isNull() | (F.col("at") > F.col(_ENDED)))
        & (F.col("deleted_at").isNull() | (F.col("deleted_at") >= F.col("_position")))
    )
    values = [_newest_value(name).alias(f"v{number}") for number, name in enumerate(names)]
    values_of_moves = values_of_moves.groupBy("_position", "_key").agg(*values)
    values_of_moves = values_of_moves.select(
        "_position", "_key", F.struct(*(f"v{n}" for n in range(len(names)))).alias(_EARLIER)
    )
    joined = changes.join(F.broadcast(values_of_moves), ["_position", "_key"], "left")
    return _with_values(joined, names).select(*changes.columns)


def _earlier_values(changes: DataFrame, table: DataFrame, names: list[str], deleted_at: Column) -> DataFrame:
    """Return the values of each key in the batch and in the table, with the log positions of their validity."""
    keys = struct_fields(changes, "_key").names
    from_batch = changes.where(F.col("_after").isNotNull()).select(
        F.col("_key").alias("old"),
        F.col("_position").alias("at"),
        log_order().alias("order"),
        F.col("_after").alias("row"),
        F.col("_unavailable").alias("lacks"),
        F.lit(None).cast("string").alias("deleted_at"),
    )
    from_table = table.select(
        F.struct(*(column_named(name) for name in keys)).alias("old"),
        F.col(POSITION).alias("at"),
        F.struct(F.col(POSITION).alias("_position"), F.lit(False), F.lit(-1).cast("long").alias("_offset")).alias(
            "order"
        ),
        F.struct(*(column_named(name) for name in names)).alias("row"),
        F.array().cast("array<string>").alias("lacks"),
        deleted_at.alias("deleted_at"),
    )
    return from_batch.union(from_table)


def _newest_value(name: str) -> Column:
    present = ~F.array_contains("lacks", name)
    return F.max_by(F.when(present, F.struct(F.col("row")[name].alias("value"))), F.when(present, F.col("order")))


def _with_values(joined: DataFrame, names: list[str]) -> DataFrame:
    takes = [
        _has_unavailable_values() & F.array_contains("_unavailable", name) & F.col(_EARLIER)[f"v{number}"].isNotNull()
        for number, name in enumerate(names)
    ]
    after = F.struct(
        *(
            F.when(take, F.col(_EARLIER)[f"v{number}"]["value"]).otherwise(F.col("_after")[name]).alias(name)
            for number, (name, take) in enumerate(zip(names, takes, strict=True))
        )
    )
    taken = F.array_compact(F.array(*(F.when(take, F.lit(name)) for name, take in zip(names, takes, strict=True))))
    any_taken = reduce(or_, takes)
    return joined.withColumns(
        {
            "_after": F.when(any_taken, after).otherwise(F.col("_after")),
            "_unavailable": F.when(any_taken, F.array_except("_unavailable", taken)).otherwise(F.col("_unavailable")),
        }
    )
