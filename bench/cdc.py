"""How fast changes of a database go into a Delta table: Headrace's mirror against a MERGE in foreachBatch.

    python bench/cdc.py --rows 10000000 --batch 10000 --rounds 5

Every contender has its own table with the same rows, and applies the same batches of changes, in turn. A second part
gives the mirror batches of one size in a table with a hundredth of the rows, and in the full one: how the time grows.
With `--only vectors` mirrors of several sizes mark rows as deleted, or rewrite their files: the size from which
marking pays off.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from delta.tables import DeltaTable
from harness import Run, machine, measured, session, write_json
from order_changes import ORDERS, Orders
from pyspark.sql import Window, functions as F

from headrace.cdc.apply import table
from headrace.cdc.apply.table import POSITION, create_table
from headrace.cdc.decode.envelope import ENVELOPE, change_decoder
from headrace.cdc.sink import DeltaCdc
from headrace.clients.spark.delta_log import size
from headrace.flow.run_cache import RunCache
from headrace.flow.sink import Batch
from headrace.flow.target import Target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OURS, NAIVE, TUNED = "Headrace", "foreachBatch", "foreachBatch, tuned"
TIMES, GROWTH, GROWN = 4.0, 1.5, 100
# Batches into a large table before those that count: the first one of a mirror looks for its newest row.
_FIRST = 2

Apply = Callable[["DataFrame", int], None]

_VALUE = """
before struct<id: bigint>, op string, source struct<lsn: bigint>,
after struct<id: bigint, customer: bigint, state: string, amount: string, note: string, changed: string>
"""


@dataclass
class Table:
    """One contender's table, and the runs of the batches that went into it."""

    name: str
    orders: Orders
    apply: Apply
    spark: SparkSession
    runs: list[Run] = field(default_factory=list)

    def take(self, path: str, number: int, *, counts: bool) -> str:
        """Apply one batch. Returns what it took, in words.

        What others have written goes to the disk first, and their garbage out of the memory: a table that a MERGE wrote
        again is a gigabyte of both, and whoever came next would pay for it.
        """
        os.sync()
        jvm = self.spark._jvm
        assert jvm is not None  # noqa: S101 - a classic session always has its JVM
        jvm.java.lang.System.gc()
        run = measured(lambda: self.apply(self.spark.read.parquet(path), number), self.orders.batch)
        if counts:
            self.runs.append(run)
        return f"{self.name} {run.wall:.1f} s"

    @property
    def seconds(self) -> float:
        """The median time of a batch."""
        return statistics.median(run.wall for run in self.runs)


def mirror(spark: SparkSession, target: Target, orders: Orders, path: str) -> Table:
    """Return the table that Headrace keeps."""
    sink = DeltaCdc(path, lambda _topic, _target: ORDERS, change_decoder)
    location = f"{target.table(path)}/orders"
    filled = orders.table(spark).withColumn(POSITION, F.lpad(F.col("id").cast("string"), 20, "0"))
    create_table(spark, location, filled.schema, ORDERS.key)
    filled.write.format("delta").mode("append").save(location)

    cache = RunCache()

    def apply(records: DataFrame, number: int) -> None:
        parsed = records.withColumn("read", F.from_json("value", ENVELOPE))
        batch = Batch(path, "bench", number, target, cache=cache)
        sink.write(parsed.select("read.*", "topic", "partition", "offset", "key"), batch)

    return Table(OURS, orders, apply, spark)


