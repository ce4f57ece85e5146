"""The medallion demo's own part: its topic, its flows, and every row of every layer against the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from threading import Event
from typing import TYPE_CHECKING, cast

from headrace.clients.kafka import read_topic
from headrace.clients.positions import Partition
from headrace.clients.storage import file_store
from headrace.clients.topics import create_topics
from headrace.demos.compare import Comparison, Row, table_rows
from headrace.demos.feeder import Sent, generate
from headrace.demos.model_inputs import Filed, ModelVerdict, boundaries, compare_filed, consumed, only, past
from headrace.demos.protocol import Scene
from headrace.flow.duration import Duration
from headrace.flow.flow import SINGLE_INPUT, Flow
from headrace.flow.levers import Every
from headrace.flow.target import Target
from headrace.patterns.medallion import flows as pattern
from headrace.patterns.medallion import model
from headrace.patterns.medallion.generator import generator
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.checkpoint.source_order import source_index
from headrace.sources.delta.source import DeltaSource

if TYPE_CHECKING:
    from confluent_kafka import Message
    from pyspark.sql import DataFrame, SparkSession

_PLACE = ("topic", "partition", "offset", "kafka_ts")


def compare(
    spark: SparkSession, target: Target, flows: Sequence[Flow], settings: pattern.MedallionSettings
) -> tuple[Comparison, model.Silver]:
    """Compare every row of every layer, and every bad row, with the model; return what silver should have done, too.

    The model gets the records of the topic, when bronze got each, and how far each flow has read, and nothing else.
    Called when the flows have stopped.
    """
    by_name = {flow.name: flow for flow in flows}
    found = Comparison()
    bronze = table_rows(spark, "delta", target.table(settings.bronze_table))
    found.add(
        f"delta:{settings.bronze_table}",
        _expected_bronze(spark, target, by_name["bronze"], settings),
        map(_plain, bronze),
    )

    read = {(row["partition"], row["offset"]) for row in _rows(_read(spark, target, by_name["silver"]))}
    arrived = {(row["partition"], row["offset"]): cast("datetime", row["ingested_at"]) for row in bronze}
    records = [
        replace(each, timestamp_ms=round(arrived[each.partition, each.offset].timestamp() * 1000))
        for each in consumed(target, settings.topic)
        if (each.partition, each.offset) in read
    ]
    rules = {rule.name: (rule.action, model.RULES[rule.name][1]) for rule in settings.rules}
    silver = model.silver(records, within_ms=Duration.parse(settings.dedup_within).ms, rules=rules)
    rows = table_rows(spark, "delta", target.table(settings.silver_table))
    found.add(f"delta:{settings.silver_table}", [asdict(order) for order in silver.orders], rows)
    compare_filed(found, spark, target, "silver", Filed(silver.bad, []))

    orders = {order.order_id: order for order in silver.orders}
    taken = [
        orders[row["order_id"]] for row in _rows(_read(spark, target, by_name["gold"])) if row["order_id"] in orders
    ]
    gold = table_rows(spark, "delta", target.table(settings.gold_table))
    found.add(f"delta:{settings.gold_table}", [asdict(row) for row in model.gold(taken)], gold)
    return found, silver


def _expected_bronze(spark: SparkSession, target: Target, flow: Flow, settings: pattern.MedallionSettings) -> list[Row]:
    spans = [batch[SINGLE_INPUT] for batch in boundaries(spark, target, flow)]
    read = {(number, at) for span in spans for number, (first, end) in span.items() for at in range(first, end)}
    messages = read_topic(target, settings.topic)
    return [_as_row(each) for each in messages if (each.partition(), each.offset()) in read]


def _as_row(message: Message) -> Row:
    headers = tuple((each[0], each[1]) for each in message.headers() or ())
    place = (message.topic(), message.partition(), message.offset(), message.timestamp()[1])
    return {
        "payload": message.value(),
        "key": message.key(),
        "headers": headers,
        **dict(zip(_PLACE, place, strict=True)),
    }


def _plain(row: Row) -> Row:
    """Return a row of bronze as plain values: what was taken in when is of no matter here."""
    as_bytes = {name: None if row[name] is None else bytes(row[name]) for name in ("payload", "key")}  # type: ignore[call-overload]
    headers = row["headers"] or ()
    assert isinstance(headers, list | tuple)  # noqa: S101 - an array of Spark
    told = tuple((each["key"], None if each["value"] is None else bytes(each["value"])) for each in headers)
    (place,) = only([row], *_PLACE)
    return {**place, **as_bytes, "headers": told}


def _read(spark: SparkSession, target: Target, flow: Flow) -> DataFrame | None:
    """Return what a flow has read of its table, up to the last batch that it committed."""
    checkpoint = Checkpoint.of(flow.name, target, file_store(target.checkpoints, spark))
    committed, index, source = (
        checkpoint.committed_batches(),
        source_index(checkpoint, flow, SINGLE_INPUT),
        flow.named_inputs[SINGLE_INPUT].source,
    )
    assert isinstance(source, DeltaSource)  # noqa: S101 - silver and gold read tables
    end = checkpoint.offset_entry(committed[-1]).offsets[index] if committed and index is not None else None
    first = None if end is None else source.start_offset(end)
    return None if end is None or first is None else source.batch(spark, target, first, end)


def _rows(frame: DataFrame | None) -> list[Row]:
    return [] if frame is None else [row.asDict() for row in frame.collect()]


@dataclass(frozen=True)
class MedallionDemo:
    """The medallion with its usual rules, but for the triggers: five minutes are long to wait for."""

    title: str = "Medallion: bronze as it came, silver by rules, gold per day"
    parts: tuple[str, ...] = ("kafka",)
    has_page: bool = False
    spark: Mapping[str, str] = field(default_factory=dict)
    settings: pattern.MedallionSettings = field(
        default_factory=lambda: pattern.MedallionSettings(
            bronze_trigger=Every("5 seconds"), silver_trigger=Every("10 seconds"), gold_trigger=Every("15 seconds")
        )
    )

    def prepare(self, scene: Scene) -> None:
        """Make the topic, with two partitions: one per core of a small machine."""
        create_topics(scene.target.kafka, {self.settings.topic: 2})

    def feed(self, scene: Scene, stop: Event) -> Sent:
        """Send the recent past at once, then orders with late, repeated and malformed records among them."""
        wanted = scene.settings
        traffic = generator(rate=wanted.rate, late=0.02, duplicates=0.01, malformed=0.005, seed=wanted.seed)
        return generate(traffic, scene.target, backfill=past(scene.target, traffic.topic, wanted), stop=stop)

    def flows(self) -> Sequence[Flow]:
        """Return bronze, silver and gold."""
        return pattern.flows(self.settings)

    def status(self, scene: Scene, spark: SparkSession) -> Sequence[str]:
        """Return how many rows each layer holds, in a line."""
        layers = (self.settings.bronze_table, self.settings.silver_table, self.settings.gold_table)
        places = {path: scene.target.table(path) for path in layers}
        there = {path: at for path, at in places.items() if file_store(at, spark).names(f"{at}/_delta_log")}
        counts = [f"{path} {spark.read.format('delta').load(at).count():,}" for path, at in there.items()]
        return [f"rows: {', '.join(counts)}"] if counts else ()

    def awaited(self, scene: Scene) -> Mapping[str, Mapping[Partition, int]]:
        """Return each layer, without offsets: it has read something, and the model is told how far it has come."""
        return {flow.name: {} for flow in self.flows()}

    def compare(self, scene: Scene, spark: SparkSession) -> ModelVerdict:
        """Compare every row of every layer with the model, and say which rules were broken."""
        found, silver = compare(spark, scene.target, self.flows(), self.settings)
        figures = scene.figures["silver"]
        checkpoint = Checkpoint.of("silver", scene.target, file_store(scene.target.checkpoints, spark))
        if figures.batches == len(checkpoint.committed_batches()):
            # The first run on this checkpoint: all that was ever counted.
            found.add("rules of silver", _counts(silver.broken), _counts(figures.rules))
        told = ", ".join(f"{name} {rows:,}" for name, rows in figures.rules.items())
        return ModelVerdict(found, {"rules": dict(figures.rules)}, (f"Rows against each rule, of this run: {told}.",))


def _counts(by_rule: Mapping[str, int]) -> list[Row]:
    return [{"rule": name, "rows": rows} for name, rows in by_rule.items()]


DEMO = MedallionDemo()
