"""Changes of a small table, as values and as the frame that is applied."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from headrace.cdc.apply.table import TableWrite
from headrace.flow.run_cache import RunCache

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.cdc.capture.source_table import SourceTable
    from headrace.cdc.sink import Decoder

Key = int
Value = int | str | None


@dataclass(frozen=True)
class Change:
    """One change in the source's log. `unavailable` names columns that it does not hold, for they did not change."""

    op: str
    position: int
    key: Key | None
    values: tuple[tuple[str, Value], ...] = ()
    unavailable: frozenset[str] = frozenset()

    @property
    def text(self) -> str:
        """The position as text of a fixed width; that of a snapshot's row comes before those of all changes."""
        return f"-{self.position:019d}" if self.op == "r" else f"{self.position:020d}"


SCHEMA = """
_op string, _position string, _partition int, _offset bigint, _commit_time timestamp, _transaction string,
_key struct<id: bigint>, _after struct<id: bigint, pieces: int, note: string>, _unavailable array<string>
"""
BEGAN = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def row(op: str, position: int, key: Key, pieces: Value = None, note: Value = None, lacks: str = "") -> Change:
    values = (("id", key), ("pieces", pieces), ("note", note))
    return Change(op, position, key, () if op == "d" else values, frozenset(lacks.split()))


def frame(spark: SparkSession, changes: list[Change], first_offset: int = 0) -> DataFrame:
    rows = [
        (
            change.op,
            change.text,
            0,
            first_offset + number,
            BEGAN + dt.timedelta(seconds=change.position),
            None,
            None if change.key is None else (change.key,),
            None if change.op in "dt" else tuple(dict(change.values)[name] for name in ("id", "pieces", "note")),
            sorted(change.unavailable),
        )
        for number, change in enumerate(changes)
    ]
    return spark.createDataFrame(rows, SCHEMA).coalesce(1)


def decoder(table: SourceTable) -> Decoder:
    """Return what reads envelopes with the key `id`: columns of type `bigint` as numbers, and all others as text."""
    types = {column.name: "bigint" if column.type == "bigint" else "string" for column in table.columns}
    after = F.struct(*(F.col("after")[name].cast(kind).alias(name) for name, kind in types.items()))
    return lambda rows: rows.where("op <> 'm'").select(
        F.col("op").alias("_op"),
        F.lpad(F.col("source.lsn").cast("string"), 20, "0").alias("_position"),
        F.col("partition").alias("_partition"),
        F.col("offset").alias("_offset"),
        F.timestamp_seconds("source.lsn").alias("_commit_time"),
        F.lit(None).cast("string").alias("_transaction"),
        F.struct(F.coalesce("after", "before")["id"].cast(types["id"]).alias("id")).alias("_key"),
        F.when(F.col("after").isNotNull(), after).alias("_after"),
        F.array().cast("array<string>").alias("_unavailable"),
    )


def into(folder: Path, batch: int, writer: str = "q1:shop:0", cache: RunCache | None = None) -> TableWrite:
    tombstones = folder / "_tombstones" / "orders"
    return TableWrite("orders", str(folder / "orders"), str(tombstones), writer, batch, cache or RunCache())
