"""Plans of flows, made without their sources: what is found in them, and what a start does about it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from headrace import (
    Continuous,
    DeltaSource,
    Flow,
    FlowError,
    InMemory,
    Input,
    KafkaSink,
    KafkaSource,
    Memory,
    RateSource,
    RealTime,
    Severity,
    Target,
    Watermark,
    check,
)
from headrace.flow.checks.operators import Operator, OperatorKind, QueryPlan, UnknownPlan
from headrace.patterns.rides.flows import flows as ride_flows
from headrace.spark_plan.planning import plan_flow
from headrace.testing import Arrive, rehearse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

ROW = StructType([StructField("id", StringType()), StructField("at", TimestampType(), nullable=False)])
MARKED = Input(KafkaSource("t"), schema=ROW, watermark=Watermark("at", "1 minute"))


def by_id(rows: DataFrame) -> DataFrame:
    return rows.groupBy("id").count()


def flow(**changes: object) -> Flow:
    declared: dict[str, object] = {"name": "planned", "inputs": MARKED, "transform": by_id, "sink": Memory()}
    return Flow(**(declared | changes))  # type: ignore[arg-type]


def codes_of(spark: SparkSession, created: Flow, target: Target | None = None) -> list[tuple[str, Severity]]:
    findings = check([created], plans={created.name: plan_flow(spark, created, target)})
    return [(finding.code, finding.severity) for finding in findings if finding.code != "HRC-301"]


def test_the_flows_of_ride_analytics_are_planned_without_a_broker_and_nothing_is_found(spark: SparkSession) -> None:
    plans = {flow.name: plan_flow(spark, flow, None) for flow in ride_flows()}
    assert {name: type(plan) for name, plan in plans.items()} == dict.fromkeys(plans, QueryPlan)
    assert {item.code for item in check(ride_flows(), plans=plans)} == {"HRC-301"}


def test_what_the_operators_rule_out_is_found(spark: SparkSession) -> None:
    assert codes_of(spark, flow()) == [("HRC-111", Severity.ERROR)]
    assert codes_of(spark, flow(output_mode="update")) == [("HRC-201", Severity.WARNING)]
    assert codes_of(spark, flow(transform=lambda rows: rows.dropDuplicates(["id"]))) == [("HRC-208", Severity.WARNING)]
    assert codes_of(spark, flow(transform=lambda rows: rows.where("id > 0"), output_mode="complete")) == [
        ("HRC-111", Severity.ERROR)
    ]
    assert codes_of(spark, flow(transform=lambda rows: rows)) == []


def test_continuous_triggers_are_checked_against_the_operators_too(spark: SparkSession) -> None:
    to_kafka = flow(sink=KafkaSink("out"), output_mode="update", trigger=RealTime(), transform=lambda rows: rows)
    assert codes_of(spark, to_kafka) == []
    assert ("HRC-113", Severity.ERROR) in codes_of(
        spark, flow(sink=KafkaSink("o"), output_mode="update", trigger=RealTime())
    )
    exploded = flow(
        sink=KafkaSink("o"), trigger=Continuous(), transform=lambda rows: rows.select(F.explode(F.split("id", ",")))
    )
    assert codes_of(spark, exploded) == [("HRC-113", Severity.ERROR)]


def test_a_column_that_is_not_there_is_found_and_named(spark: SparkSession) -> None:
    plan = plan_flow(spark, flow(transform=lambda rows: rows.where("ident > 0")), None)
    assert isinstance(plan, UnknownPlan)
    assert (plan.is_transform_error, "ident" in plan.why) == (True, True)
    assert codes_of(spark, flow(transform=lambda rows: rows.where("ident > 0"))) == [("HRC-118", Severity.ERROR)]


def test_an_error_of_the_transform_itself_is_found(spark: SparkSession) -> None:
    def broken(rows: DataFrame) -> DataFrame:
        raise KeyError("fare")

    plan = plan_flow(spark, flow(transform=broken), None)
    assert plan == UnknownPlan("KeyError: 'fare'", is_transform_error=True)


def test_a_source_that_cannot_be_asked_is_no_fault_of_the_flow(spark: SparkSession, tmp_path: Path) -> None:
    target = Target("t", lake=str(tmp_path), checkpoints=str(tmp_path))
    table = flow(inputs=Input(DeltaSource("absent", max_files_per_trigger=10)), transform=lambda rows: rows)
    assert codes_of(spark, table, target) == [("HRC-209", Severity.INFO)]
    assert codes_of(spark, table) == [("HRC-209", Severity.INFO)]
    # A table that the transform reads may be made by another flow.
    reads = flow(transform=lambda rows: rows.join(rows.sparkSession.read.table("absent"), "id"))
    assert codes_of(spark, reads) == [("HRC-209", Severity.INFO)]


def test_a_source_with_columns_of_its_own_is_opened(spark: SparkSession, tmp_path: Path) -> None:
    target = Target("t", lake=str(tmp_path), checkpoints=str(tmp_path))
    plan = plan_flow(spark, flow(inputs=Input(RateSource(1)), transform=lambda rows: rows.where("value > 1")), target)
    assert isinstance(plan, QueryPlan)
    assert [operator.kind for operator in plan.operators] == [OperatorKind.PROJECTION]


def test_custom_state_in_memory_is_found() -> None:
    created = flow(state=InMemory())
    plan = QueryPlan((Operator(OperatorKind.CUSTOM_STATE),))
    assert [item.code for item in check([created], plans={created.name: plan})] == ["HRC-119", "HRC-301"]


def test_a_start_refuses_what_the_check_refuses_before_spark_sees_the_query(
    spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(FlowError) as refused:
        rehearse(flow(), [Arrive({"id": "a", "at": "2026-01-01T12:00:00Z"})], spark=spark, folder=tmp_path)
    assert refused.value.code == "HR-203"
    assert "HRC-111" in refused.value.why
    assert "update" in refused.value.remedy
    assert not (tmp_path / "checkpoints" / "planned" / "spark").exists()
