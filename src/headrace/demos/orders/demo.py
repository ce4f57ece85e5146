"""The demo of orders and payments: both topics, the four joins, and every row of every table against the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from threading import Event
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from headrace.clients.positions import Partition
from headrace.clients.storage import file_store
from headrace.clients.topics import create_topics
from headrace.demos.compare import Comparison, Row, table_rows
from headrace.demos.feeder import Sent, generate
from headrace.demos.model_inputs import FiledByInput, ModelVerdict, boundaries, compare_filed, consumed, only, past
from headrace.demos.protocol import Scene
from headrace.flow.duration import Duration
from headrace.flow.flow import Flow
from headrace.flow.size import format_bytes
from headrace.flow.target import Target
from headrace.patterns.orders import flows as pattern
from headrace.patterns.orders import model
from headrace.patterns.orders.generator import OrderGenerator, OrderTraffic
from headrace.patterns.records import ConsumedRecord
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.checkpoint.lease import highest_lease
from headrace.runtime.state.size import read_state_size

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Minutes of the hit rate that are shown.
_MINUTES = 5


def compare(spark: SparkSession, target: Target, settings: pattern.OrderSettings) -> Comparison:
    """Compare every row of every join, every late row, every bad row and the hit rate with the model.

    The model gets the records of the topics and the batches' boundaries from the offset logs. For a flow that was
    started more than once it gets the watermarks that are recorded there, too. Called when the flows have stopped.
    """
    orders, payments = consumed(target, settings.orders_topic), consumed(target, settings.payments_topic)
    found = Comparison()
    for how, flow in zip(settings.joins, pattern.flows(settings), strict=True):
        delay, bound = Duration.parse(settings.delay(how)).ms, Duration.parse(settings.bound).ms
        outcome = model.replay(
            orders,
            payments,
            boundaries(spark, target, flow),
            model.JoinFlow(how, delay, bound),
            recorded=watermarks(spark, target, flow.name) if ran_before(spark, target, flow.name) else None,
        )
        expected: list[Row] = [row._asdict() for batch in outcome.batches for row in batch]
        place = settings.table(how)
        found.add(f"delta:{place}", expected, table_rows(spark, "delta", target.table(place)))
        late = [each._asdict() for each in outcome.late]
        compare_filed(found, spark, target, flow.name, FiledByInput(outcome.bad, late))
        if how == judged(settings):
            shown = only(hit_rates(spark, target, settings), "minute", "orders", "paid")
            due = [_counted(_utc(start), *counts) for start, *counts in model.paid_by_minute(outcome, bound)]
            found.add("hit rate by minute", due, shown)
    return found


def watermarks(spark: SparkSession | None, target: Target, flow: str) -> list[int]:
    """Return the watermark that each committed batch of a flow ran with."""
    checkpoint = Checkpoint.of(flow, target, file_store(target.checkpoints, spark))
    return [checkpoint.offset_entry(batch_id).watermark_ms for batch_id in checkpoint.committed_batches()]


def ran_before(spark: SparkSession | None, target: Target, flow: str) -> bool:
    """Return whether a flow was started more than once: every start takes a lease of the next number."""
    checkpoint = Checkpoint.of(flow, target, file_store(target.checkpoints, spark))
    return highest_lease(checkpoint) > 1


@dataclass(frozen=True)
class OrdersDemo:
    """Orders and payments with their usual numbers."""

    title: str = "Orders and payments: four joins of two streams within an hour"
    parts: tuple[str, ...] = ("kafka",)
    has_page: bool = False
    spark: Mapping[str, str] = field(default_factory=dict)
    # Delay and bound are an hour and a half together: of a shorter past no minute is judged.
    backfill: timedelta = timedelta(hours=3)
    settings: pattern.OrderSettings = field(default_factory=pattern.OrderSettings)

    def prepare(self, scene: Scene) -> None:
        """Make the two topics, two partitions each: one per core of a small machine."""
        create_topics(scene.target.kafka, dict.fromkeys(self.settings.topics, 2))

    def feed(self, scene: Scene, stop: Event) -> Sent:
        """Send the recent past at once, then orders and payments, with late, repeated and malformed records in them."""
        wanted = scene.settings
        traffic = OrderTraffic(
            wanted.rate,
            seed=wanted.seed,
            orders_topic=self.settings.orders_topic,
            payments_topic=self.settings.payments_topic,
        )
        history = past(scene.target, self.settings.orders_topic, wanted)
        return generate(OrderGenerator(traffic), scene.target, backfill=history, stop=stop)

    def flows(self) -> Sequence[Flow]:
        """Return the four joins."""
        return pattern.flows(self.settings)

    def status(self, scene: Scene, spark: SparkSession) -> Sequence[str]:
        """Return the hit rate of the last minutes that are judged."""
        rates = hit_rates(spark, scene.target, self.settings)[-_MINUTES:]
        return [f"{row['minute']}  {row['paid']:>5} of {row['orders']:>5} orders paid" for row in rates]

    def awaited(self, scene: Scene) -> Mapping[str, Mapping[Partition, int]]:
        """Return each flow, without offsets: once it has read something, the model replays what there was."""
        return {flow.name: {} for flow in self.flows()}

    def compare(self, scene: Scene, spark: SparkSession) -> ModelVerdict:
        """Compare every row of every table with the model."""
        rates, state = hit_rates(spark, scene.target, self.settings), states(spark, scene.target, self.settings)
        told = [
            # A store writes its tables with the next snapshot, some batches later.
            f"{flow}: {each['rows']:,} rows of state, {each['forecast']:,} forecast; "
            f"{format_bytes(each['bytes']) if each['bytes'] else 'nothing yet'} in its store, "
            f"at most {format_bytes(each['forecast_bytes'])} forecast."
            for flow, each in state.items()
        ]
        figures = {"hit_rate": rates, "state": state}
        return ModelVerdict(compare(spark, scene.target, self.settings), figures, told)


def hit_rates(spark: SparkSession, target: Target, settings: pattern.OrderSettings) -> list[dict[str, object]]:
    """Return, by minute, how many orders found their payment: of the minutes whose unpaid orders are told as well.

    Of the left join, or of the full one; without either it is not known. A paid order is told at once and an unpaid one
    when the watermark has passed its bound, so a minute is judged when that has happened to its end.
    """
    how = judged(settings)
    if how is None:
        return []
    place = target.table(settings.table(how))
    # Asked before the table is read: what the batch of this watermark told is in it then.
    checkpoint = Checkpoint.of(pattern.NAMES[how], target, file_store(target.checkpoints, spark))
    committed = checkpoint.committed_batches()
    if not committed or not file_store(place, spark).names(f"{place}/_delta_log"):
        return []
    closed = _utc(checkpoint.offset_entry(committed[-1]).watermark_ms - Duration.parse(settings.bound).ms)
    rates = pattern.hit_rate(spark.read.format("delta").load(place)).where(F.col("window_end") <= F.lit(closed))
    return [
        # Spark gives times without a zone, in the zone of the machine.
        {**_counted(row.window_start.astimezone(UTC), row.orders, row.paid), "rate": row.hit_rate}
        for row in rates.orderBy("window_start").collect()
    ]


def judged(settings: pattern.OrderSettings) -> pattern.Join | None:
    """Return the join whose table has every order, paid or not."""
    both: tuple[pattern.Join, ...] = ("left", "full")
    return next((how for how in both if how in settings.joins), None)


def _utc(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def _counted(minute: datetime, orders: int, paid: int) -> dict[str, object]:
    return {"minute": minute.isoformat(timespec="minutes"), "orders": orders, "paid": paid}


def states(spark: SparkSession, target: Target, settings: pattern.OrderSettings) -> dict[str, dict[str, int]]:
    """Return the state of each join, as the last run left it, beside rate x (delay + bound)."""
    rates = [_per_second(consumed(target, topic)) for topic in settings.topics]
    found = {}
    for how in settings.joins:
        flow = pattern.NAMES[how]
        note = read_state_size(Checkpoint.of(flow, target, file_store(target.checkpoints, spark)))
        if note is not None:
            found[flow] = {
                "rows": note.rows,
                "forecast": settings.expected_rows(how, *rates),
                "bytes": note.bytes,
                "forecast_bytes": settings.expected_bytes(how, *rates),
            }
    return found


def _per_second(records: Sequence[ConsumedRecord]) -> float:
    times = [record.timestamp_ms for record in records]
    return len(times) * 1000 / max(1, max(times) - min(times)) if times else 0.0


DEMO = OrdersDemo()
