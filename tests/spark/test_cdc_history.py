"""Changes of a table, put into its history: in order, late, again, and by chance, compared with a plain model."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

import cdc_model as model
from cdc_changes import BEGAN, Change, Key, frame, into, row
from headrace.cdc.apply.history import History
from headrace.cdc.apply.mirror import Mirror
from headrace.errors import DataError, FlowError
from headrace.flow.run_cache import RunCache

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

Deal = Callable[[random.Random, list[Change], int], list[list[Change]]]


def when(position: str | None) -> dt.datetime | None:
    """The time of a commit is its place in the log, in seconds: `frame` has it so."""
    return None if position is None else BEGAN + dt.timedelta(seconds=int(position.lstrip("-")))


def stored_rows(spark: SparkSession, folder: Path) -> set[model.Version]:
    """Return the versions, having compared their times with their positions."""
    rows = spark.read.format("delta").load(str(folder / "orders")).collect()
    actual = set()
    for stored_row in rows:
        missing = stored_row.asDict().get("_headrace_deleted")
        values = None if missing else (("id", stored_row.id), ("pieces", stored_row.pieces), ("note", stored_row.note))
        version = model.Version(
            stored_row.id,
            values,
            stored_row._headrace_op,
            stored_row._headrace_position,
            stored_row._headrace_until,
            stored_row._headrace_ended,
        )
        times = (
            stored_row.valid_from.astimezone(dt.UTC),
            stored_row.valid_to and stored_row.valid_to.astimezone(dt.UTC),
        )
        assert times == (when(version.position), when(version.until)), version
        assert stored_row.is_current == version.is_current, version
        actual.add(version)
    assert len(actual) == len(rows), "a version is there twice"
    return actual


def mirrored(spark: SparkSession, folder: Path) -> dict[Key, model.Values]:
    rows = spark.read.format("delta").load(str(folder / "orders")).collect()
    actual = {row.id: {"id": row.id, "pieces": row.pieces, "note": row.note} for row in rows}
    assert len(actual) == len(rows), "a key is there twice"
    return actual


def apply(spark: SparkSession, folder: Path, *batches: list[Change], kind: History | None = None) -> None:
    for number, changes in enumerate(batches):
        (kind or History()).apply(frame(spark, changes, 100 * number), into(folder, number))


@pytest.mark.parametrize(
    ("deal", "count", "large", "deletes"),
    [
        pytest.param(model.batches, 3, True, "mark", id="in the log's order and again", marks=pytest.mark.certify),
        pytest.param(model.shuffled, 2, False, "close", id="in any order"),
    ],
)
def test_any_changes_split_in_any_way_result_in_the_rows_of_the_source_and_all_their_versions(
    spark: SparkSession, tmp_path: Path, deal: Deal, count: int, large: bool, deletes: Literal["close", "mark"]
):
    chance = random.Random(int(large))  # noqa: S311 - a seed, so that a failure comes again
    log = model.Source(chance, 40, large).live(160)
    observed, cache = list[Change](), RunCache()

    for number, batch in enumerate(deal(chance, log, count)):
        observed += batch
        changes = frame(spark, batch, 1000 * number)
        Mirror().apply(changes, into(tmp_path / "mirror", number, cache=cache))
        History(deletes).apply(changes, into(tmp_path / "history", number))

        assert mirrored(spark, tmp_path / "mirror") == model.mirror(observed)
        assert stored_rows(spark, tmp_path / "history") == model.history(observed, marks=deletes == "mark")


def test_a_batch_that_breaks_off_and_comes_again_and_a_clock_that_went_back_leave_no_gap(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    first = [row("r", 90, 1, 1), row("c", 2, 1, 2), row("c", 3, 2, 5)]
    second = [row("d", 5, 1), row("u", 6, 2, 6)]
    apply(spark, tmp_path, first)

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(History, "_merge_versions", dies)
        with pytest.raises(KeyboardInterrupt):
            History().apply(frame(spark, second, 10), into(tmp_path, 1))
    for _ in range(2):
        History().apply(frame(spark, second, 10), into(tmp_path, 1))

    rows = spark.read.format("delta").load(str(tmp_path / "orders"))
    seconds = rows.selectExpr(
        "id", "pieces", *(f"CAST(valid_{end} - TIMESTAMP'2026-01-01' AS INT)" for end in ("from", "to"))
    )
    # The snapshot was taken at 90, after the change at 2: as if it had been captured at once, so without a time.
    assert sorted(map(tuple, seconds.collect())) == [(1, 1, 2, 2), (1, 2, 2, 5), (2, 5, 3, 6), (2, 6, 6, None)]


def test_a_row_that_moves_takes_its_large_value_along_from_the_version_that_ended(spark: SparkSession, tmp_path: Path):
    # Row 1 was another one before. It goes to 2 and on to 3, and the batch ends between the two halves of a move.
    first = [row("c", 1, 1, 1, "other"), row("d", 2, 1), row("c", 3, 1, 1, "long"), row("u", 4, 1, 2, None, "note")]
    second = [row("d", 5, 1), row("c", 5, 2, 2, None, "note"), row("d", 6, 2)]
    third = [row("c", 6, 3, 4, None, "note"), row("u", 7, 3, 5, None, "note"), *second]
    for number, batch in enumerate((first, second, third)):
        History().apply(frame(spark, batch, 100 * number), into(tmp_path, number))

    assert stored_rows(spark, tmp_path) == model.history([*first, *second, *third])
    notes = {(item.key, item.position[-1]): dict(item.values or ())["note"] for item in stored_rows(spark, tmp_path)}
    assert notes == {(1, "1"): "other", **dict.fromkeys(((1, "3"), (1, "4"), (2, "5"), (3, "6"), (3, "7")), "long")}


def test_values_that_are_nowhere_known_and_columns_named_alike_are_refused(spark: SparkSession, tmp_path: Path):
    with pytest.raises(DataError, match="HR-541"):
        apply(spark, tmp_path, [row("u", 2, 2, 2, None, "note")])
    with pytest.raises(DataError, match="HR-541"):
        apply(spark, tmp_path, [row("d", 4, 8), row("c", 4, 3, 1, None, "note")])
    alike = (
        frame(spark, [row("c", 1, 1)]).selectExpr("*", "struct(_after.*, 1 AS row_is_current) AS new").drop("_after")
    )
    with pytest.raises(FlowError, match="HR-248"):
        History(prefix="row_").apply(alike.withColumnRenamed("new", "_after"), into(tmp_path, 1))
