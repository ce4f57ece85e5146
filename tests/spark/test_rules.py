"""Rules on inputs: what is counted, left out, filed, and what stops a flow, against tables worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.types import DecimalType, StringType, StructField, StructType, TimestampType

from headrace import AvailableNow, DeltaSource, Flow, HeadraceError, Input, KafkaSource, Memory, Target, Watermark
from headrace.flow.rules import Rule
from headrace.operate.run import Application
from headrace.sources.delta.bronze import BronzeSource
from headrace.spark_plan.planning import plan_flow
from headrace.testing import Arrive, rehearse
from headrace.transforms.dedup import deduplicate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
# A field may be called as a column of the record is.
ORDER = StructType(
    [
        StructField("key", StringType(), nullable=False),
        StructField("amount", DecimalType(10, 2)),
        StructField("at", TimestampType(), nullable=False),
    ]
)
RULES = (
    Rule("has_amount", "amount IS NOT NULL", "warn"),
    Rule("positive", "amount > 0", "quarantine"),
    Rule("named", "key <> ''", "quarantine"),
    Rule("no_test", "key <> 'test'", "drop"),
)


def order(key: str, amount: str | None) -> dict[str, object]:
    return {"key": key, "amount": None if amount is None else Decimal(amount), "at": NOON}


ORDERS = [
    order("a", "1.00"),
    order("b", "0.00"),
    order("c", None),  # null is not more than zero
    order("test", "5.00"),
    order("", "-1.00"),  # against two rules: filed under the first
    order("", "2.00"),
]
COUNTS = {"has_amount": 1, "positive": 3, "named": 2, "no_test": 1}
REASONS = ["rule:named", "rule:positive", "rule:positive", "rule:positive"]


def flow(rules: Sequence[Rule], **changes: object) -> Flow:
    declared = Input(KafkaSource("orders"), schema=ORDER, watermark=Watermark("at", "1 minute"), rules=tuple(rules))
    return Flow("ruled", replace(declared, **changes), _as_it_is, Memory())  # type: ignore[arg-type]


def _as_it_is(rows: DataFrame) -> DataFrame:
    return rows


def test_rows_that_violate_rules_are_dropped_and_quarantined_with_those_that_cannot_be_read(
    spark: SparkSession, tmp_path: Path
):
    actual = rehearse(flow(RULES), [Arrive(*ORDERS, "{torn")], spark=spark, folder=tmp_path)

    assert [(row.key, row.amount) for row in actual.rows] == [("a", Decimal("1.00"))]
    assert actual.rows[0].asDict().keys() == {"key", "amount", "at"}
    assert sorted(row.reason for row in actual.quarantine) == ["malformed_json", *REASONS]


def test_rules_apply_to_inputs_that_have_their_own_columns(spark: SparkSession, tmp_path: Path):
    table = Target("t", lake=str(tmp_path / "lake"), checkpoints=str(tmp_path / "checkpoints"))
    rows = spark.createDataFrame([tuple(order.values()) for order in ORDERS], ORDER)
    rows.coalesce(1).write.format("delta").save(table.table("silver"))
    memory = Memory()
    source = DeltaSource("silver", max_files_per_trigger=10, starting_version=0)
    declared = Input(source, rules=RULES)

    figures = Application(spark, table, [Flow("ruled", declared, _as_it_is, memory, trigger=AvailableNow())]).run()[
        "ruled"
    ]

    assert figures.error is None
    assert [row.key for row in memory.rows()] == ["a"]
    assert figures.rules == COUNTS
    assert figures.invalid == {"rule:named": 1, "rule:positive": 3}

    none = Memory()
    strict = Flow("strict", replace(declared, rules=STRICT), _as_it_is, none, trigger=AvailableNow())
    stopped = Application(spark, table, [strict]).run()["strict"].error
    assert (stopped and stopped.code, none.rows()) == ("HR-571", [])


STRICT = (Rule("no_test", "key <> 'test'", "fail"),)


def test_a_rule_that_stops_the_flow_does_so_before_anything_is_written(spark: SparkSession, tmp_path: Path):
    memory = Memory()
    with pytest.raises(HeadraceError) as stopped:
        rehearse(flow(STRICT), [Arrive(*ORDERS[:3]), Arrive(*ORDERS)], spark=spark, folder=tmp_path, sink=memory)

    assert [row.key for row in memory.rows()] == ["a", "b", "c"]
    assert stopped.value.code == "HR-571"
    assert "'no_test' (key <> 'test') is broken by" in stopped.value.why


# (partition, offset, key of the order, hours after noon at which bronze got it, days by which Kafka's time is behind).
# The clock of b's producer is ahead, that of c's far behind: under a watermark on Kafka's time c would be late. a was
# sent again when the hour in which it counts once was over.
RECORDS = [
    (0, 0, "a", 0.0, 0),
    (1, 0, "b", 0.0, -30),
    (0, 1, "c", 2.5, 400),
    (1, 1, "d", 3.0, 0),
    (0, 2, "a", 4.0, 0),
    (1, 2, "test", 4.0, 0),
]


def test_records_of_a_table_go_by_their_arrival_count_once_when_sent_again_and_stop_the_flow_by_their_place(
    spark: SparkSession, tmp_path: Path
):
    target = Target("t", lake=str(tmp_path / "lake"), checkpoints=str(tmp_path / "checkpoints"))
    columns = "payload BINARY, key BINARY, topic STRING, partition INT, offset LONG, kafka_ts TIMESTAMP"
    for partition, offset, key, hours, behind in RECORDS:
        got = NOON + timedelta(hours=hours)
        payload = json.dumps({"key": key, "amount": 1, "at": NOON.isoformat()}).encode()
        record = (payload, None, "orders", partition, offset, got - timedelta(days=behind), got)
        created = spark.createDataFrame([record], f"{columns}, ingested_at TIMESTAMP").coalesce(1)
        created.write.format("delta").mode("append").save(target.table("bronze"))
    sent = [("orders", 0, 0, NOON)]
    identity = "topic STRING, partition INT, offset LONG, kafka_time TIMESTAMP"
    spark.createDataFrame(sent, identity).write.format("delta").save(target.table("redriven"))

    memory, arrival = Memory(), Watermark("timestamp", "1 hour")
    source = BronzeSource("bronze", max_files_per_trigger=1, redriven="redriven")
    declared = Input(source, schema=ORDER, watermark=arrival, metadata_columns=("timestamp",), rules=STRICT)
    silver = Flow("silver", declared, lambda rows: deduplicate(rows, "key", within=arrival), memory)
    stopped = Application(spark, target, [replace(silver, trigger=AvailableNow())]).run()["silver"].error

    assert [row.key for row in memory.rows()] == ["b", "c", "d", "a"]
    assert stopped is not None
    assert stopped.code == "HR-571"
    assert "'no_test' (key <> 'test') is broken by orders-1@2" in stopped.why


def test_a_rule_that_cannot_be_planned_is_found_before_the_flow_runs(spark: SparkSession):
    wrong = plan_flow(spark, flow([Rule("positive", "amout > 0")]), None)

    assert getattr(wrong, "is_transform_error", False)
    assert "Rule 'positive' of input 'rows'" in getattr(wrong, "why", "")
