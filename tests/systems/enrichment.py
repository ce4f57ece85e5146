"""Enrichment on a real broker: what its tests send, run and compare."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from headrace.clients.topics import create_topics
from headrace.demos.enrichment import EnrichmentComparison, compare
from headrace.demos.feeder import Generator, generate
from headrace.demos.records_demo import read_records
from headrace.flow.flow import Flow
from headrace.flow.inputs import Input
from headrace.flow.levers import AvailableNow
from headrace.flow.target import Target
from headrace.operate.run import Application
from headrace.patterns.enrichment.flows import PRODUCT, EnrichmentSettings, flows
from headrace.patterns.enrichment.generator import ProductGenerator, PurchaseTraffic
from headrace.patterns.traffic import GeneratedRecord
from headrace.sources.kafka.source import KafkaSource
from systems.past_traffic import NOW

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from pyspark.sql import SparkSession


KILLED = "interrupted"
# The flows of the driver that is killed, each with the batch in which that happens.
KILLED_IN = {"products": 1, "purchases": 1}


def settings_for(name: str) -> EnrichmentSettings:
    return EnrichmentSettings(
        topic=f"{name}-purchases",
        products_topic=f"{name}-products",
        trigger=AvailableNow(),
        products_trigger=AvailableNow(),
        max_offsets=1500,
    )


def flows_to_kill() -> list[Flow]:
    """Return both flows, that of products in batches so small that it has some to be killed in."""
    products, purchases = flows(settings_for(KILLED))
    source = KafkaSource(settings_for(KILLED).products_topic, max_offsets_per_trigger=100)
    return [replace(products, inputs=Input(source, schema=PRODUCT)), purchases]


def send_before_the_kill(target: Target) -> None:
    settings = settings_for(KILLED)
    create_topics(target.kafka, dict.fromkeys(settings.topics, 2))
    announce_products(target, settings, 30, 25)
    send_purchases(target, settings, 30, 8)


def traffic_for(settings: EnrichmentSettings) -> PurchaseTraffic:
    shares = PurchaseTraffic(rate=4, late=0.02, duplicates=0.02, malformed=0.02, seed=11)
    return replace(shares, topic=settings.topic, products_topic=settings.products_topic)


class Until:
    """The records of a generator between two moments, minutes before the end of the past."""

    topic = "unused"

    def __init__(self, records: Generator, first: int, last: int) -> None:
        self._records, self._first, self._last = records, first, last

    def events(self, _from: datetime, _until: datetime | None = None) -> Iterator[GeneratedRecord]:
        first, last = (NOW - timedelta(minutes=minutes) for minutes in (self._first, self._last))
        return self._records.events(first, last)


def send_purchases(target: Target, settings: EnrichmentSettings, first: int, last: int) -> int:
    records = traffic_for(settings)
    return generate(Until(records, first, last), target, topic=settings.topic).records


def announce_products(target: Target, settings: EnrichmentSettings, first: int, last: int) -> None:
    """Send the products that are announced between two moments, and nobody has read them yet."""
    records = ProductGenerator(traffic_for(settings))
    generate(Until(records, first, last), target, topic=settings.products_topic)


def know_products(spark: SparkSession, target: Target, settings: EnrichmentSettings, first: int, last: int) -> None:
    """Let the products become known that are announced between two moments."""
    announce_products(target, settings, first, last)
    ran = Application(spark, target, flows(settings)[:1]).run()
    assert ran["products"].error is None


def write_history(spark: SparkSession, target: Target, settings: EnrichmentSettings) -> None:
    """Write the states of products as their history: each state from its time to the next one's.

    Of every second product it is not known since when the first state was so.
    """
    reported: dict[str, dict[str, dict[str, str]]] = {}
    for record in read_records(target, settings.products_topic):
        state = json.loads(record.value or b"", parse_float=str)
        reported.setdefault(state["product_id"], {})[state["updated_at"]] = state
    rows = []
    for number, (product, states) in enumerate(reported.items()):
        times = sorted(states)
        for place, (since, until) in enumerate(zip(times, [*times[1:], None], strict=True)):
            state, unknown = states[since], place == 0 and number % 2
            rows.append((product, state["name"], state["category"], state["price"], None if unknown else since, until))
    columns = "product_id string, name string, category string, price string, since string, until string"
    types = {"price": "decimal(10,2)", "since": "timestamp", "until": "timestamp"}
    history = spark.createDataFrame(rows, columns).withColumns({n: F.col(n).cast(t) for n, t in types.items()})
    history.write.format("delta").save(target.table(settings.dimension))


def run_purchases(spark: SparkSession, target: Target, settings: EnrichmentSettings) -> None:
    ran = Application(spark, target, flows(settings)[-1:]).run()
    assert ran["purchases"].error is None


def run(spark: SparkSession, target: Target, settings: EnrichmentSettings) -> EnrichmentComparison:
    """Run the purchases and compare them, and the products, with the model."""
    run_purchases(spark, target, settings)
    actual = compare(spark, target, flows(settings), settings)
    assert actual.comparison.differences == []
    return actual
