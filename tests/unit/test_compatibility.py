"""Triggers, sinks and operators judged by the matrix, without Spark; and the pages that are drawn from it."""

from __future__ import annotations

import importlib
import pkgutil
import warnings
from pathlib import Path

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from headrace import (
    AvailableNow,
    Continuous,
    DeltaAppend,
    DeltaOverwrite,
    Every,
    FanOut,
    FileSource,
    Flow,
    Input,
    KafkaExactlyOnceSink,
    KafkaSink,
    KafkaSource,
    Memory,
    Once,
    OutputMode,
    RealTime,
    Severity,
    check,
    sinks,
)
from headrace.cdc import sink as cdc_sink
from headrace.flow.checks import compatibility, matrix
from headrace.flow.checks.operators import Operator, OperatorKind, QueryPlan, UnknownPlan
from headrace.operate.run import as_available_now
from headrace.sinks.kafka.topic import KafkaTopicSink
from matrix_page import SINKS, drawn

LEVERS = Path(__file__).parents[2] / "docs" / "levers"
ROW = StructType([StructField("id", StringType())])


def flow(**changes: object) -> Flow:
    input_: dict[str, object] = {
        "name": "judged",
        "inputs": Input(KafkaSource("t"), schema=ROW),
        "transform": lambda rows: rows,
        "sink": KafkaSink("out"),
        "output_mode": "update",
        "trigger": RealTime(),
    }
    return Flow(**(input_ | changes))  # type: ignore[arg-type]


def codes(created: Flow, *kinds: OperatorKind) -> list[str]:
    plan = {created.name: QueryPlan(tuple(Operator(kind) for kind in kinds))} if kinds else None
    return [finding.code for finding in check([created], plans=plan) if finding.severity is not Severity.INFO]


@pytest.mark.parametrize(
    ("created", "actual"),
    [
        (flow(), []),
        (flow(trigger=Continuous()), []),
        (flow(trigger=Continuous(), output_mode="append"), []),
        (flow(output_mode="append"), ["HRC-114"]),
        (flow(trigger=Continuous(), output_mode="complete"), ["HRC-114"]),
        (flow(trigger=RealTime("4 seconds")), ["HRC-115"]),
        (flow(trigger=RealTime("5 seconds")), []),
        (flow(sink=KafkaExactlyOnceSink("out")), ["HRC-108"]),
        (flow(sink=FanOut(KafkaSink("out"), KafkaSink("other"))), ["HRC-108"]),
        (flow(sink=Memory(), trigger=Continuous()), ["HRC-108"]),
        (flow(inputs=Input(KafkaSource("t", data_loss_reason="a test"), schema=ROW)), ["HRC-108"]),
        (flow(inputs=Input(KafkaSource("t", max_offsets_per_trigger=None), schema=ROW)), []),
    ],
)
def test_a_trigger_without_batches_takes_kafka_to_kafka_in_its_own_mode(created: Flow, actual: list[str]) -> None:
    assert codes(created) == actual


def test_a_source_that_knows_batches_only_is_named() -> None:
    created = flow(inputs={"rows": Input(FileSource("in", "json", ROW))})
    (actual,) = [finding for finding in check([created]) if finding.code == "HRC-108"]
    assert "input 'rows'" in actual.place


@pytest.mark.parametrize(
    ("kind", "continuous", "real_time"),
    [
        (OperatorKind.PROJECTION, [], []),
        (OperatorKind.EXPLODE, ["HRC-113"], []),
        (OperatorKind.BROADCAST_JOIN, ["HRC-113"], []),
        (OperatorKind.STATIC_JOIN, ["HRC-113"], ["HRC-113"]),
        (OperatorKind.CURRENT_TIME, ["HRC-113"], ["HRC-219"]),
        (OperatorKind.PYTHON, ["HRC-218"], ["HRC-113"]),
        (OperatorKind.DEDUP, ["HRC-113"], ["HRC-113"]),
        (OperatorKind.CUSTOM_STATE, ["HRC-113"], ["HRC-113"]),
        (OperatorKind.OTHER, ["HRC-113"], ["HRC-113"]),
    ],
)
def test_operators_are_checked_against_the_trigger(
    kind: OperatorKind, continuous: list[str], real_time: list[str]
) -> None:
    assert codes(flow(trigger=Continuous()), kind) == continuous
    assert codes(flow(), kind) == real_time
    assert codes(flow(trigger=Every("1 second")), kind) == []


def test_complete_mode_needs_an_aggregation_and_causes_no_other_finding() -> None:
    created = flow(sink=DeltaOverwrite("t"), output_mode="complete", trigger=AvailableNow())
    assert codes(created, OperatorKind.PROJECTION, OperatorKind.DEDUP) == ["HRC-111", "HRC-111"]
    assert codes(created, OperatorKind.PROJECTION, OperatorKind.DEDUP, OperatorKind.AGGREGATE_UNBOUNDED) == []


