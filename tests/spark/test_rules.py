"""Rules on inputs: what is counted, left out, filed, and what stops a flow, against tables worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.types import DecimalType, StringType, StructField, StructType, TimestampType

from headrace import AvailableNow, DeltaSource, Flow, HeadraceError, Input, Kafka, Memory, Target, Watermark
from headrace.flow.rules import Rule
from headrace.operate.run import Application
from headrace.runtime.planning import plan_of
from headrace.testing import Arrive, rehearse

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
    given = Input(Kafka("orders"), schema=ORDER, watermark=Watermark("at", "1 minute"), rules=tuple(rules))
    return Flow("ruled", replace(given, **changes), _as_it_is, Memory())  # type: ignore[arg-type]


def _as_it_is(rows: DataFrame) -> DataFrame:
    return rows


def test_rows_against_rules_are_left_out_and_filed_beside_those_that_cannot_be_read(
    spark: SparkSession, tmp_path: Path
):
    found = rehearse(flow(RULES), [Arrive(*ORDERS, "{torn")], spark=spark, folder=tmp_path)

    assert [(row.key, row.amount) for row in found.rows] == [("a", Decimal("1.00"))]
    assert found.rows[0].asDict().keys() == {"key", "amount", "at"}
    assert sorted(row.reason for row in found.quarantine) == ["malformed_json", *REASONS]


def test_rules_hold_for_inputs_that_have_columns_of_their_own(spark: SparkSession, tmp_path: Path):
    table = Target("t", lake=str(tmp_path / "lake"), checkpoints=str(tmp_path / "checkpoints"))
    rows = spark.createDataFrame([tuple(each.values()) for each in ORDERS], ORDER)
    rows.coalesce(1).write.format("delta").save(table.table("silver"))
    memory = Memory()
    source = DeltaSource("silver", max_files_per_trigger=10, starting_version=0)
    given = Input(source, rules=RULES)

    figures = Application(spark, table, [Flow("ruled", given, _as_it_is, memory, trigger=AvailableNow())]).run()[
        "ruled"
    ]

    assert figures.error is None
    assert [row.key for row in memory.rows()] == ["a"]
    assert figures.rules == COUNTS
    assert figures.bad == {"rule:named": 1, "rule:positive": 3}


def test_a_rule_that_stops_the_flow_does_so_before_anything_is_written(spark: SparkSession, tmp_path: Path):
    strict = (Rule("no_test", "key <> 'test'", "fail"),)
    memory = Memory()
    with pytest.raises(HeadraceError) as stopped:
        rehearse(flow(strict), [Arrive(*ORDERS[:3]), Arrive(*ORDERS)], spark=spark, folder=tmp_path, sink=memory)

    assert [row.key for row in memory.rows()] == ["a", "b", "c"]
    assert stopped.value.code == "HR-571"
    assert "'no_test' (key <> 'test') is broken by" in stopped.value.why


def test_a_rule_that_cannot_be_planned_is_found_before_the_flow_runs(spark: SparkSession):
    wrong = plan_of(spark, flow([Rule("positive", "amout > 0")]), None)

    assert getattr(wrong, "wrong", False)
    assert "Rule 'positive' of input 'rows'" in getattr(wrong, "why", "")
