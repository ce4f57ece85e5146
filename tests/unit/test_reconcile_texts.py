"""The text that a mirror has to hold, from the text of its source, written by hand."""

from __future__ import annotations

from datetime import date, timedelta

import pytest
from hypothesis import given, strategies as st

from headrace.cdc.capture.source_table import Family, SourceColumn
from headrace.cdc.reconcile.texts import source_text


def written(family: Family, kind: str, text: str) -> object:
    return source_text(SourceColumn("c", kind, nullable=True), family)(text)


@pytest.mark.parametrize(
    ("kind", "text", "shown"),
    [
        ("tinyint(1)", "5", "5"),
        ("bigint(20) unsigned", "18446744073709551615", "18446744073709551615"),
        ("date", "2024-02-29", "19782"),
        ("date", "0000-00-00", None),
        ("datetime(3)", "1969-12-31 23:59:59.999", "-1000"),
        ("datetime", "2024-00-00 00:00:00", None),
        ("timestamp(6)", "1970-01-01 00:00:00.000001", "1"),
        ("time", "-838:59:59", "-838:59:59.000000"),
        ("time(6)", "12:34:56.123456", "12:34:56.123456"),
        ("bit(1)", "1", "true"),
        ("bit(5)", "101", "00101"),
        ("enum('a','b')", "b", "b"),
    ],
)
def test_values_of_mysql_and_mariadb(kind: str, text: str, shown: str | None) -> None:
    assert written("mysql", kind, text) == shown


@given(st.dates())
def test_every_day_of_the_calendar_is_counted_as_python_counts_it(day: date) -> None:
    assert written("postgres", "date", f"{day:%Y-%m-%d}".zfill(10)) == str((day - date(1970, 1, 1)) // timedelta(1))