def test_sparks_refusal_is_reported_only_if_the_matrix_has_none() -> None:
    created = flow(trigger=AvailableNow())
    unknown = QueryPlan((Operator(OperatorKind.PROJECTION),), unsupported_operation_message="Something new.")
    (actual,) = [
        finding for finding in check([created], plans={created.name: unknown}) if finding.severity is Severity.ERROR
    ]
    assert (actual.code, "Something new." in actual.reason) == ("HRC-117", True)
    recorded = QueryPlan((Operator(OperatorKind.SORT_ROWS),), unsupported_operation_message="Sorting is not supported.")
    assert [finding.code for finding in check([created], plans={created.name: recorded})] == ["HRC-111", "HRC-301"]


def test_a_plan_that_is_not_known_leaves_the_guess_by_the_declaration() -> None:
    created = flow(trigger=AvailableNow())
    assert codes(created) == ["HRC-201"]
    actual = check([created], plans={created.name: UnknownPlan("no")})
    assert [finding.code for finding in actual] == ["HRC-201", "HRC-301", "HRC-209"]
    assert codes(created, OperatorKind.PROJECTION) == []


@pytest.mark.parametrize(("needed", "free", "actual"), [(1, 1, []), (2, 1, ["HRC-116"]), (4, 0, ["HRC-116"])])
def test_slots_are_counted_for_continuous_triggers(needed: int, free: int, actual: list[str]) -> None:
    assert [finding.code for finding in compatibility.check_task_slots(flow(), needed, free)] == actual
    assert list(compatibility.check_task_slots(flow(trigger=Every("1 second")), needed, free)) == []


def test_once_is_available_now_with_a_warning_and_a_finding() -> None:
    with pytest.warns(DeprecationWarning, match="AvailableNow"):
        once = Once()
    assert isinstance(once, AvailableNow)
    assert codes(flow(trigger=once, output_mode="append")) == ["HRC-207"]


def test_available_now_warns_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        AvailableNow()


def test_until_done_ends_every_flow_except_continuous_ones() -> None:
    assert as_available_now(flow()).trigger == AvailableNow()
    assert as_available_now(flow(trigger=Every("1 day"))).trigger == AvailableNow()
    assert as_available_now(flow(trigger=Continuous("2 seconds"))).trigger == Continuous("2 seconds", until_done=True)


def test_a_sink_that_refuses_a_mode_has_a_reason_and_an_alternative() -> None:
    (actual,) = compatibility.check_sink_mode(flow(sink=FanOut(Memory(), DeltaAppend("t")), trigger=AvailableNow()))
    assert (actual.code, actual.place) == ("HRC-104", "flow 'judged', sink delta:t")
    assert "added to the earlier" in actual.reason
    assert "DeltaUpsert" in actual.remedy


def test_every_refusal_of_a_sink_has_a_reason_and_a_way_out() -> None:
    refusing = {sink.__name__: frozenset(OutputMode) - sink.output_modes for sink in SINKS}  # type: ignore[attr-defined]
    messages = {name: frozenset(others) for name, (_, others) in matrix.SINKS.items()}
    assert {name: modes for name, modes in refusing.items() if modes} == messages


def test_every_sink_that_rows_end_in_is_in_the_matrix() -> None:
    actual = pkgutil.walk_packages(sinks.__path__, f"{sinks.__name__}.")
    modules = [*(importlib.import_module(module.name) for module in actual), cdc_sink]
    classes = [kind for module in modules for kind in vars(module).values() if isinstance(kind, type)]
    # Those that wrap others have the modes as a property. A `KafkaTopicSink` is what the two for topics have in common.
    ends = {kind for kind in classes if isinstance(getattr(kind, "output_modes", None), frozenset)}
    assert {kind for kind in ends if not kind.__name__.startswith("_")} - {KafkaTopicSink} == set(SINKS)


def test_every_cell_that_is_not_allowed_has_a_reason_and_a_remedy() -> None:
    cells = [cell for row in [*matrix.MODES.values(), *matrix.TRIGGERS.values()] for cell in row]
    bare = [
        cell
        for cell in cells
        if (cell.verdict is not matrix.Compatibility.ALLOWED) != bool(cell.reason and cell.remedy)
    ]
    assert bare == []


@pytest.mark.parametrize("page", ["output-modes.md", "triggers.md"])
def test_the_tables_on_a_page_are_those_of_the_matrix(page: str) -> None:
    # Draw them again: python tools/matrix_page.py docs/levers/output-modes.md docs/levers/triggers.md
    text = (LEVERS / page).read_text()
    assert "<!-- matrix: " in text
    assert drawn(text) == text