def merged(spark: SparkSession, target: Target, orders: Orders, name: str, below: str) -> Table:
    """Return the table that a MERGE keeps as tutorials write it: the last change of each key, one MERGE."""
    location = target.table(below + name.replace(" ", "_"))
    orders.table(spark).write.format("delta").save(location)

    def apply(records: DataFrame, _number: int) -> None:
        value = F.from_json("value", _VALUE).alias("value")
        parsed_changes = records.select(value, "offset").select("value.*", "offset")
        parsed_changes = parsed_changes.withColumn("id", F.coalesce("after.id", "before.id"))
        newest = Window.partitionBy("id").orderBy(F.desc("source.lsn"), F.desc("offset"))
        last = parsed_changes.withColumn("place", F.row_number().over(newest)).where("place = 1")
        columns = {column.name: f"s.after.{column.name}" for column in ORDERS.columns}
        (
            DeltaTable.forPath(spark, location)
            .alias("t")
            .merge(last.alias("s"), "t.id = s.id")
            .whenMatchedDelete("s.op = 'd'")
            .whenMatchedUpdate(set=columns)
            .whenNotMatchedInsert("s.op <> 'd'", columns)
            .execute()
        )

    return Table(name, orders, apply, spark)


def taken(tables: list[Table], folder: Path, *, warm_up: int, rounds: int) -> None:
    """Give every table the same number of batches, in turn; the first ones are for warming up."""
    for number in range(warm_up + rounds):
        paths = {orders: orders.write(tables[0].spark, folder, number) for orders in {table.orders for table in tables}}
        first = number % len(tables)
        counts = number >= warm_up
        took = [table.take(paths[table.orders], number, counts=counts) for table in tables[first:] + tables[:first]]
        print(f"  batch {number}{'' if counts else ' (warming up)'}: {', '.join(took)}", file=sys.stderr)


@dataclass(frozen=True)
class Settings:
    """The options of the command line."""

    rows: int
    batch: int
    rounds: int
    warm_up: int

    @property
    def orders(self) -> Orders:
        """The table of the comparison."""
        return Orders(self.rows, self.batch)


