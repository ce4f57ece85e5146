"""Every finding provoked, and clean flows left in peace."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import pytest
from pyspark.sql.types import StringType, StructField, StructType, TimestampNTZType, TimestampType

from headrace import (
    Console,
    Continuous,
    DeltaAppend,
    FanOut,
    Flow,
    FlowError,
    Input,
    KafkaSink,
    KafkaSource,
    RealTime,
    Severity,
    TopicPattern,
    Watermark,
    check,
)
from headrace.flow.checks.check import require_no_errors
from headrace.patterns.rides.flows import flows as ride_flows

SCHEMA = StructType(
    [
        StructField("id", StringType()),
        StructField("at", TimestampType(), nullable=False),
        StructField("maybe_at", TimestampType()),
        StructField("local_at", TimestampNTZType(), nullable=False),
    ]
)
AT = Watermark("at", "1 minute")


class Table(KafkaSource):
    """A source with a schema of its own."""

    @property
    def carries_payload(self) -> bool:
        return False


def same(rows: object) -> object:
    return rows


def join(left: object, right: object, how: str = "inner") -> object:
    return (left, right, how)


def flow(**changes: object) -> Flow:
    declared: dict[str, object] = {
        "name": "rides",
        "inputs": Input(KafkaSource("t"), schema=SCHEMA, watermark=AT),
        "transform": same,
        "sink": DeltaAppend("rides"),
    }
    return Flow(**(declared | changes))  # type: ignore[arg-type]


def on(column: str) -> Input:
    return Input(KafkaSource("t"), schema=SCHEMA, watermark=Watermark(column, "1 minute"))


BARE = Input(KafkaSource("t"), schema=SCHEMA)
MARKED = Input(KafkaSource("t"), schema=SCHEMA, watermark=AT)


def codes(flows: Iterable[Flow]) -> list[str]:
    return [finding.code for finding in check(flows)]


@pytest.mark.parametrize(
    ("created", "code", "severity"),
    [
        (flow(name="City Rides"), "HRC-101", Severity.ERROR),
        (flow(name="../rides"), "HRC-101", Severity.ERROR),
        (flow(name="1st"), "HRC-101", Severity.ERROR),
        (flow(name="rides\n"), "HRC-101", Severity.ERROR),
        (flow(name=""), "HRC-101", Severity.ERROR),
        (flow(name="r" * 64), "HRC-101", Severity.ERROR),
        (flow(inputs={}, transform=lambda: None), "HRC-103", Severity.ERROR),
        (flow(output_mode="update"), "HRC-104", Severity.ERROR),
        (flow(inputs=Input(KafkaSource("t"))), "HRC-105", Severity.ERROR),
        (flow(inputs=Input(Table("t"), schema=SCHEMA)), "HRC-125", Severity.ERROR),
        (flow(inputs=Input(KafkaSource("t"), schema=SCHEMA, metadata_columns=("value",))), "HRC-124", Severity.ERROR),
        (flow(inputs=Input(Table("t"), metadata_columns=("offset",))), "HRC-124", Severity.ERROR),
        (flow(inputs=on("absent")), "HRC-106", Severity.ERROR),
        (flow(inputs=on("id")), "HRC-106", Severity.ERROR),
        (flow(inputs=on("local_at")), "HRC-106", Severity.ERROR),
        (flow(transform=lambda: None), "HRC-107", Severity.ERROR),
        (flow(transform=join), "HRC-107", Severity.ERROR),
        (flow(inputs={"left": MARKED, "wrong": MARKED}, transform=join), "HRC-107", Severity.ERROR),
        (flow(trigger=Continuous()), "HRC-108", Severity.ERROR),
        (flow(trigger=RealTime()), "HRC-108", Severity.ERROR),
        (flow(sink=FanOut(Console(), KafkaSink("t"))), "HRC-109", Severity.ERROR),
        (
            flow(inputs=Input(KafkaSource(TopicPattern(".*")), schema=SCHEMA), sink=KafkaSink("o")),
            "HRC-109",
            Severity.ERROR,
        ),
        (flow(inputs=BARE, output_mode="update", sink=FanOut(Console())), "HRC-201", Severity.WARNING),
        (flow(inputs=on("maybe_at")), "HRC-202", Severity.WARNING),
        (flow(inputs={"left": MARKED, "right": BARE}, transform=join), "HRC-203", Severity.WARNING),
        (flow(sink=KafkaSink("out")), "HRC-301", Severity.INFO),
        (flow(sink=FanOut(DeltaAppend("rides"), Console())), "HRC-301", Severity.INFO),
    ],
)
def test_what_is_wrong_with_a_flow_is_found(created: Flow, code: str, severity: Severity) -> None:
    findings = [finding for finding in check([created]) if finding.code != "HRC-301" or code == "HRC-301"]
    assert [(finding.code, finding.severity) for finding in findings] == [(code, severity)]
    assert f"'{created.name}'" in findings[0].place
    assert findings[0].reason.endswith(".")
    assert findings[0].remedy


@pytest.mark.parametrize(
    "created",
    [
        flow(),
        flow(name="r" * 63),
        flow(inputs=BARE),
        flow(inputs=Input(Table("t"))),
        flow(inputs={"left": MARKED, "right": MARKED}, transform=join),
        flow(transform=partial(join, right=None)),
        flow(transform=lambda rows, *more, window="5 minutes", **settings: rows),
    ],
)
def test_a_clean_exactly_once_flow_has_no_findings(created: Flow) -> None:
    assert check([created]) == []


def test_two_flows_of_one_name_are_found_once_and_flows_of_other_names_are_not() -> None:
    assert codes([flow(), flow(), flow(), flow(name="other")]) == ["HRC-102"]


def test_errors_come_before_warnings_and_warnings_before_remarks() -> None:
    findings = check([flow(sink=KafkaSink("out"), inputs=on("maybe_at")), flow(name="Bad")])
    assert [finding.code for finding in findings] == ["HRC-101", "HRC-202", "HRC-301"]


def test_the_flows_of_ride_analytics_have_no_errors_and_list_the_sinks_that_may_repeat_rows() -> None:
    findings = check(ride_flows())
    assert {(finding.code, finding.place.split("'")[1]) for finding in findings} == {
        ("HRC-301", "city_rides"),
        ("HRC-301", "surge"),
    }


def test_a_start_with_an_error_is_refused_and_counts_the_others() -> None:
    with pytest.raises(FlowError) as refused:
        require_no_errors([flow(name="Bad"), flow(trigger=RealTime()), flow(name="fine", sink=Console())])
    assert refused.value.code == "HR-203"
    assert "'Bad'" in refused.value.what
    assert "HRC-101" in refused.value.why
    assert "Further errors: 1." in refused.value.why


def test_a_start_with_warnings_continues_and_returns_them() -> None:
    assert [finding.code for finding in require_no_errors([flow(inputs=on("maybe_at"))])] == ["HRC-202"]


def test_a_finding_is_plain_text_for_machines() -> None:
    (actual,) = check([flow(sink=Console())])
    assert actual.as_dict() == {
        "code": "HRC-301",
        "severity": "info",
        "place": "flow 'rides', sink console",
        "reason": actual.reason,
        "remedy": actual.remedy,
    }
