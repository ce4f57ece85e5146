"""The demo of orders and payments: both topics, four joins, and the comparison of every table with the model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import SparkSession, functions as F

from headrace.clients.spark.delta_log import is_table
from headrace.demos.compare import Comparison, Row
from headrace.demos.protocol import DemoContext, HasBackfill
from headrace.demos.records_demo import (
    ModelVerdict,
    PatternGenerator,
    RecordsDemo,
    TargetComparison,
    batch_ranges,
    read_records,
    select_columns,
)
from headrace.flow.duration import Duration
from headrace.flow.flow import Flow
from headrace.flow.size import format_bytes
from headrace.flow.target import Target
from headrace.patterns.orders import flows as pattern, model
from headrace.patterns.orders.generator import OrderTraffic
from headrace.patterns.records import ConsumedRecord
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.checkpoint.lease import highest_lease
from headrace.runtime.state.size import read_state_size

# Minutes of the hit rate to show.
_MINUTES = 5


def compare(spark: SparkSession, target: Target, settings: pattern.OrderSettings) -> Comparison:
    """Compare all rows of the joins, late rows, invalid rows and the hit rate with the model.

    The model gets the records of the topics and the offsets of the batches from the offset logs. For a flow that was
    started more than once it also gets the watermarks recorded there. Call when the flows have stopped.
    """
    orders, payments = read_records(target, settings.orders_topic), read_records(target, settings.payments_topic)
    comparison = TargetComparison(spark=spark, target=target)
    for how, flow in zip(settings.joins, pattern.flows(settings), strict=True):
        delay, bound = Duration.parse(settings.delay(how)).ms, Duration.parse(settings.bound).ms
        outcome = model.replay(
            orders,
            payments,
            batch_ranges(spark, target, flow),
            model.JoinFlow(how, delay, bound),
            recorded=watermarks(spark, target, flow.name) if was_restarted(spark, target, flow.name) else None,
        )
        expected: list[Row] = [row._asdict() for batch in outcome.batches for row in batch]
        comparison.add_table(settings.table(how), expected)
        late = [row._asdict() for row in outcome.late]
        comparison.add_ledgers_by_input(flow.name, outcome.invalid, late)
        if how == hit_rate_join(settings):
            actual_rates = select_columns(join_hit_rates(spark, target, settings), "minute", "orders", "paid")
            expected_rates = [
                _minute_row(_utc(start), *counts) for start, *counts in model.paid_by_minute(outcome, bound)
            ]
            comparison.add("hit rate by minute", expected_rates, actual_rates)
    return comparison


def watermarks(spark: SparkSession | None, target: Target, flow: str) -> list[int]:
    """Return the watermark that each committed batch of a flow ran with."""
    checkpoint = Checkpoint.of(flow, target, spark)
    return [checkpoint.offset_entry(batch_id).watermark_ms for batch_id in checkpoint.committed_batches()]


def was_restarted(spark: SparkSession | None, target: Target, flow: str) -> bool:
    """Return whether a flow was started more than once: every start takes a lease of the next number."""
    checkpoint = Checkpoint.of(flow, target, spark)
    return highest_lease(checkpoint) > 1


@dataclass(frozen=True)
class OrdersDemo(RecordsDemo, HasBackfill):
    """Orders and payments with their usual settings."""

    title: str = "Orders and payments: four joins of two streams within an hour"
    pattern_flows: Callable[[Any], list[Flow]] = pattern.flows
    generator: Callable[[Any], PatternGenerator] = lambda settings: OrderTraffic(
        topic=settings.orders_topic, payments_topic=settings.payments_topic
    )
    # Delay and bound add up to an hour and a half: with a shorter history no minute is final.
    backfill: timedelta = timedelta(hours=3)
    settings: pattern.OrderSettings = field(default_factory=pattern.OrderSettings)

    def status(self, context: DemoContext, spark: SparkSession) -> Sequence[str]:
        """Return the hit rate of the last final minutes."""
        rates = join_hit_rates(spark, context.target, self.settings)[-_MINUTES:]
        return [f"{row['minute']}  {row['paid']:>5} of {row['orders']:>5} orders paid" for row in rates]

    def compare(self, context: DemoContext, spark: SparkSession) -> ModelVerdict:
        """Compare every row of every table with the model."""
        rates, state = (
            join_hit_rates(spark, context.target, self.settings),
            join_states(spark, context.target, self.settings),
        )
        notes = [
            # A store writes its tables with the next snapshot, some batches later.
            f"{flow}: {figures['rows']:,} rows of state, {figures['forecast']:,} forecast; "
            f"{format_bytes(figures['bytes']) if figures['bytes'] else 'nothing yet'} in its store, "
            f"at most {format_bytes(figures['forecast_bytes'])} forecast."
            for flow, figures in state.items()
        ]
        figures = {"hit_rate": rates, "state": state}
        return ModelVerdict(compare(spark, context.target, self.settings), figures, notes)


def join_hit_rates(spark: SparkSession, target: Target, settings: pattern.OrderSettings) -> list[dict[str, object]]:
    """Return, by minute, how many orders found their payment, for minutes whose unpaid orders are also emitted.

    Uses the left or the full join; without either there are no hit rates. A paid order is emitted immediately, an
    unpaid one when the watermark has passed its bound. A minute is final when that has happened to its end.
    """
    how = hit_rate_join(settings)
    if how is None:
        return []
    location = target.table(settings.table(how))
    # Read before the table: the table then has the rows of this watermark's batch.
    checkpoint = Checkpoint.of(pattern.NAMES[how], target, spark)
    committed = checkpoint.committed_batches()
    if not committed or not is_table(location, spark):
        return []
    closed = _utc(checkpoint.offset_entry(committed[-1]).watermark_ms - Duration.parse(settings.bound).ms)
    rates = pattern.hit_rate(spark.read.format("delta").load(location)).where(F.col("window_end") <= F.lit(closed))
    return [
        # Spark returns times without a zone, in the machine's local time.
        {**_minute_row(row.window_start.astimezone(UTC), row.orders, row.paid), "rate": row.hit_rate}
        for row in rates.orderBy("window_start").collect()
    ]


def hit_rate_join(settings: pattern.OrderSettings) -> pattern.Join | None:
    """Return the join whose table has every order, paid or not."""
    with_all_orders: tuple[pattern.Join, ...] = ("left", "full")
    return next((how for how in with_all_orders if how in settings.joins), None)


def _utc(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def _minute_row(minute: datetime, orders: int, paid: int) -> dict[str, object]:
    return {"minute": minute.isoformat(timespec="minutes"), "orders": orders, "paid": paid}


def join_states(spark: SparkSession, target: Target, settings: pattern.OrderSettings) -> dict[str, dict[str, int]]:
    """Return the state of each join after its last run, with the forecast rate x (delay + bound)."""
    rates = [_units_per_second(read_records(target, topic)) for topic in settings.topics]
    states = {}
    for how in settings.joins:
        flow = pattern.NAMES[how]
        note = read_state_size(Checkpoint.of(flow, target, spark))
        if note is not None:
            states[flow] = {
                "rows": note.rows,
                "forecast": settings.expected_rows(how, *rates),
                "bytes": note.bytes,
                "forecast_bytes": settings.expected_bytes(how, *rates),
            }
    return states


def _units_per_second(records: Sequence[ConsumedRecord]) -> float:
    times = [record.timestamp_ms for record in records]
    return len(times) * 1000 / max(1, max(times) - min(times)) if times else 0.0


DEMO = OrdersDemo()
