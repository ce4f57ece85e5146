"""The medallion demo: its topic, its flows, and the comparison of every layer with the model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any, cast

from confluent_kafka import Message
from pyspark.sql import DataFrame, SparkSession

from headrace.clients.kafka import read_topic
from headrace.clients.spark.delta_log import is_table
from headrace.demos.compare import Comparison, Row, table_rows
from headrace.demos.protocol import DemoContext
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
from headrace.flow.flow import SINGLE_INPUT, Flow
from headrace.flow.levers import Every
from headrace.flow.target import Target
from headrace.patterns.medallion import flows as pattern, model
from headrace.patterns.medallion.generator import WebOrderTraffic
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.checkpoint.source_order import source_index
from headrace.sources.delta.source import DeltaSource

_POSITION = ("topic", "partition", "offset", "kafka_ts")


def compare(
    spark: SparkSession, target: Target, flows: Sequence[Flow], settings: pattern.MedallionSettings
) -> tuple[Comparison, model.Silver]:
    """Compare every row of every layer, and every invalid row, with the model; also return the model's silver layer.

    The model gets only the records of the topic, when bronze got them, and how far each flow has read. Call when the
    flows have stopped.
    """
    by_name = {flow.name: flow for flow in flows}
    comparison = TargetComparison(spark=spark, target=target)
    bronze = table_rows(spark, "delta", target.table(settings.bronze_table))
    comparison.add(
        f"delta:{settings.bronze_table}",
        _expected_bronze(spark, target, by_name["bronze"], settings),
        map(_bronze_row, bronze),
    )

    read = {(row["partition"], row["offset"]) for row in _rows(_rows_read(spark, target, by_name["silver"]))}
    ingested_at = {(row["partition"], row["offset"]): cast("datetime", row["ingested_at"]) for row in bronze}
    records = [
        replace(record, timestamp_ms=round(ingested_at[record.partition, record.offset].timestamp() * 1000))
        for record in read_records(target, settings.topic)
        if (record.partition, record.offset) in read
    ]
    rules = {rule.name: (rule.action, model.RULES[rule.name][1]) for rule in settings.rules}
    silver = model.silver(records, within_ms=Duration.parse(settings.dedup_within).ms, rules=rules)
    comparison.add_table(settings.silver_table, [asdict(order) for order in silver.orders])
    comparison.add_ledgers("silver", silver.invalid, [])

    orders = {order.order_id: order for order in silver.orders}
    gold_orders = [
        orders[row["order_id"]]
        for row in _rows(_rows_read(spark, target, by_name["gold"]))
        if row["order_id"] in orders
    ]
    comparison.add_table(settings.gold_table, [asdict(row) for row in model.gold(gold_orders)])
    return comparison, silver


def _expected_bronze(spark: SparkSession, target: Target, flow: Flow, settings: pattern.MedallionSettings) -> list[Row]:
    batches = [batch[SINGLE_INPUT] for batch in batch_ranges(spark, target, flow)]
    positions = {
        (partition, offset)
        for batch in batches
        for partition, (first, end) in batch.items()
        for offset in range(first, end)
    }
    messages = read_topic(target, settings.topic)
    return [_as_row(message) for message in messages if (message.partition(), message.offset()) in positions]


def _as_row(message: Message) -> Row:
    headers = tuple((header[0], header[1]) for header in message.headers() or ())
    position = (message.topic(), message.partition(), message.offset(), message.timestamp()[1])
    return {
        "payload": message.value(),
        "key": message.key(),
        "headers": headers,
        **dict(zip(_POSITION, position, strict=True)),
    }


def _bronze_row(row: Row) -> Row:
    """Return a row of bronze as plain values, without the time of its ingestion."""
    as_bytes = {name: None if row[name] is None else bytes(row[name]) for name in ("payload", "key")}  # type: ignore[call-overload]
    records = row["headers"] or ()
    assert isinstance(records, list | tuple)  # noqa: S101 - an array of Spark
    headers = tuple((header["key"], None if header["value"] is None else bytes(header["value"])) for header in records)
    (position,) = select_columns([row], *_POSITION)
    return {**position, **as_bytes, "headers": headers}


def _rows_read(spark: SparkSession, target: Target, flow: Flow) -> DataFrame | None:
    """Return the rows that a flow has read from its table, up to its last committed batch."""
    checkpoint = Checkpoint.of(flow.name, target, spark)
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
class MedallionDemo(RecordsDemo):
    """The medallion with its usual rules, and shorter triggers than the usual five minutes."""

    title: str = "Medallion: bronze as it came, silver by rules, gold per day"
    pattern_flows: Callable[[Any], list[Flow]] = pattern.flows
    generator: Callable[[Any], PatternGenerator] = lambda _settings: WebOrderTraffic()
    settings: pattern.MedallionSettings = field(
        default_factory=lambda: pattern.MedallionSettings(
            bronze_trigger=Every("5 seconds"), silver_trigger=Every("10 seconds"), gold_trigger=Every("15 seconds")
        )
    )

    def status(self, context: DemoContext, spark: SparkSession) -> Sequence[str]:
        """Return a line with the number of rows of each layer."""
        layers = (self.settings.bronze_table, self.settings.silver_table, self.settings.gold_table)
        places = {path: context.target.table(path) for path in layers}
        written = {path: location for path, location in places.items() if is_table(location, spark)}
        counts = [f"{path} {spark.read.format('delta').load(location).count():,}" for path, location in written.items()]
        return [f"rows: {', '.join(counts)}"] if counts else ()

    def compare(self, context: DemoContext, spark: SparkSession) -> ModelVerdict:
        """Compare every row of every layer with the model, and report which rules were violated."""
        comparison, silver = compare(spark, context.target, self.flows(), self.settings)
        figures = context.figures["silver"]
        checkpoint = Checkpoint.of("silver", context.target, spark)
        if figures.batches == len(checkpoint.committed_batches()):
            # The first run on this checkpoint: the counts are complete.
            comparison.add("rules of silver", _counts(silver.violations), _counts(figures.rules))
        counts = ", ".join(f"{name} {rows:,}" for name, rows in figures.rules.items())
        return ModelVerdict(
            comparison, {"rules": dict(figures.rules)}, (f"Rows against each rule, of this run: {counts}.",)
        )


def _counts(by_rule: Mapping[str, int]) -> list[Row]:
    return [{"rule": name, "rows": rows} for name, rows in by_rule.items()]


DEMO = MedallionDemo()
