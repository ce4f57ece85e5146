"""Every system on a real broker: its driver is killed, the next one continues, and every row equals the model.

`make certify` runs each system without an interruption, too, with the finer cases of its tables.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TopicPartition

from headrace.audit.flow_audit import late_table, quarantine_table
from headrace.clients.kafka import admin_client
from headrace.demos import (
    enrichment as enrichment_demo,
    iot as iot_demo,
    medallion as medallion_demo,
    rides as rides_demo,
    sales as sales_demo,
)
from headrace.demos.compare import Comparison, topic_rows
from headrace.demos.orders import demo as orders_demo
from headrace.errors import RecoveryError
from headrace.flow.target import Target
from headrace.operate.run import Application
from headrace.patterns.enrichment.flows import flows as enrichment_flows
from headrace.patterns.iot.flows import flows as iot_flows
from headrace.patterns.medallion.flows import flows as medallion_flows
from headrace.patterns.orders.flows import NAMES, flows as orders_flows
from headrace.patterns.rides.flows import flows as rides_flows
from headrace.patterns.sales.flows import flows as sales_flows
from systems import enrichment, iot, medallion, orders, rides, sales
from systems.killed_driver import run_until_killed, target_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from conftest import Broker
    from headrace.flow.flow import Flow

pytestmark = [pytest.mark.stack, pytest.mark.spark]

SYSTEMS = ("rides", "orders", "medallion", "sales", "iot", "enrichment")


@dataclass(frozen=True)
class Killed:
    """What the killed driver left, by system."""

    folder: Path
    bootstrap: str

    def target(self, system: str) -> Target:
        return target_for(self.folder / system, self.bootstrap)


@pytest.fixture(scope="module")
def killed(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Killed:
    """Fill the topics of every system, run flows of all of them in one driver, and kill it in a batch of each flow."""
    left = Killed(tmp_path_factory.mktemp("systems"), broker.bootstrap)
    for system in SYSTEMS:
        importlib.import_module(f"systems.{system}").send_before_the_kill(left.target(system))
    run_until_killed(left.folder, broker.bootstrap, SYSTEMS)
    return left


def run(spark: SparkSession, target: Target, flows: Sequence[Flow]) -> None:
    figures = Application(spark, target, flows).run()
    assert {name: figure.error for name, figure in figures.items()} == dict.fromkeys(figures)


def require_equal(actual: Comparison) -> None:
    assert actual.differences == []
    # Equal and empty would prove nothing. Whether a row is late depends on the batches, and so on the kill.
    assert all(rows > 0 for place, rows in actual.rows.items() if not place.startswith("late rows")), actual.rows


def test_rides(killed: Killed, spark: SparkSession):
    settings, target = rides.settings_for(rides.KILLED), killed.target("rides")

    run(spark, target, rides_flows(settings))

    require_equal(rides_demo.compare(spark, target, rides_flows(settings), settings))
    reasons = {row.reason for row in spark.read.format("delta").load(quarantine_table(target, "surge")).collect()}
    assert reasons >= {
        "null_value",
        "too_large",
        "null_key",
        "malformed_json",
        "missing:ride_id",
        "wrong_type:fare_amount",
        "wrong_type:event_time",
        "event_time_in_future",
    }
    late = spark.read.format("delta").load(late_table(target, "city_rides"))
    assert late.count() > 0
    assert late.where("window_end > watermark").count() == 0


def test_orders_and_payments(killed: Killed, spark: SparkSession, tmp_path: Path):
    settings, target = orders.settings_of(orders.KILLED), killed.target("orders")

    run(spark, target, orders_flows(settings))

    require_equal(orders_demo.compare(spark, target, settings))
    # The driver started again once, and that explains the watermarks of every join.
    for how in settings.joins:
        recorded = orders_demo.watermarks(spark, target, NAMES[how])
        assert orders.replayed(spark, target, settings, how, recorded).restarts <= 1

    # Reconciliation adds what came too late, and removes what was sent twice.
    command = orders.command_line(orders.KILLED, tmp_path / "project", target)
    orders.reconciled(command, spark, target, settings, "full")

    # A day whose records the broker has deleted is not computed from what is left.
    ends = [TopicPartition(settings.orders_topic, partition, 300) for partition in (0, 1)]
    client = admin_client(target.kafka)
    for answer in client.delete_records(ends).values():
        answer.result(30)
    with pytest.raises(RecoveryError, match="cannot be recomputed") as refused:
        command(NAMES["full"])
    assert refused.value.code == "HR-357"


def test_medallion(killed: Killed, spark: SparkSession):
    settings, target = medallion.settings_for(medallion.KILLED), killed.target("medallion")
    before = len(medallion.rows_of(spark, target, settings.bronze_table))
    first = len(medallion.silver_checkpoint(target).committed_batches())
    assert first == medallion.KILLED_IN["silver"]

    # The killed driver's counts are lost with it. The batch that it was in is counted now.
    figures = medallion.run_layers(spark, target, medallion_flows(settings))

    assert len(medallion.rows_of(spark, target, settings.bronze_table)) > before > 0
    assert figures["silver"].rules == medallion.violations(spark, target, settings, first)
    actual, _ = medallion_demo.compare(spark, target, medallion_flows(settings), settings)
    require_equal(actual)


def test_sales(killed: Killed, spark: SparkSession):
    settings, target = sales.settings_for(sales.KILLED), killed.target("sales")

    run(spark, target, sales_flows(settings))

    require_equal(sales_demo.compare(spark, target, sales_flows(settings), settings))
    assert sales.versions_that_do_not_add_up(spark, target, settings) == []
    sales.tables_are_as_declared(spark, target, settings)


def test_iot(killed: Killed, spark: SparkSession):
    settings, target = iot.settings_for(iot.KILLED), killed.target("iot")

    run(spark, target, iot_flows(settings))

    actual, _ = iot_demo.compare(spark, target, iot_flows(settings), settings)
    require_equal(actual)
    assert {row["alert"] for row in topic_rows(target, settings.alerts_topic)} == {"HIGH_TEMP", "HIGH_HUMIDITY"}
    assert {row["status"] for row in topic_rows(target, settings.status_topic)} == {"SILENT", "BACK"}


def test_enrichment(killed: Killed, spark: SparkSession):
    settings, target = enrichment.settings_for(enrichment.KILLED), killed.target("enrichment")
    enrichment.know_products(spark, target, settings, 25, 10)

    middle = enrichment.run(spark, target, settings)

    assert middle.outcome.enriched_later > 0
    observed = enrichment_demo.dimension_versions(spark, target, settings)
    # The batch that the killed driver had written keeps the version that it met; later batches meet newer ones.
    assert observed[enrichment.KILLED_IN["purchases"]] < observed[-1]
    enrichment.know_products(spark, target, settings, 10, 0)
    enrichment.send_purchases(target, settings, 8, 0)

    last = enrichment.run(spark, target, settings)

    assert enrichment_demo.dimension_versions(spark, target, settings)[: len(observed)] == observed
    assert enrichment_demo.dimension_versions(spark, target, settings)[len(observed)] > observed[-1]
    assert last.outcome.enriched_later > middle.outcome.enriched_later
    assert [flow.name for flow in enrichment_flows(settings)] == list(enrichment.KILLED_IN)
