"""Rows of a sink beside the rows of a model, compared as multisets of plain values."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING

from headrace.clients.kafka import read_topic
from headrace.flow.target import Target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = Mapping[str, object]
_Key = tuple[tuple[str, object], ...]


@dataclass(frozen=True)
class Tolerance:
    """How far an approximate column may be from the exact one: a share of it, and at least so much."""

    column: str
    share: float
    least: int

    def allows(self, exact: int, found: int) -> bool:
        """Whether the approximate value is near enough."""
        return abs(exact - found) <= max(self.least, exact * self.share)


@dataclass
class Comparison:
    """What a comparison found. Equal means: no differences."""

    differences: list[str] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)
    repeated: dict[str, int] = field(default_factory=dict)
    """Rows that an at-least-once sink holds once too often. Only a crash makes these, and they are no difference."""

    def rows_of_sinks(self) -> dict[str, int]:
        """Return how many rows each sink holds: `kafka:TOPIC`, `delta:PATH`. Places without a colon are no sinks."""
        return {place: count for place, count in self.rows.items() if ":" in place}

    @property
    def equal(self) -> bool:
        """Whether the sinks hold what the model says."""
        return not self.differences

    def as_dict(self, most: int = 20) -> dict[str, object]:
        """The comparison as `--json` prints it, with at most so many differences."""
        return {
            "equal": self.equal,
            "differences": self.differences[:most],
            "differences_in_all": len(self.differences),
            "rows_compared": self.rows,
            "repeated": self.repeated,
        }

    def add(
        self,
        place: str,
        expected: Iterable[Row],
        actual: Iterable[Row],
        *,
        repeats_allowed: bool = False,
        tolerance: Tolerance | None = None,
    ) -> None:
        """Compare one sink. With a tolerance, its column is compared apart from the others."""
        loose = {tolerance.column} if tolerance else set()
        wanted, got = _gathered(expected, loose), _gathered(actual, loose)
        self.rows[place] = sum(len(rows) for rows in got.values())
        for key, rows in wanted.items():
            missing = len(rows) - len(got.get(key, ()))
            if missing > 0:
                self.differences.append(f"{place} lacks {missing} of {_shown(key)}")
        for key, rows in got.items():
            expected_rows = wanted.get(key, [])
            surplus = len(rows) - len(expected_rows)
            if not expected_rows or (surplus > 0 and not repeats_allowed):
                self.differences.append(f"{place} holds {surplus} too many of {_shown(key)}")
            elif surplus > 0:
                self.repeated[place] = self.repeated.get(place, 0) + surplus
            if tolerance and expected_rows:
                self._add_loose(place, key, tolerance, expected_rows, rows)

    def _add_loose(self, place: str, key: _Key, tolerance: Tolerance, exact: list[Row], rows: list[Row]) -> None:
        right = sorted(int(str(row[tolerance.column])) for row in exact)
        for row in rows:
            found = int(str(row[tolerance.column]))
            if not any(tolerance.allows(each, found) for each in right):
                about = " or ".join(map(str, right))
                self.differences.append(
                    f"{place} says {tolerance.column} {found} and not about {about} in {_shown(key)}"
                )


def topic_rows(target: Target, topic: str) -> Iterator[Row]:
    """Yield the JSON objects of a topic, numbers as decimals."""
    for message in read_topic(target, topic):
        value = message.value()
        assert value is not None  # noqa: S101 - the sink writes an object into every record
        yield json.loads(value, parse_float=Decimal)


def table_rows(spark: SparkSession, format_: str, location: str) -> list[Row]:
    """Return the rows of a table, or none when it was never written."""
    from pyspark.errors import AnalysisException  # noqa: PLC0415 - only callers with a session come here

    try:
        return [row.asDict() for row in spark.read.format(format_).load(location).collect()]
    except AnalysisException as error:
        if error.getCondition() in ("PATH_NOT_FOUND", "DELTA_TABLE_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA"):
            return []
        raise


def _gathered(rows: Iterable[Row], loose: Collection[str]) -> dict[_Key, list[Row]]:
    gathered: dict[_Key, list[Row]] = defaultdict(list)
    for row in rows:
        gathered[tuple((name, _plain(row[name])) for name in sorted(row) if name not in loose)].append(row)
    return dict(gathered)


def _plain(value: object) -> object:
    """Return a value so that equal ones of Spark, JSON and Python are equal: numbers exact, times in milliseconds."""
    match value:
        case bool() | None:
            return value
        case int() | float() | Decimal():
            return Decimal(str(value)).normalize()
        case datetime():
            # PySpark hands times over without a zone, in that of the machine; `timestamp` reads them so.
            return Decimal(round(value.timestamp() * 1000))
        case str() if len(value) == 24 and value.endswith("Z"):
            return _plain(datetime.fromisoformat(value))
        case _:
            return value


def _shown(key: _Key) -> str:
    return ", ".join(f"{name}={value:f}" if isinstance(value, Decimal) else f"{name}={value}" for name, value in key)
