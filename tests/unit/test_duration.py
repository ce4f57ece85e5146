"""Lengths of time as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from headrace.errors import FlowError
from headrace.flow.duration import Duration


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("10 minutes", 600_000),
        ("90s", 90_000),
        ("1 hour 30 minutes", 5_400_000),
        ("1h30m", 5_400_000),
        ("250 ms", 250),
        ("0 seconds", 0),
        ("1.5 seconds", 1_500),
        ("2 DAYS", 172_800_000),
        ("  1   minute  ", 60_000),
        ("0.1s 0.2s", 300),
    ],
)
def test_a_number_and_a_unit_are_a_length_of_time(text: str, ms: int) -> None:
    assert Duration.parse(text).ms == ms


@pytest.mark.parametrize("text", ["", "   ", "10", "minutes", "10 parsecs", "-1 second", "1 month", "1 year", "1,5 s"])
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(FlowError, match="10 minutes") as refused:
        Duration.parse(text)
    assert refused.value.code == "HR-201"


def test_a_duration_is_passed_to_spark_in_milliseconds_and_to_python_in_seconds() -> None:
    length = Duration.parse("1 minute 30 seconds")
    assert length.as_interval() == "90000 milliseconds"
    assert length.seconds == 90.0


def test_lengths_compare_by_time_and_not_by_spelling() -> None:
    assert Duration.parse("60 seconds") == Duration.parse("1 minute")
    assert Duration.parse("59 seconds") < Duration.parse("1 minute")


@given(st.integers(0, 10**12))
def test_the_text_for_spark_parses_to_the_same_duration(ms: int) -> None:
    assert Duration.parse(Duration(ms).as_interval()) == Duration(ms)
