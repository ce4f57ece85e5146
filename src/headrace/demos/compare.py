"""Compare the rows of a sink with the rows of a model, as multisets of plain values."""

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal

from pyspark.sql import SparkSession

from headrace.clients.kafka import read_topic
from headrace.flow.target import Target

Row = Mapping[str, object]
_Key = tuple[tuple[str, object], ...]


@dataclass(frozen=True)
class Tolerance:
    """How far an approximate column may differ from the exact value: a share of it, or `least` if that is more."""

    column: str
    share: float
    least: int

    def allows(self, exact: int, actual: int) -> bool:
        """Whether the approximate value is close enough."""
        return abs(exact - actual) <= max(self.least, exact * self.share)


@dataclass
class Comparison:
    """The result of a comparison. Equal means no differences."""

    differences: list[str] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)
    repeated: dict[str, int] = field(default_factory=dict)
    """Duplicate rows of an at-least-once sink. Only a crash causes these, and they do not count as a difference."""

    def rows_of_sinks(self) -> dict[str, int]:
        """Return how many rows each sink has: `kafka:TOPIC`, `delta:PATH`. Names without a colon are not sinks."""
        return {place: count for place, count in self.rows.items() if ":" in place}

    @property
    def equal(self) -> bool:
        """Whether the sinks contain what the model expects."""
        return not self.differences

    def as_dict(self, most: int = 20) -> dict[str, object]:
        """The comparison as `--json` prints it, with at most `most` differences."""
        return {
            "equal": self.equal,
            "differences": self.differences[:most],
            "differences_in_all": len(self.differences),
            "rows_compared": self.rows,
            "repeated": self.repeated,
        }

    def add(
        self,
        sink: str,
        expected: Iterable[Row],
        actual: Iterable[Row],
        *,
        repeats_allowed: bool = False,
        tolerance: Tolerance | None = None,
    ) -> None:
        """Compare one sink. The column of `tolerance` is compared apart from the others."""
        approximate = {tolerance.column} if tolerance else set()
        expected_by_key, actual_by_key = _group_by_key(expected, approximate), _group_by_key(actual, approximate)
        self.rows[sink] = sum(len(rows) for rows in actual_by_key.values())
        for key, rows in expected_by_key.items():
            missing = len(rows) - len(actual_by_key.get(key, ()))
            if missing > 0:
                self.differences.append(f"{sink} lacks {missing} of {_describe(key)}")
        for key, rows in actual_by_key.items():
            expected_rows = expected_by_key.get(key, [])
            surplus = len(rows) - len(expected_rows)
            if not expected_rows or (surplus > 0 and not repeats_allowed):
                self.differences.append(f"{sink} has {surplus} too many of {_describe(key)}")
            elif surplus > 0:
                self.repeated[sink] = self.repeated.get(sink, 0) + surplus
            if tolerance and expected_rows:
                self._compare_approximate(sink, key, tolerance, expected_rows, rows)

    def _compare_approximate(
        self, sink: str, key: _Key, tolerance: Tolerance, exact: list[Row], rows: list[Row]
    ) -> None:
        exact_values = sorted(int(str(row[tolerance.column])) for row in exact)
        for row in rows:
            estimate = int(str(row[tolerance.column]))
            if not any(tolerance.allows(exact_value, estimate) for exact_value in exact_values):
                expected = " or ".join(map(str, exact_values))
                self.differences.append(
                    f"{sink} has {tolerance.column} {estimate}, expected about {expected}, in {_describe(key)}"
                )


def topic_rows(target: Target, topic: str) -> Iterator[Row]:
    """Yield the JSON objects of a topic, numbers as decimals."""
    for message in read_topic(target, topic):
        value = message.value()
        assert value is not None  # noqa: S101 - the sink writes an object into every record
        yield json.loads(value, parse_float=Decimal)


def table_rows(spark: SparkSession, format_: str, location: str) -> list[Row]:
    """Return the rows of a table, or none if it was never written."""
    from pyspark.errors import AnalysisException  # noqa: PLC0415 - only callers with a session come here

    try:
        return [row.asDict() for row in spark.read.format(format_).load(location).collect()]
    except AnalysisException as error:
        if error.getCondition() in ("PATH_NOT_FOUND", "DELTA_TABLE_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA"):
            return []
        raise


def _group_by_key(rows: Iterable[Row], approximate: Collection[str]) -> dict[_Key, list[Row]]:
    by_key: dict[_Key, list[Row]] = defaultdict(list)
    for row in rows:
        by_key[tuple((name, _normalize(row[name])) for name in sorted(row) if name not in approximate)].append(row)
    return dict(by_key)


def _normalize(value: object) -> object:
    """Return a value in a form that compares equal across Spark, JSON and Python: exact numbers, milliseconds."""
    match value:
        case bool() | None:
            return value
        case int() | float() | Decimal():
            return Decimal(str(value)).normalize()
        case datetime():
            # PySpark returns times without a zone, in the machine's local time; `timestamp` reads them so.
            return Decimal(round(value.timestamp() * 1000))
        case str() if len(value) == 24 and value.endswith("Z"):
            return _normalize(datetime.fromisoformat(value))
        case _:
            return value


def _describe(key: _Key) -> str:
    return ", ".join(f"{name}={value:f}" if isinstance(value, Decimal) else f"{name}={value}" for name, value in key)
