"""The sales demo: its topic, its flows, the comparison with the model, and the error of the sketches."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from itertools import pairwise
from typing import Any, cast

from pyspark.sql import SparkSession

from headrace.clients.positions import Partition, end_offsets
from headrace.clients.spark.delta_log import is_table
from headrace.clients.sql import string_literal
from headrace.demos.compare import Comparison, Row, Tolerance
from headrace.demos.protocol import DemoContext
from headrace.demos.records_demo import (
    PARTITIONS,
    ModelVerdict,
    PatternGenerator,
    RecordsDemo,
    TargetComparison,
    batch_ranges,
    read_records,
)
from headrace.flow.duration import Duration
from headrace.flow.flow import SINGLE_INPUT, Flow
from headrace.flow.levers import Every
from headrace.flow.target import Target
from headrace.patterns.sales import flows as pattern, model
from headrace.patterns.sales.generator import SalesTraffic
from headrace.patterns.window_model import WindowFlow, WindowOutcome, replay

# Twice the usual share: a demo of a minute has few batches in which a sale can be late.
_LATE_SHARE = 0.04
# A sale is late by the watermark of the batch before, so from the third batch on. With this bound the history that a
# demo sends first is about seven batches instead of one.
_MAX_BATCH_RECORDS = 30_000
_GOLD = ("grain", "window_start", "window_end", "category", "revenue", "orders", "unique_users")


def compare(spark: SparkSession, target: Target, flows: Sequence[Flow], settings: pattern.SalesSettings) -> Comparison:
    """Compare all rows of both tables, late rows and invalid rows with the model.

    The model gets only the records of the topic and the offsets of the batches from the offset logs. Call when the
    flows have stopped.
    """
    comparison = TargetComparison(spark=spark, target=target)
    for flow in flows:
        outcome = replay_model(spark, target, flow, settings)
        if flow.name == "category_sales":
            compare_gold(comparison, settings, outcome)
        else:
            rolling = [asdict(row) for row in model.newest(outcome.batches)]
            comparison.add_table(settings.rolling_table, rolling)
        comparison.add_ledgers(flow.name, outcome.invalid, outcome.late)
    return comparison


def compare_gold(
    comparison: TargetComparison, settings: pattern.SalesSettings, outcome: WindowOutcome[model.CategorySales]
) -> None:
    """Compare every row of every grain with the model, and every longer window with the sum of its parts."""
    rows = gold_rows(comparison.spark, comparison.target, settings)
    expected = [asdict(row) for row in expected_gold(outcome, settings)]
    # Four standard errors are exceeded once in 16,000 rows. With few users a sketch is exact except for collisions.
    tolerance = Tolerance("unique_users", share=4 * settings.standard_error, least=2)
    comparison.add(f"delta:{settings.gold_table}", expected, rows, tolerance=tolerance)
    comparison.differences.extend(sum_mismatches(rows, settings.grains))


def sales_model(flow: str, settings: pattern.SalesSettings) -> WindowFlow[model.Sale, Any]:
    """Return the model of a flow with the values of the settings."""
    if flow == "category_sales":
        window, delay, every = settings.window, settings.watermark, None
        window_flow: WindowFlow[model.Sale, Any] = model.CATEGORY_SALES
    else:
        window, delay, every = settings.rolling_window, settings.rolling_watermark, settings.rolling_every
        window_flow = model.ROLLING_REVENUE
    slide = None if every is None else Duration.parse(every).ms
    return replace(window_flow, window_ms=Duration.parse(window).ms, delay_ms=Duration.parse(delay).ms, slide_ms=slide)


def replay_model(
    spark: SparkSession, target: Target, flow: Flow, settings: pattern.SalesSettings, *, delay_ms: int | None = None
) -> WindowOutcome[Any]:
    """Run the model over the committed batches of a flow, optionally with another watermark delay."""
    window_flow = sales_model(flow.name, settings)
    window_flow = window_flow if delay_ms is None else replace(window_flow, delay_ms=delay_ms)
    batches = [batch[SINGLE_INPUT] for batch in batch_ranges(spark, target, flow)]
    return replay(read_records(target, settings.topic), batches, window_flow)


def expected_gold(outcome: WindowOutcome[model.CategorySales], settings: pattern.SalesSettings) -> list[model.GoldRow]:
    """Return the expected rows of the gold table after a run."""
    grains = {grain: Duration.parse(grain).ms for grain in settings.grains}
    return model.gold(model.newest(outcome.batches), grains)


def gold_rows(
    spark: SparkSession,
    target: Target,
    settings: pattern.SalesSettings,
    version: int | None = None,
    *,
    where: str = "true",
) -> list[Row]:
    """Return the rows of the gold table, of its current or an earlier version, without the sketches."""
    location, reader = target.table(settings.gold_table), spark.read.format("delta")
    if not is_table(location, spark):
        return []
    table = (reader if version is None else reader.option("versionAsOf", str(version))).load(location)
    # Spark reads only these columns, and skips the sketches, which are most of the table.
    return [row.asDict() for row in table.where(where).select(*_GOLD).collect()]


def sum_mismatches(rows: Iterable[Row], grains: Sequence[str]) -> list[str]:
    """Return the longer windows whose revenue or orders are not the sum of their shorter windows."""
    sums: dict[str, dict[tuple[int, str], list[tuple[Decimal, int]]]] = {grain: defaultdict(list) for grain in grains}
    for row in rows:
        start = round(cast("datetime", row["window_start"]).timestamp() * 1000)
        sums[str(row["grain"])][start, str(row["category"])].append(
            (cast("Decimal", row["revenue"]), cast("int", row["orders"]))
        )
    mismatches = []
    for short, long in pairwise(grains):
        length = Duration.parse(long).ms
        parts: dict[tuple[int, str], list[tuple[Decimal, int]]] = defaultdict(list)
        for (start, category), amounts in sums[short].items():
            parts[start // length * length, category].extend(amounts)
        for key in sorted(parts.keys() | sums[long].keys()):
            total, sum_of_parts = (_sum(amounts[key]) if key in amounts else None for amounts in (sums[long], parts))
            if total != sum_of_parts:
                mismatches.append(
                    f"{long} of {key[1]} at {key[0]} has {total}, but its windows of {short} have {sum_of_parts}"
                )
    return mismatches


def _sum(amounts: Iterable[tuple[Decimal, int]]) -> tuple[Decimal, int]:
    revenues, orders = zip(*amounts, strict=True)
    return sum(revenues, Decimal(0)), sum(orders)


@dataclass(frozen=True)
class SketchError:
    """The relative error of the estimates of one grain."""

    rows: int
    most_users: int
    root_mean_square: float
    largest: float


def sketch_errors(expected: Iterable[model.GoldRow], rows: Iterable[Row]) -> dict[str, SketchError]:
    """Measure the estimates of a table against the model, by grain."""
    exact = {(row.grain, row.window_start, row.category): row.unique_users for row in expected}
    relative_errors: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for row in rows:
        start = round(cast("datetime", row["window_start"]).timestamp() * 1000)
        users = exact.get((str(row["grain"]), start, str(row["category"])))
        if users:
            relative_errors[str(row["grain"])].append((users, abs(cast("int", row["unique_users"]) - users) / users))
    return {
        grain: SketchError(
            len(pairs),
            max(users for users, _ in pairs),
            round(math.sqrt(sum(share**2 for _, share in pairs) / len(pairs)), 5),
            round(max(share for _, share in pairs), 5),
        )
        for grain, pairs in relative_errors.items()
    }


@dataclass(frozen=True)
class SalesDemo(RecordsDemo):
    """Real-time aggregates with their usual settings, and batches small enough to watch."""

    title: str = "Real-time aggregates: sales by 5 minutes, hour and day that add up, and rolling revenue"
    pattern_flows: Callable[[Any], list[Flow]] = pattern.flows
    generator: Callable[[Any], PatternGenerator] = lambda _settings: SalesTraffic()
    late_share: float = _LATE_SHARE
    settings: pattern.SalesSettings = field(
        default_factory=lambda: pattern.SalesSettings(trigger=Every("5 seconds"), max_offsets=_MAX_BATCH_RECORDS)
    )

    def status(self, context: DemoContext, spark: SparkSession) -> Sequence[str]:
        """Return a line per category with its newest day."""
        longest = f"grain = {string_literal(self.settings.grains[-1])}"
        rows = gold_rows(spark, context.target, self.settings, where=longest)
        newest = max((cast("datetime", row["window_start"]) for row in rows), default=None)
        day = sorted((row for row in rows if row["window_start"] == newest), key=lambda row: str(row["category"]))
        return [
            f"{row['category']!s:<12} {row['revenue']:>14,} revenue {row['orders']:>8,} orders "
            f"about {row['unique_users']:>7,} users today"
            for row in day
        ]

    def awaited_offsets(self, context: DemoContext) -> Mapping[str, Mapping[Partition, int]]:
        """Return the end of the topic: a demo that ends within its first batches has no late sale to show."""
        ends = end_offsets(context.target, [(self.settings.topic, number) for number in range(PARTITIONS)])
        return {flow.name: ends for flow in self.flows()}

    def compare(self, context: DemoContext, spark: SparkSession) -> ModelVerdict:
        """Compare every row of both tables with the model, and report the error of the sketches."""
        flows = self.flows()
        comparison = compare(spark, context.target, flows, self.settings)
        (gold,) = (flow for flow in flows if flow.name == "category_sales")
        outcome = replay_model(spark, context.target, gold, self.settings)
        errors = sketch_errors(expected_gold(outcome, self.settings), gold_rows(spark, context.target, self.settings))
        stated, late = self.settings.standard_error, sum(outcome.late)
        return ModelVerdict(
            comparison,
            {"sketch": {"stated": round(stated, 5), **{grain: asdict(error) for grain, error in errors.items()}}},
            [
                f"{late:,} sales came after their {self.settings.window} were closed: each is in the late ledger.",
                *(
                    f"Users of {error.rows:,} rows of {grain}, up to {error.most_users:,}: "
                    f"{error.root_mean_square:.2%} off on average, {error.largest:.2%} at most; "
                    f"{stated:.2%} is the standard error."
                    for grain, error in errors.items()
                ),
            ],
        )


DEMO = SalesDemo()
