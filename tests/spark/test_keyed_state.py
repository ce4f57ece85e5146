"""Custom state on real Spark: the same tables, worked out by hand, for streams, crashes and batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import Row

from headrace import Flow, FlowError, HeadraceError, Input, KafkaSource, Memory, RocksDB, Watermark
from headrace.testing import Arrive, Crash, EndOfInput, Point, rehearse
from headrace.transforms.keyed.on_spark import per_key
from keyed_cases import (
    CLICK,
    WIDE_CLICK,
    Brief,
    Counter,
    Everything,
    LaterCounter,
    Long,
    OtherCounter,
    Visits,
    Wide,
    click,
    everything,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from headrace.transforms.keyed.keyed_state import KeyedState

pytestmark = pytest.mark.spark


def flow(processor: KeyedState, *key: str, schema: StructType = CLICK, mode: str = "append") -> Flow:
    clicks = Input(KafkaSource("clicks"), schema=schema, watermark=Watermark("ts", "10 minutes"))
    return Flow(
        "clicks",
        clicks,
        lambda rows: per_key(rows, processor, *key),
        Memory(),
        state=RocksDB(shuffle_partitions=1),
        output_mode=mode,
    )


def batch(spark: SparkSession, schema: StructType, rows: Sequence[dict]) -> DataFrame:
    return spark.createDataFrame([tuple(row[field.name] for field in schema) for row in rows], schema)


# Visits of half an hour. The watermark is 10 minutes behind.
FIRST = [click("ann", "a", 0), click("bob", "x", 5), click("ann", "b", 20)]
SECOND = [click("bob", "bye", 8), click("ann", "c", 50), click("ann", "e", 100)]
THIRD = [click("cid", "p", 115), click("ann", "d", 99)]
VISITS = [
    # 12:00, 12:20 and 12:50 are not more than half an hour apart; 13:40 is, and 13:39 came after it.
    ("ann", 0, ["a", "b", "c"], "silence"),
    ("bob", 5, ["x", "bye"], "bye"),
    ("ann", 100, ["e", "d"], "silence"),
    ("cid", 115, ["p"], "silence"),
]


def test_visits_end_with_a_page_or_with_silence_though_the_driver_dies(spark: SparkSession, tmp_path: Path) -> None:
    script = [Arrive(*FIRST), Arrive(*SECOND), Crash(Point.AFTER_SINK), Arrive(*THIRD), EndOfInput()]
    actual = rehearse(flow(Visits(), "user"), script, spark=spark, folder=tmp_path)
    assert sorted(tuple(row) for row in actual.rows) == sorted(VISITS)
    assert actual.restarts == 1


def test_a_batch_returns_the_same_visits_as_the_stream(spark: SparkSession) -> None:
    clicks = batch(spark, CLICK, [*THIRD, *SECOND, *FIRST])
    in_order = [*VISITS[:2], ("ann", 99, ["d", "e"], "silence"), VISITS[3]]
    assert sorted(tuple(row) for row in per_key(clicks, Visits(), "user").collect()) == sorted(in_order)


def test_every_type_of_value_is_read_as_it_was_stored(spark: SparkSession, tmp_path: Path) -> None:
    declared = [{**click("ann", page, minute), "n": 7} for page, minute in (("a", 0), ("b", 1.5))]
    stored = everything(Row(**declared[0]))
    reported = [("ann", 7, None, [], []), ("ann", 7, stored, ["a"], ["a:Lima"])]

    def plain(row: Row) -> tuple[object, ...]:
        return row.k, row.n, row.before and row.before.asDict(recursive=True), row.pages, row.last

    wide = flow(Wide(), "user", "n", schema=WIDE_CLICK, mode="update")
    actual = rehearse(wide, [Arrive(declared[0]), Arrive(declared[1])], spark=spark, folder=tmp_path)
    over_batch = per_key(batch(spark, WIDE_CLICK, declared).orderBy("ts"), Wide(), "user", "n").collect()
    expected = [(k, n, before and _as_collected(before), pages, last) for k, n, before, pages, last in reported]
    assert [plain(row) for row in actual.rows] == expected
    assert sorted([plain(row) for row in over_batch], key=lambda row: len(row[3])) == expected


def _as_collected(stored: Everything) -> dict[str, object]:
    """Return the fields as `collect` gives them: bytes in a bytearray, times without a zone, in that of the machine."""
    fields = asdict(stored)
    for place in [fields["place"], *fields["places"]]:
        place["since"] = place["since"] and place["since"].astimezone().replace(tzinfo=None)
    return fields | {"raw": bytearray(stored.raw)}


def test_state_with_a_ttl_expires_by_the_clock_of_the_driver(spark: SparkSession, tmp_path: Path) -> None:
    both = replace(
        flow(Brief(), "user"),
        transform=lambda rows: per_key(rows, Brief(), "user").unionByName(per_key(rows, Long(), "user")),
    )
    script = [Arrive(click("ann", "a", 0)), Arrive(click("ann", "b", 1))]
    actual = rehearse(both, script, spark=spark, folder=tmp_path)
    assert sorted(tuple(row) for row in actual.rows) == [
        ("Brief ann", 1),
        ("Brief ann", 1),
        ("Long ann", 1),
        ("Long ann", 2),
    ]


def in_turn(folder: Path, first: KeyedState, then: KeyedState) -> Flow:
    """A flow whose code is another one once a batch is committed: a start that is tried again changes nothing."""

    def transform(rows: DataFrame) -> DataFrame:
        committed = any((folder / "checkpoints").rglob("commits/0"))
        return per_key(rows, then if committed else first, "user")

    return replace(flow(first, "user"), transform=transform)


def test_state_gains_fields_under_the_same_checkpoint_and_lacks_none_of_its_own(
    spark: SparkSession, tmp_path: Path
) -> None:
    changing = in_turn(tmp_path, Counter(), LaterCounter())
    script = [
        Arrive(click("ann", "a", 0), click("ann", "b", 0)),
        Crash(Point.AFTER_COMMIT),
        Arrive(click("ann", "c", 1), click("bob", "x", 1)),
    ]
    # The two classes return different columns.
    actual = rehearse(changing, script, spark=spark, folder=tmp_path)
    before, after = (batch for batch in actual.batches if batch)
    assert [tuple(row) for row in before] == [("ann", 2)]
    assert sorted(tuple(row) for row in after) == [("ann", 2, [], None), ("bob", 0, [], None)]


def test_state_whose_field_becomes_another_type_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    changing = in_turn(tmp_path, Counter(), OtherCounter())
    script = [Arrive(click("ann", "a", 0)), Crash(Point.AFTER_COMMIT), Arrive(click("ann", "b", 1))]
    with pytest.raises(HeadraceError) as caught:
        rehearse(changing, script, spark=spark, folder=tmp_path)
    assert caught.value.code == "HR-303"


def test_event_time_without_a_watermark_is_refused_before_the_query_starts(spark: SparkSession, tmp_path: Path) -> None:
    bare = replace(flow(Visits(), "user"), inputs=Input(KafkaSource("clicks"), schema=CLICK))
    with pytest.raises(FlowError) as caught:
        rehearse(bare, [Arrive(click("ann", "a", 0))], spark=spark, folder=tmp_path)
    assert caught.value.code == "HR-231"
