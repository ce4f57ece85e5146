"""The enrichment demo's own part: purchases and products, and every row against the model, version by version."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from threading import Event
from typing import TYPE_CHECKING

from headrace.clients.positions import Partition
from headrace.clients.storage import file_store
from headrace.clients.topics import create_topics
from headrace.demos.compare import Comparison, table_rows
from headrace.demos.feeder import Sent, generate
from headrace.demos.model_inputs import Filed, ModelVerdict, boundaries, compare_filed, consumed, only, past
from headrace.demos.protocol import Scene
from headrace.flow.flow import SINGLE_INPUT, Flow
from headrace.flow.levers import Every
from headrace.flow.target import Target
from headrace.patterns.enrichment import flows as pattern
from headrace.patterns.enrichment import model
from headrace.patterns.enrichment.generator import EnrichmentGenerator, PurchaseTraffic
from headrace.patterns.records import InvalidRecord
from headrace.patterns.window_model import batch_records
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.sinks.delta.table import DELETED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PARTITIONS = 2


@dataclass(frozen=True)
class Compared:
    """What a comparison found, and what came of the purchases that had to wait."""

    comparison: Comparison
    outcome: model.EnrichmentOutcome
    versions: int


def compare(
    spark: SparkSession, target: Target, flows: Sequence[Flow], settings: pattern.EnrichmentSettings
) -> Compared:
    """Compare every purchase, and with it the dimension where the pattern's own flow writes it, with the model.

    The model gets the records of the topics, the batches' boundaries from the offset logs, the version of the dimension
    that each batch says that it saw, and the rows of these versions. Called when the flows have stopped.
    """
    found = Comparison()
    by_name = {flow.name: flow for flow in flows}
    if "products" in by_name:
        _compare_products(found, spark, target, by_name["products"], settings)
    purchases = by_name["purchases"]
    batches = [batch[SINGLE_INPUT] for batch in boundaries(spark, target, purchases)]
    seen = versions_seen(spark, target, settings)
    versions = {number: _catalogue(spark, target, settings, number) for number in set(seen) if number >= 0}
    outcome = model.replay(consumed(target, settings.topic), batches, seen[: len(batches)], versions)
    expected = [asdict(row) for row in outcome.rows]
    found.add(f"delta:{settings.table}", expected, table_rows(spark, "delta", target.table(settings.table)))
    compare_filed(found, spark, target, purchases.name, Filed(outcome.bad, [0] * len(batches)))
    return Compared(found, outcome, len(versions))


def versions_seen(spark: SparkSession, target: Target, settings: pattern.EnrichmentSettings) -> list[int]:
    """Return the version of the dimension that each batch saw, by the commits of the table."""
    checkpoint = Checkpoint.of("purchases", target, file_store(target.checkpoints, spark))
    history = spark.sql(f"DESCRIBE HISTORY delta.`{target.table(settings.table)}`").select("userMetadata").collect()
    told = [json.loads(row.userMetadata) for row in history if row.userMetadata]
    seen = {each["batch"]: each["dimension_version"] for each in told if each["query_id"] == checkpoint.query_id()}
    return [seen[number] for number in sorted(seen)]


def _compare_products(
    found: Comparison, spark: SparkSession, target: Target, flow: Flow, settings: pattern.EnrichmentSettings
) -> None:
    log = {(each.partition, each.offset): each for each in consumed(target, settings.products_topic)}
    batches = [batch[SINGLE_INPUT] for batch in boundaries(spark, target, flow)]
    read = [record for batch in batches for record in batch_records(log, batch)]
    names = ("product_id", "name", "category", "price")
    expected = [
        {name: value for name, value in asdict(each).items() if name in names}
        for each in model.newest_products(read).values()
    ]
    path = settings.dimension
    found.add(f"delta:{path}", expected, only(table_rows(spark, "delta", target.table(path)), *names))
    bad = [each for each in map(model.PRODUCT.judge, read) if isinstance(each, InvalidRecord)]
    compare_filed(found, spark, target, flow.name, Filed(bad, [0] * len(batches)))


def _catalogue(
    spark: SparkSession, target: Target, settings: pattern.EnrichmentSettings, version: int
) -> list[model.Product]:
    """Return the rows of one version of the dimension."""
    read = spark.read.format("delta").option("versionAsOf", str(version)).load(target.table(settings.dimension))
    bounds = () if settings.as_of is None else (settings.as_of.valid_from, settings.as_of.valid_to)
    if DELETED in read.columns:
        read = read.where(f"NOT coalesce({DELETED}, false)")
    return [
        model.Product(row.product_id, row.name, row.category, row.price, *(_micros(row[name]) for name in bounds))
        for row in read.select("product_id", "name", "category", "price", *bounds).collect()
    ]


def _micros(moment: datetime | None) -> int | None:
    # PySpark hands times over without a zone, in that of the machine; `timestamp` reads them so.
    return None if moment is None else round(moment.timestamp() * 1_000_000)


@dataclass(frozen=True)
class EnrichmentDemo:
    """Enrichment with its usual numbers, but for the triggers: a person looks at it."""

    title: str = "Enrichment: purchases beside their products, those that become known later too"
    parts: tuple[str, ...] = ("kafka",)
    has_page: bool = False
    spark: Mapping[str, str] = field(default_factory=dict)
    settings: pattern.EnrichmentSettings = field(
        default_factory=lambda: pattern.EnrichmentSettings(trigger=Every("10 seconds"))
    )

    def prepare(self, scene: Scene) -> None:
        """Make the two topics, two partitions each: one per core of a small machine."""
        create_topics(scene.target.kafka, dict.fromkeys(self.settings.topics, _PARTITIONS))

    def feed(self, scene: Scene, stop: Event) -> Sent:
        """Send the recent past at once, then purchases and what becomes known of products as they come."""
        wanted = scene.settings
        traffic = PurchaseTraffic(
            wanted.rate,
            seed=wanted.seed,
            purchases_topic=self.settings.topic,
            products_topic=self.settings.products_topic,
        )
        history = past(scene.target, self.settings.topic, wanted)
        return generate(EnrichmentGenerator(traffic), scene.target, backfill=history, stop=stop)

    def flows(self) -> Sequence[Flow]:
        """Return products and purchases."""
        return pattern.flows(self.settings)

    def status(self, scene: Scene, spark: SparkSession) -> Sequence[str]:
        """Return how many purchases are enriched, and how many wait."""
        from pyspark.errors import AnalysisException  # noqa: PLC0415 - only callers with a session come here

        try:
            table = spark.read.format("delta").load(scene.target.table(self.settings.table))
        except AnalysisException:  # before the first batch
            return ()
        figures = "count_if(enriched)", "count_if(NOT enriched)", "max(dimension_version)"
        enriched, waiting, version = table.selectExpr(*figures).collect()[0]
        return [
            f"{enriched:,} purchases beside their products, {waiting:,} wait for theirs; "
            f"the dimension is at version {version}"
        ]

    def awaited(self, scene: Scene) -> Mapping[str, Mapping[Partition, int]]:
        """Return each flow, without offsets: once it has read something, the model replays what there was."""
        return {flow.name: {} for flow in self.flows()}

    def compare(self, scene: Scene, spark: SparkSession) -> ModelVerdict:
        """Compare every row of both tables with the model, and tell of the purchases that had to wait."""
        found = compare(spark, scene.target, self.flows(), self.settings)
        waiting = sum(not row.enriched for row in found.outcome.rows)
        told = {
            "enriched_later": found.outcome.enriched_later,
            "waiting": waiting,
            "dimension_versions": found.versions,
        }
        line = (
            f"{found.outcome.enriched_later:,} purchases came before their product and got it later, {waiting:,} wait "
            f"still; batches saw {found.versions} version{'' if found.versions == 1 else 's'} of the dimension."
        )
        return ModelVerdict(found.comparison, {"enrichment": told}, [line])


DEMO = EnrichmentDemo()
