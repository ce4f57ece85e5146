"""The enrichment demo: purchases and products, every row compared with the model, version by version."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from pyspark.sql import SparkSession

from headrace.clients.sql import quote_name
from headrace.demos.compare import Comparison, table_rows
from headrace.demos.protocol import DemoContext
from headrace.demos.records_demo import (
    ModelVerdict,
    PatternGenerator,
    RecordsDemo,
    TargetComparison,
    read_records,
    select_columns,
)
from headrace.flow.flow import Flow
from headrace.flow.levers import Every
from headrace.flow.target import Target
from headrace.patterns.enrichment import flows as pattern, model
from headrace.patterns.enrichment.generator import EnrichmentTraffic
from headrace.patterns.records import InvalidRecord
from headrace.patterns.window_model import batch_records
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.sinks.delta.table import DELETED


@dataclass(frozen=True)
class EnrichmentComparison:
    """The comparison, and what happened to the purchases that had to wait for their product."""

    comparison: Comparison
    outcome: model.EnrichmentOutcome
    versions: int


def compare(
    spark: SparkSession, target: Target, flows: Sequence[Flow], settings: pattern.EnrichmentSettings
) -> EnrichmentComparison:
    """Compare every purchase with the model, and the dimension too if the pattern's own flow writes it.

    The model gets the records of the topics, the offsets of the batches from the offset logs, the version of the
    dimension that each batch recorded, and the rows of these versions. Call when the flows have stopped.
    """
    comparison = TargetComparison(spark=spark, target=target)
    by_name = {flow.name: flow for flow in flows}
    if "products" in by_name:
        _compare_products(comparison, by_name["products"], settings)
    purchases = by_name["purchases"]
    batches = comparison.batches(purchases)
    batch_versions = dimension_versions(spark, target, settings)
    versions = {number: _catalogue(spark, target, settings, number) for number in set(batch_versions) if number >= 0}
    outcome = model.replay(read_records(target, settings.topic), batches, batch_versions[: len(batches)], versions)
    comparison.add_table(settings.table, [asdict(row) for row in outcome.rows])
    comparison.add_ledgers(purchases.name, outcome.invalid, [0] * len(batches))
    return EnrichmentComparison(comparison, outcome, len(versions))


def dimension_versions(spark: SparkSession, target: Target, settings: pattern.EnrichmentSettings) -> list[int]:
    """Return the version of the dimension that each batch used, from the commits of the table."""
    checkpoint = Checkpoint.of("purchases", target, spark)
    history = (
        spark.sql(f"DESCRIBE HISTORY delta.{quote_name(target.table(settings.table))}").select("userMetadata").collect()
    )
    notes = [json.loads(row.userMetadata) for row in history if row.userMetadata]
    versions = {note["batch"]: note["dimension_version"] for note in notes if note["query_id"] == checkpoint.query_id()}
    return [versions[number] for number in sorted(versions)]


def _compare_products(comparison: TargetComparison, flow: Flow, settings: pattern.EnrichmentSettings) -> None:
    target = comparison.target
    log = {(record.partition, record.offset): record for record in read_records(target, settings.products_topic)}
    batches = comparison.batches(flow)
    records = [record for batch in batches for record in batch_records(log, batch)]
    names = ("product_id", "name", "category", "price")
    expected = [
        {name: value for name, value in asdict(product).items() if name in names}
        for product in model.newest_products(records).values()
    ]
    products = table_rows(comparison.spark, "delta", target.table(settings.dimension))
    comparison.add(f"delta:{settings.dimension}", expected, select_columns(products, *names))
    invalid = [row for row in map(model.PRODUCT.parse, records) if isinstance(row, InvalidRecord)]
    comparison.add_ledgers(flow.name, invalid, [0] * len(batches))


def _catalogue(
    spark: SparkSession, target: Target, settings: pattern.EnrichmentSettings, version: int
) -> list[model.Product]:
    """Return the rows of one version of the dimension."""
    table = spark.read.format("delta").option("versionAsOf", str(version)).load(target.table(settings.dimension))
    bounds = () if settings.as_of is None else (settings.as_of.valid_from, settings.as_of.valid_to)
    if DELETED in table.columns:
        table = table.where(f"NOT coalesce({DELETED}, false)")
    return [
        model.Product(row.product_id, row.name, row.category, row.price, *(_micros(row[name]) for name in bounds))
        for row in table.select("product_id", "name", "category", "price", *bounds).collect()
    ]


def _micros(time: datetime | None) -> int | None:
    # PySpark returns times without a zone, in the machine's local time; `timestamp` reads them so.
    return None if time is None else round(time.timestamp() * 1_000_000)


@dataclass(frozen=True)
class EnrichmentDemo(RecordsDemo):
    """Enrichment with its usual settings and triggers short enough to watch."""

    title: str = "Enrichment: purchases with their products, including products that arrive later"
    pattern_flows: Callable[[Any], list[Flow]] = pattern.flows
    generator: Callable[[Any], PatternGenerator] = lambda settings: EnrichmentTraffic(
        topic=settings.topic, products_topic=settings.products_topic
    )
    settings: pattern.EnrichmentSettings = field(
        default_factory=lambda: pattern.EnrichmentSettings(trigger=Every("10 seconds"))
    )

    def status(self, context: DemoContext, spark: SparkSession) -> Sequence[str]:
        """Return how many purchases are enriched, and how many wait."""
        from pyspark.errors import AnalysisException  # noqa: PLC0415 - only callers with a session come here

        try:
            table = spark.read.format("delta").load(context.target.table(self.settings.table))
        except AnalysisException:  # before the first batch
            return ()
        figures = "count_if(enriched)", "count_if(NOT enriched)", "max(dimension_version)"
        enriched, waiting, version = table.selectExpr(*figures).collect()[0]
        return [
            f"{enriched:,} purchases with their products, {waiting:,} wait for theirs; "
            f"the dimension is at version {version}"
        ]

    def compare(self, context: DemoContext, spark: SparkSession) -> ModelVerdict:
        """Compare every row of both tables with the model, and count the purchases that had to wait."""
        comparison = compare(spark, context.target, self.flows(), self.settings)
        waiting = sum(not row.enriched for row in comparison.outcome.rows)
        figures = {
            "enriched_later": comparison.outcome.enriched_later,
            "waiting": waiting,
            "dimension_versions": comparison.versions,
        }
        line = (
            f"{comparison.outcome.enriched_later:,} purchases came before their product and got it later, "
            f"{waiting:,} still wait; batches saw {comparison.versions} "
            f"version{'' if comparison.versions == 1 else 's'} of the dimension."
        )
        return ModelVerdict(comparison.comparison, {"enrichment": figures}, [line])


DEMO = EnrichmentDemo()