def compared(spark: SparkSession, target: Target, folder: Path, settings: Settings) -> tuple[dict[str, object], bool]:
    """Give three contenders the same batches. Returns their medians, and whether the floor is reached.

    A stream runs for days, and the JVM compiles what it runs for the first quarter of an hour. All contenders warm up
    with tables of a hundredth of the rows: most of what is compiled is code that plans, and plans do not grow.
    """
    plain, hand = spark.newSession(), spark.newSession()
    plain.conf.set("spark.sql.shuffle.partitions", "200")
    plain.conf.set("spark.databricks.delta.snapshotPartitions", "50")
    hand.conf.set("spark.sql.shuffle.partitions", str(spark.sparkContext.defaultParallelism))

    def contenders(orders: Orders, below: str) -> list[Table]:
        return [
            mirror(spark, target, orders, f"{below}mirror"),
            merged(plain, target, orders, NAIVE, below),
            merged(hand, target, orders, TUNED, below),
        ]

    warm = contenders(Orders(settings.rows // GROWN, settings.batch), "warm/")
    taken(warm, folder / "warm", warm_up=settings.warm_up, rounds=0)
    tables = contenders(settings.orders, "")
    taken(tables, folder, warm_up=_FIRST, rounds=settings.rounds)
    _same(tables, target)
    seconds = {table.name: round(table.seconds, 2) for table in tables}
    print(f"seconds a batch of {settings.batch:,} changes into {settings.rows:,} rows: {seconds}")
    ratios = {other.name: _ratios(tables[0], other) for other in tables[1:]}
    reached = statistics.median(ratios[NAIVE]) >= TIMES
    print(_summary(f"{OURS} against {NAIVE}", ratios[NAIVE], f"at least {TIMES}", reached))
    print(_summary(f"{OURS} against {TUNED}", ratios[TUNED]))
    return {"seconds": seconds, "ratios": ratios}, reached


def grown(spark: SparkSession, target: Target, folder: Path, settings: Settings) -> tuple[dict[str, object], bool]:
    """Give batches of one size to a small mirror and a large one. Returns the growth, and whether it is in bounds."""
    small = mirror(spark, target, Orders(settings.rows // GROWN, settings.batch), "small")
    large = mirror(spark, target, settings.orders, "large")
    taken([small, large], folder / "growth", warm_up=settings.warm_up, rounds=settings.rounds)
    growth = _ratios(small, large)
    reached = statistics.median(growth) <= GROWTH
    print(_summary(f"a table of {GROWN} times the rows", growth, f"at most {GROWTH}", reached))
    return {"ratios": growth}, reached


def marked(spark: SparkSession, target: Target, folder: Path, settings: Settings) -> tuple[dict[str, object], bool]:
    """Give the same batches to mirrors with and without marked rows, of several sizes. Returns what marking brings."""
    figures = dict[str, object]()
    # None of them starts to use deletion vectors.
    table._WORTH_VECTORS = sys.maxsize
    for rows in (settings.rows // part for part in (100, 30, 10, 3)):
        orders = Orders(rows, settings.batch)
        rewriting, marks = (mirror(spark, target, orders, f"{name}-{rows}") for name in ("rewrite", "marks"))
        location = f"{target.table(f'marks-{rows}')}/orders"
        size_of_table = size(spark, location)
        spark.sql(f"ALTER TABLE delta.`{location}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
        taken([rewriting, marks], folder / f"vectors-{rows}", warm_up=settings.warm_up, rounds=settings.rounds)
        megabytes = round(size_of_table[1] / 2**20) if size_of_table else 0
        ratios = _ratios(marks, rewriting)
        print(_summary(f"{rows:,} rows, {megabytes} MB: rewriting files took", ratios))
        figures[str(rows)] = {"megabytes": megabytes, "ratios": ratios}
    return figures, True


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows of the table")
    parser.add_argument("--batch", type=int, default=10_000, help="changes of a batch")
    parser.add_argument("--rounds", type=int, default=5, help="batches that count")
    parser.add_argument("--warm-up", type=int, default=20, help="batches before those")
    parser.add_argument("--only", choices=("merge", "growth", "vectors"), help="one part")
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    options = parser.parse_args()
    settings = Settings(options.rows, options.batch, options.rounds, options.warm_up)
    parts = {"merge": compared, "growth": grown} if options.only != "vectors" else {"vectors": marked}
    figures: dict[str, object] = {"machine": machine(), "rows": settings.rows, "batch": settings.batch}
    reached = True
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder, session(Path(folder)) as (spark, target):
        for name, part in parts.items():
            if options.only in (None, name):
                figures[name], well = part(spark, target, Path(folder), settings)
                reached &= well
    if options.json:
        write_json(options.json, figures)
    return 0 if reached else 1


def _ratios(own_table: Table, other: Table) -> list[float]:
    """Return, batch by batch, how many times as long the other table took."""
    return [round(theirs.wall / own.wall, 3) for own, theirs in zip(own_table.runs, other.runs, strict=True)]


def _summary(what: str, ratios: list[float], bound: str = "", reached: bool = True) -> str:
    ordered = sorted(ratios)
    spread = f"{statistics.median(ordered):.2f} ({ordered[0]:.2f}-{ordered[-1]:.2f})"
    return f"{what}: {spread} times" + (f"; {bound}: {'reached' if reached else 'MISSED'}" if bound else "")


def _same(tables: list[Table], target: Target) -> None:
    """Stop when the tables differ: a figure for other work says nothing."""
    names = [column.name for column in ORDERS.columns]
    paths = [f"{target.table('mirror')}/orders", *(target.table(table.name.replace(" ", "_")) for table in tables[1:])]
    # A table of ten million rows is not sorted for this: as many rows, and the same sum of their hashes.
    checksum = [F.count("*"), F.sum(F.xxhash64(*names).cast("decimal(38,0)"))]
    results = {tuple(tables[0].spark.read.format("delta").load(path).agg(*checksum).collect()[0]) for path in paths}
    if len(results) > 1:
        raise SystemExit("The contenders' tables differ.")


if __name__ == "__main__":
    sys.exit(main())
