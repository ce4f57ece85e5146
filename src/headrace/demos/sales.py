"""The sales demo's own part: its topic, its flows, every row against the model, and how far sketches are off."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from decimal import Decimal
from itertools import pairwise
from threading import Event
from typing import TYPE_CHECKING, Any, cast

from headrace.clients.positions import Partition, end_offsets
from headrace.clients.storage import file_store
from headrace.clients.topics import create_topics
from headrace.demos.compare import Comparison, Row, Tolerance, table_rows
from headrace.demos.feeder import Sent, generate
from headrace.demos.model_inputs import Filed, ModelVerdict, boundaries, compare_filed, consumed, past
from headrace.demos.protocol import Scene
from headrace.flow.duration import Duration
from headrace.flow.flow import SINGLE_INPUT, Flow
from headrace.flow.levers import Every
from headrace.flow.target import Target
from headrace.patterns.sales import flows as pattern
from headrace.patterns.sales import model
from headrace.patterns.sales.generator import generator
from headrace.patterns.window_model import WindowFlow, WindowOutcome, replay

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import SparkSession

# Twice the usual share: a demo of a minute has few batches in which a sale can be late.
_LATE = 0.04
# A sale is late by the watermark of the batch before, so from the third batch on. With this bound the past that a demo
# begins with is about seven batches, and not one.
_MOST_OF_A_BATCH = 30_000
# One per core of a small machine.
_PARTITIONS = 2
_GOLD = ("grain", "window_start", "window_end", "category", "revenue", "orders", "unique_users")


def compare(spark: SparkSession, target: Target, flows: Sequence[Flow], settings: pattern.SalesSettings) -> Comparison:
    """Compare every row of both tables, every late row and every bad row with the model.

    The model gets the records of the topic and the batches' boundaries from the offset logs, and nothing else. Called
    when the flows have stopped.
    """
    found = Comparison()
    for flow in flows:
        outcome = replayed(spark, target, flow, settings)
        if flow.name == "category_sales":
            add_gold(found, spark, target, settings, outcome)
        else:
            rolling = [asdict(row) for row in model.newest_rolling(outcome.batches)]
            path = settings.rolling_table
            found.add(f"delta:{path}", rolling, table_rows(spark, "delta", target.table(path)))
        compare_filed(found, spark, target, flow.name, Filed(outcome.bad, outcome.late))
    return found


def add_gold(
    found: Comparison,
    spark: SparkSession,
    target: Target,
    settings: pattern.SalesSettings,
    outcome: WindowOutcome[model.CategorySales],
) -> None:
    """Compare every row of every grain with the model, and every longer window with the sum of its parts."""
    rows = gold_rows(spark, target, settings)
    expected = [asdict(row) for row in expected_gold(outcome, settings)]
    # Four standard errors are exceeded once in 16,000 rows. Of a few users a sketch knows each, but for a collision.
    tolerance = Tolerance("unique_users", share=4 * settings.standard_error, least=2)
    found.add(f"delta:{settings.gold_table}", expected, rows, tolerance=tolerance)
    found.differences.extend(not_adding_up(rows, settings.grains))


def modelled(flow: str, settings: pattern.SalesSettings) -> WindowFlow[model.Sale, Any]:
    """Return the model of a flow with the numbers of the settings."""
    if flow == "category_sales":
        window, delay, every = settings.window, settings.watermark, None
        known: WindowFlow[model.Sale, Any] = model.CATEGORY_SALES
    else:
        window, delay, every = settings.rolling_window, settings.rolling_watermark, settings.rolling_every
        known = model.ROLLING_REVENUE
    slide = None if every is None else Duration.parse(every).ms
    return replace(known, window_ms=Duration.parse(window).ms, delay_ms=Duration.parse(delay).ms, slide_ms=slide)


def replayed(
    spark: SparkSession,
    target: Target,
    flow: Flow,
    settings: pattern.SalesSettings,
    *,
    delay_ms: int | None = None,
) -> WindowOutcome[Any]:
    """Run the model over the batches that a flow has committed, if need be with another delay of the watermark."""
    known = modelled(flow.name, settings)
    known = known if delay_ms is None else replace(known, delay_ms=delay_ms)
    batches = [batch[SINGLE_INPUT] for batch in boundaries(spark, target, flow)]
    return replay(consumed(target, settings.topic), batches, known)


def expected_gold(outcome: WindowOutcome[model.CategorySales], settings: pattern.SalesSettings) -> list[model.GoldRow]:
    """Return the rows that the gold table must hold after a run."""
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
    """Return the rows of the gold table, now or in an earlier version of it, without the sketches."""
    location, read = target.table(settings.gold_table), spark.read.format("delta")
    if not file_store(location, spark).names(f"{location}/_delta_log"):
        return []
    table = (read if version is None else read.option("versionAsOf", str(version))).load(location)
    # Spark reads the columns that are asked for: of the sketches, which are most of the table, nothing.
    return [row.asDict() for row in table.where(where).select(*_GOLD).collect()]


def not_adding_up(rows: Iterable[Row], grains: Sequence[str]) -> list[str]:
    """Return where revenue or orders of a longer window are not the sum of the windows that it consists of."""
    sums: dict[str, dict[tuple[int, str], list[tuple[Decimal, int]]]] = {grain: defaultdict(list) for grain in grains}
    for row in rows:
        start = round(cast("datetime", row["window_start"]).timestamp() * 1000)
        sums[str(row["grain"])][start, str(row["category"])].append(
            (cast("Decimal", row["revenue"]), cast("int", row["orders"]))
        )
    found = []
    for short, long in pairwise(grains):
        length = Duration.parse(long).ms
        parts: dict[tuple[int, str], list[tuple[Decimal, int]]] = defaultdict(list)
        for (start, category), held in sums[short].items():
            parts[start // length * length, category].extend(held)
        for at in sorted(parts.keys() | sums[long].keys()):
            whole, of_parts = (_sum(each[at]) if at in each else None for each in (sums[long], parts))
            if whole != of_parts:
                found.append(f"{long} of {at[1]} at {at[0]} holds {whole}, and its windows of {short} {of_parts}")
    return found


def _sum(held: Iterable[tuple[Decimal, int]]) -> tuple[Decimal, int]:
    revenues, orders = zip(*held, strict=True)
    return sum(revenues, Decimal(0)), sum(orders)


@dataclass(frozen=True)
class SketchError:
    """How far the estimates of one grain are from the exact numbers, as shares of these."""

    rows: int
    most_users: int
    root_mean_square: float
    largest: float


def sketch_errors(expected: Iterable[model.GoldRow], rows: Iterable[Row]) -> dict[str, SketchError]:
    """Measure the estimates of a table against the model, by grain."""
    exact = {(row.grain, row.window_start, row.category): row.unique_users for row in expected}
    off: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for row in rows:
        start = round(cast("datetime", row["window_start"]).timestamp() * 1000)
        users = exact.get((str(row["grain"]), start, str(row["category"])))
        if users:
            off[str(row["grain"])].append((users, abs(cast("int", row["unique_users"]) - users) / users))
    return {
        grain: SketchError(
            len(each),
            max(users for users, _ in each),
            round(math.sqrt(sum(share**2 for _, share in each) / len(each)), 5),
            round(max(share for _, share in each), 5),
        )
        for grain, each in off.items()
    }


@dataclass(frozen=True)
class SalesDemo:
    """Real-time aggregates with their usual numbers, but for more and smaller batches: a person looks at it."""

    title: str = "Real-time aggregates: sales by 5 minutes, hour and day that add up, and rolling revenue"
    parts: tuple[str, ...] = ("kafka",)
    has_page: bool = False
    spark: Mapping[str, str] = field(default_factory=dict)
    settings: pattern.SalesSettings = field(
        default_factory=lambda: pattern.SalesSettings(trigger=Every("5 seconds"), max_offsets=_MOST_OF_A_BATCH)
    )

    def prepare(self, scene: Scene) -> None:
        """Make the topic."""
        create_topics(scene.target.kafka, {self.settings.topic: _PARTITIONS})

    def feed(self, scene: Scene, stop: Event) -> Sent:
        """Send the recent past at once, then sales with late, repeated and malformed records among them."""
        wanted = scene.settings
        traffic = generator(rate=wanted.rate, late=_LATE, duplicates=0.01, malformed=0.005, seed=wanted.seed)
        topic = self.settings.topic
        return generate(traffic, scene.target, topic=topic, backfill=past(scene.target, topic, wanted), stop=stop)

    def flows(self) -> Sequence[Flow]:
        """Return category sales and rolling revenue."""
        return pattern.flows(self.settings)

    def status(self, scene: Scene, spark: SparkSession) -> Sequence[str]:
        """Return a line per category with its newest day."""
        rows = gold_rows(spark, scene.target, self.settings, where=f"grain = '{self.settings.grains[-1]}'")
        newest = max((cast("datetime", row["window_start"]) for row in rows), default=None)
        day = sorted((row for row in rows if row["window_start"] == newest), key=lambda row: str(row["category"]))
        return [
            f"{row['category']!s:<12} {row['revenue']:>14,} revenue {row['orders']:>8,} orders "
            f"about {row['unique_users']:>7,} users today"
            for row in day
        ]

    def awaited(self, scene: Scene) -> Mapping[str, Mapping[Partition, int]]:
        """Return the end of the topic: a demo that ends amid its first batches has no late sale to show."""
        ends = end_offsets(scene.target, [(self.settings.topic, number) for number in range(_PARTITIONS)])
        return {flow.name: ends for flow in self.flows()}

    def compare(self, scene: Scene, spark: SparkSession) -> ModelVerdict:
        """Compare every row of both tables with the model, and tell how far the sketches are off."""
        flows = self.flows()
        comparison = compare(spark, scene.target, flows, self.settings)
        (gold,) = (flow for flow in flows if flow.name == "category_sales")
        outcome = replayed(spark, scene.target, gold, self.settings)
        errors = sketch_errors(expected_gold(outcome, self.settings), gold_rows(spark, scene.target, self.settings))
        stated, late = self.settings.standard_error, sum(outcome.late)
        return ModelVerdict(
            comparison,
            {"sketch": {"stated": round(stated, 5), **{grain: asdict(each) for grain, each in errors.items()}}},
            [
                f"{late:,} sales came after their {self.settings.window} were closed: each is kept in the late ledger.",
                *(
                    f"Users of {each.rows:,} rows of {grain}, up to {each.most_users:,}: {each.root_mean_square:.2%} "
                    f"off on average, {each.largest:.2%} at most; {stated:.2%} is the standard error."
                    for grain, each in errors.items()
                ),
            ],
        )


DEMO = SalesDemo()
