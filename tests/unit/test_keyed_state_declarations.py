"""Custom state in plain Python: what a class may declare, and what comes of rows and of time that passes."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from hypothesis import given, settings, strategies as st
from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql.types import (
    ArrayType,
    DateType,
    DecimalType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headrace import FlowError
from headrace.testing import KeyedStateTester
from headrace.transforms.keyed.in_memory import process_key
from headrace.transforms.keyed.keyed_state import EventTime, KeyedState, ProcessingTime
from headrace.transforms.keyed.state import ListOf, MapOf, Timers, ValueState
from headrace.transforms.keyed.state_types import Precision, struct_kind
from keyed_cases import GAP, NOON, Brief, Counter, Place, Total, Visits, Wide, click

if TYPE_CHECKING:
    from keyed_cases import VisitEnd


def at(minute: float) -> datetime:
    return NOON + timedelta(minutes=minute)


def as_rows(observed: list[VisitEnd]) -> list[tuple[str, int, str, str]]:
    return [(item.user, item.minute, "".join(item.pages), item.why) for item in observed]


# ---- rows and times ----


def test_a_count_continues_from_batch_to_batch_per_key() -> None:
    drive = KeyedStateTester(Counter(), "user")
    assert drive.arrive(click("ann", "a", 0), click("bob", "a", 0), click("ann", "b", 0)) == [
        Total("ann", 2),
        Total("bob", 1),
    ]
    assert drive.arrive(click("ann", "c", 0)) == [Total("ann", 3)]


def test_a_visit_ends_when_the_watermark_has_passed_its_silence() -> None:
    drive = KeyedStateTester(Visits(), "user")
    assert drive.arrive(click("ann", "a", 0), click("ann", "b", 20)) == []
    assert drive.timers("ann") == [at(50)]
    assert drive.advance_to(at(49.99)) == []
    assert as_rows(drive.advance_to(at(50))) == [("ann", 0, "ab", "silence")]
    assert drive.state("ann") is None
    assert drive.timers("ann") == []


def test_rows_of_a_batch_come_in_the_order_of_their_time() -> None:
    drive = KeyedStateTester(Visits(), "user")
    drive.arrive(click("ann", "b", 20), click("ann", "a", 0))
    assert as_rows(drive.advance_to(at(60))) == [("ann", 0, "ab", "silence")]


def test_a_row_at_or_before_the_watermark_is_late_and_never_handled() -> None:
    drive = KeyedStateTester(Visits(), "user")
    drive.advance_to(at(10))
    drive.arrive(click("ann", "late", 10), click("ann", "in time", 10.001))
    visit = drive.state("ann")
    assert visit is not None
    assert visit.pages == ["in time"]
    assert [row.page for row in drive.late] == ["late"]


def test_time_does_not_go_back() -> None:
    drive = KeyedStateTester(Visits(), "user")
    drive.advance_to(at(10))
    with pytest.raises(FlowError, match="goes back"):
        drive.advance_to(at(9))


def test_state_with_a_ttl_is_removed_when_it_expires() -> None:
    drive = KeyedStateTester(Brief(), "user")
    drive.advance_to(NOON)
    assert drive.arrive(click("ann", "a", 0)) == [Total("Brief ann", 1)]
    assert drive.arrive(click("ann", "b", 0)) == [Total("Brief ann", 2)]
    drive.advance_to(NOON + timedelta(milliseconds=1))
    assert drive.arrive(click("ann", "c", 0)) == [Total("Brief ann", 1)]


def test_lists_and_maps_are_read_and_written_in_addition_to_the_value() -> None:
    drive = KeyedStateTester(Wide(), "user", "n")
    rows = [{**click("ann", page, minute), "n": 1} for minute, page in enumerate("aba")]
    first, second, third = drive.arrive(*rows)
    assert first.before is None
    assert second.before is not None
    assert second.before.place == Place("Lima", at(0))
    assert (third.pages, third.last) == (["a", "b"], ["a:Lima", "b:Lima"])


@dataclass
class Nothing:
    calls: int


@dataclass
class Rang:
    minute: float


class Alarm(KeyedState[Nothing, Rang]):
    """Rings every ten minutes after the first row."""

    clock = EventTime("ts")

    def handle_rows(self, key: Row, rows: list[Row], state: ValueState[Nothing], timers: Timers) -> Iterator[Rang]:
        if state.value is None:
            state.value = Nothing(0)
            timers.register(rows[0].ts + timedelta(minutes=10))
        yield from ()

    def handle_timer(self, key: Row, at: datetime, state: ValueState[Nothing], timers: Timers) -> Iterator[Rang]:
        yield Rang((at - NOON) / timedelta(minutes=1))
        timers.register(at + timedelta(minutes=10))


def test_a_timer_that_is_set_by_a_timer_and_has_passed_comes_with_the_next_batch() -> None:
    drive = KeyedStateTester(Alarm(), "user")
    drive.arrive(click("ann", "a", 0))
    assert drive.advance_to(at(35)) == [Rang(10)]
    assert drive.arrive() == [Rang(20)]
    assert drive.advance_to(at(36)) == [Rang(30)]
    assert drive.advance_to(at(37)) == []


def test_in_a_batch_time_passes_between_the_rows_and_each_timer_that_is_left_comes_once() -> None:
    rows = [Row(**click("ann", "a", minute)) for minute in (0, 25)]
    assert list(process_key(Alarm(), Row(user="ann"), rows, 0)) == [Rang(10), Rang(20), Rang(30)]


def test_timers_are_rounded_up_to_milliseconds_and_need_a_zone() -> None:
    drive = KeyedStateTester(Visits(), "user")
    drive.arrive({"user": "ann", "page": "a", "ts": NOON + timedelta(microseconds=1)})
    assert drive.timers("ann") == [NOON + GAP + timedelta(milliseconds=1)]
    with pytest.raises(FlowError, match="zone") as caught:
        KeyedStateTester(Alarm(), "user").arrive({"user": "ann", "ts": datetime(2026, 1, 1)})  # noqa: DTZ001 - what is refused
    assert caught.value.code == "HR-237"


class Deaf(KeyedState[Nothing, Rang]):
    """Sets a timer, and has no method to handle it."""

    clock = EventTime("ts")

    def handle_rows(self, key: Row, rows: list[Row], state: ValueState[Nothing], timers: Timers) -> Iterator[Rang]:
        timers.register(rows[0].ts)
        yield from ()


class Idle(KeyedState[Nothing, Rang]):
    """Has nothing to do."""

    ttl = None


def test_a_class_without_a_required_method_is_refused_with_its_name() -> None:
    drive = KeyedStateTester(Deaf(), "user")
    drive.arrive(click("ann", "a", 0))
    with pytest.raises(FlowError, match="Deaf has no `handle_timer`, and a timer expires") as timer:
        drive.advance_to(at(1))
    with pytest.raises(FlowError, match="Idle has no `handle_rows`, and rows") as rows:
        KeyedStateTester(Idle(), "user").arrive(click("ann", "a", 0))
    assert [timer.value.code, rows.value.code] == ["HR-235", "HR-235"]


def visits_by_hand(minutes: list[int]) -> list[tuple[int, int]]:
    """Return when each visit began and how many clicks it had."""
    actual: list[list[int]] = []
    for minute in sorted(minutes):
        if actual and minute - actual[-1][-1] <= GAP / timedelta(minutes=1):
            actual[-1].append(minute)
        else:
            actual.append([minute])
    return [(visit[0], len(visit)) for visit in actual]


@settings(deadline=None, max_examples=100)
@given(
    minutes=st.lists(st.integers(0, 300), min_size=1, max_size=20),
    cuts=st.lists(st.integers(0, 20), max_size=5),
    watermarks=st.booleans(),
)
def test_any_split_into_batches_results_in_the_same_visits(
    minutes: list[int], cuts: list[int], watermarks: bool
) -> None:
    ordered = sorted(minutes)
    drive, observed, begin = KeyedStateTester(Visits(), "user"), [], 0
    for end in [*sorted(cuts), len(ordered)]:
        rows = ordered[begin:end]
        observed += drive.arrive(*(click("ann", "a", minute) for minute in reversed(rows)))
        if watermarks and rows:
            # As late as it can be without making the next row late.
            observed += drive.advance_to(at(rows[-1] - 0.001))
        begin = max(begin, end)
    observed += drive.advance_to(at(10_000))
    expected = visits_by_hand(minutes)
    assert [(item.minute, len(item.pages)) for item in observed] == expected
    over_batch = process_key(Visits(), Row(user="ann"), [Row(**click("ann", "a", minute)) for minute in ordered], 0)
    assert [(item.minute, len(item.pages)) for item in over_batch] == expected


def test_the_example_of_the_documentation_returns_the_documented_visits() -> None:
    page = (Path(__file__).parents[2] / "docs" / "levers" / "windows.md").read_text()
    (text,) = [fence for fence in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "class Visits" in fence]
    names: dict[str, Any] = {"__name__": __name__}
    exec(text, names)  # noqa: S102 - what is documented has to run
    drive = KeyedStateTester(names["Visits"](), "user_id")
    rows = [{"user_id": "ann", "page": page, "ts": at(minute)} for page, minute in (("a", 0), ("b", 40), ("bye", 50))]
    assert [(visit.began, visit.pages) for visit in drive.arrive(*rows)] == [(at(0), ["a"]), (at(40), ["b", "bye"])]
    assert drive.arrive({"user_id": "ann", "page": "c", "ts": at(60)}) == []
    assert [visit.pages for visit in drive.advance_to(at(90))] == [["c"]]


# ---- declarations ----


@dataclass
class Inner:
    since: datetime | None
    day: date


@dataclass
class Sample:
    number: int
    price: Annotated[Decimal, Precision(10, 2)]
    inners: list[Inner]
    tags: dict[str, str | None]


def test_annotations_become_the_types_of_spark() -> None:
    inner = StructType([StructField("since", TimestampType()), StructField("day", DateType(), nullable=False)])
    assert struct_kind(Sample, "it").spark == StructType(
        [
            StructField("number", LongType(), nullable=False),
            StructField("price", DecimalType(10, 2), nullable=False),
            StructField("inners", ArrayType(inner, containsNull=False), nullable=False),
            StructField("tags", MapType(StringType(), StringType(), valueContainsNull=True), nullable=False),
        ]
    )


@dataclass
class NoSize:
    price: Decimal


@dataclass
class OfAny:
    what: object


@dataclass
class OfTwo:
    what: int | str


@dataclass
class Unknown:
    what: Nowhere  # noqa: F821 - what is refused


@dataclass
class Empty:
    pass


@pytest.mark.parametrize(
    ("given", "phrase"),
    [
        (NoSize, "Precision"),
        (OfAny, "object"),
        (OfTwo, "int | str"),
        (Unknown, "Nowhere"),
        (Empty, "no fields"),
        (int, "dataclass"),
    ],
)
def test_a_state_type_that_cannot_be_stored_is_refused_when_it_is_declared(given: type, phrase: str) -> None:
    with pytest.raises(FlowError) as caught:

        class Refused(KeyedState[given, Total]):  # type: ignore[valid-type]
            def handle_rows(self, key, rows, state, timers): ...

    assert caught.value.code == "HR-232"
    assert phrase in str(caught.value)


def test_a_ttl_needs_processing_time_and_a_timer_a_clock() -> None:
    with pytest.raises(FlowError, match=r"Aged.*ttl"):

        class Aged(KeyedState[Sample, Total]):
            clock = EventTime("ts")
            ttl = "1 day"

            def handle_rows(self, key, rows, state, timers): ...

    with pytest.raises(FlowError, match=r"observed.*ttl"):

        class AgedMap(KeyedState[Sample, Total]):
            observed = MapOf(str, int, ttl="1 day")

            def handle_rows(self, key, rows, state, timers): ...

    with pytest.raises(FlowError, match="no clock"):

        class Clockless(KeyedState[Sample, Total]):
            def handle_rows(self, key, rows, state, timers): ...
            def handle_timer(self, key, at, state, timers): ...

    with pytest.raises(FlowError, match="KeyedState"):

        class Untyped(KeyedState):
            def handle_rows(self, key, rows, state, timers): ...

    with pytest.raises(FlowError, match="'value'"):

        class Twice(KeyedState[Sample, Total]):
            value = ListOf(int)

            def handle_rows(self, key, rows, state, timers): ...

    with pytest.raises(FlowError, match="element"):

        class Nested(KeyedState[Sample, Total]):
            lists = ListOf(list[int])

            def handle_rows(self, key, rows, state, timers): ...


def test_timers_without_a_clock_are_refused_where_they_are_used() -> None:
    class Hasty(KeyedState[Nothing, Total]):
        def handle_rows(self, key, rows, state, timers):
            timers.register(NOON)
            return ()

    with pytest.raises(FlowError, match="clock") as caught:
        KeyedStateTester(Hasty(), "user").arrive(click("ann", "a", 0))
    assert caught.value.code == "HR-236"


@pytest.mark.parametrize(
    ("value", "phrase"),
    [
        (Sample("7", Decimal(1), [], {}), "it.number"),  # type: ignore[arg-type]
        (Sample(True, Decimal(1), [], {}), "int is declared"),
        (Sample(7, Decimal("1.005"), [], {}), "decimal"),
        (Sample(7, Decimal("123456789.00"), [], {}), "decimal"),
        (Sample(7, 1.5, [], {}), "Decimal is declared"),  # type: ignore[arg-type]
        (Sample(7, Decimal(1), [None], {}), "None is not declared"),  # type: ignore[list-item]
        (Sample(7, Decimal(1), [Inner(datetime(2026, 1, 1), date(2026, 1, 1))], {}), "zone"),  # noqa: DTZ001
        (Sample(7, Decimal(1), [Inner(None, NOON)], {}), "date is declared"),
        (Sample(None, Decimal(1), [], {}), "None is not declared"),  # type: ignore[arg-type]
        (Inner(None, date(2026, 1, 1)), "Sample is declared"),
    ],
)
def test_a_value_that_does_not_fit_its_type_is_refused_when_it_is_stored(value: object, phrase: str) -> None:
    with pytest.raises(FlowError) as caught:
        struct_kind(Sample, "it").write(value, "it", named=False)
    assert caught.value.code == "HR-233"
    assert phrase in str(caught.value)


def test_stored_values_are_read_unchanged_with_times_in_utc() -> None:
    there = timezone(timedelta(hours=2))
    given = Sample(7, Decimal("1.5"), [Inner(NOON.astimezone(there), date(2026, 1, 1))], {"a": None})
    kind = struct_kind(Sample, "it")
    back = kind.read(kind.write(given, "it", named=False), "it")
    assert back == given
    assert back.inners[0].since.tzinfo is UTC


@dataclass
class Grown:
    number: int
    tags: list[str] = field(default_factory=list)
    note: str | None = None
    must: str = "x"


def test_a_class_that_is_sent_to_a_worker_by_value_is_the_same_there() -> None:
    import keyed_cases

    cloudpickle.register_pickle_by_value(keyed_cases)
    try:
        sent = cloudpickle.dumps([keyed_cases.LaterCounter(), keyed_cases.Long()])
    finally:
        cloudpickle.unregister_pickle_by_value(keyed_cases)
    # A worker does not have the module, and puts the classes together again, piece by piece.
    there = """
import pickle, sys
counter, forgetful = pickle.load(sys.stdin.buffer)
state = type(counter).shape.state
print(state.read((7, None, None), "it"), type(forgetful).shape.ttl_ms)
"""
    run = subprocess.run([sys.executable, "-c", there], input=sent, capture_output=True, check=False)
    assert run.stdout.decode() == "LaterCount(clicks=7, pages=[], newest=None) 86400000\n", run.stderr.decode()


@dataclass
class Demanding:
    number: int
    must: str


def test_a_field_that_was_not_stored_yet_gets_its_default_or_is_refused() -> None:
    assert struct_kind(Grown, "it").read((7, None, None, None), "it") == Grown(7)
    with pytest.raises(FlowError, match=r"Demanding\.must") as caught:
        struct_kind(Demanding, "The state").read((7, None), "The state")
    assert caught.value.code == "HR-234"


def test_a_subclass_inherits_the_declared_state() -> None:
    class Doubled(Counter):
        def handle_rows(self, key, rows, state, timers):
            yield from super().handle_rows(key, rows * 2, state, timers)

    assert KeyedStateTester(Doubled(), "user").arrive(click("ann", "a", 0)) == [Total("ann", 2)]
    assert ProcessingTime() == ProcessingTime()
