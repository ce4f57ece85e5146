"""Changes of a table, merged into its mirror: late ones, repeated ones, deletes, values that the log leaves out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cdc_changes import Change, Key, Value, frame, into, row
from headrace.cdc.apply.mirror import Mirror
from headrace.errors import DataError
from headrace.flow.run_cache import RunCache

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def stored_rows(spark: SparkSession, folder: Path) -> dict[Key, dict[str, Value]]:
    rows = spark.read.format("delta").load(str(folder / "orders")).collect()
    actual = {
        row.id: {"id": row.id, "pieces": row.pieces, "note": row.note, "_position": row._headrace_position}
        for row in rows
    }
    assert len(actual) == len(rows), "a key is there twice"
    return actual


def apply(spark: SparkSession, folder: Path, *batches: list[Change], mirror: Mirror | None = None) -> None:
    cache = RunCache()
    for number, changes in enumerate(batches):
        (mirror or Mirror()).apply(frame(spark, changes, 100 * number), into(folder, number, cache=cache))


def test_a_late_update_does_not_bring_a_deleted_row_back(spark: SparkSession, tmp_path: Path):
    apply(spark, tmp_path, [row("c", 1, 1), row("c", 2, 2)], [row("d", 5, 1)], [row("u", 3, 1, 7)])

    assert list(stored_rows(spark, tmp_path)) == [2]


def test_a_late_change_of_a_key_that_was_never_seen_does_not_survive_a_truncate(spark: SparkSession, tmp_path: Path):
    apply(spark, tmp_path, [row("c", 1, 1)], [Change("t", 5, None), row("c", 6, 2)], [row("u", 3, 3, 7)])

    assert list(stored_rows(spark, tmp_path)) == [2]


def test_a_row_that_is_made_again_after_its_delete_is_there(spark: SparkSession, tmp_path: Path):
    apply(spark, tmp_path, [row("c", 1, 1, 1)], [row("d", 5, 1)], [row("c", 6, 1, 2)], [row("d", 5, 1)])

    assert stored_rows(spark, tmp_path)[1]["pieces"] == 2


def test_the_next_attempt_repairs_a_crash_between_tombstones_and_rows(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    apply(spark, tmp_path, [row("c", 1, 1), row("c", 2, 2)])
    second = [row("d", 5, 1), row("u", 6, 2, 7)]

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Mirror, "_write_rows", dies)
        with pytest.raises(KeyboardInterrupt):
            Mirror().apply(frame(spark, second, 10), into(tmp_path, 1))
    assert sorted(stored_rows(spark, tmp_path)) == [1, 2]

    Mirror().apply(frame(spark, second, 10), into(tmp_path, 1))
    assert {key: item["pieces"] for key, item in stored_rows(spark, tmp_path).items()} == {2: 7}


def test_a_value_that_is_missing_from_the_log_is_taken_from_the_table(spark: SparkSession, tmp_path: Path):
    apply(
        spark, tmp_path, [row("c", 1, 1, 1, "long")], [row("u", 2, 1, 2, None, "note"), row("u", 3, 1, 3, None, "note")]
    )

    assert stored_rows(spark, tmp_path)[1]["note"] == "long"


def test_a_value_that_is_nowhere_known_is_refused_and_not_taken_for_null(spark: SparkSession, tmp_path: Path):
    apply(spark, tmp_path, [row("c", 1, 1, 1, "long")])

    with pytest.raises(DataError, match="HR-541"):
        Mirror().apply(frame(spark, [row("u", 2, 2, 2, None, "note")]), into(tmp_path, 1))


def test_a_row_that_moves_takes_its_large_value_along_and_one_that_is_nowhere_known_is_refused(
    spark: SparkSession, tmp_path: Path
):
    # Row 1 goes to 2 and on to 3; row 4 goes to 1, which had another note; row 5 is deleted, and 6 takes its key.
    moves = [
        *(row("d", 10, 1), row("c", 10, 2, 1, None, "note"), row("d", 11, 2), row("c", 11, 3, 7, None, "note")),
        *(row("d", 12, 4), row("c", 12, 1, 4, None, "note"), row("u", 13, 1, 5, None, "note")),
        *(row("d", 14, 5), row("u", 15, 6, 6, "six"), row("d", 16, 6), row("c", 16, 5, 6, None, "note")),
    ]
    first = [row("c", number, number, number, f"note {number}") for number in (1, 4, 5, 6)]
    apply(spark, tmp_path, first, moves)
    expected = {3: (7, "note 1"), 1: (5, "note 4"), 5: (6, "six")}
    assert {key: (item["pieces"], item["note"]) for key, item in stored_rows(spark, tmp_path).items()} == expected

    # All of it comes once more, when the rows that moved are where they moved to.
    Mirror().apply(frame(spark, moves, 200), into(tmp_path, 2))
    assert {key: (item["pieces"], item["note"]) for key, item in stored_rows(spark, tmp_path).items()} == expected

    with pytest.raises(DataError, match="HR-541"):
        Mirror().apply(frame(spark, [row("d", 20, 8), row("c", 20, 9, 1, None, "note")]), into(tmp_path, 3))
    with pytest.raises(DataError, match="HR-541"):
        Mirror().apply(frame(spark, [row("d", 20, 8), row("c", 20, 5, 1, None, "note")]), into(tmp_path, 3))
    assert sorted(stored_rows(spark, tmp_path)) == [1, 3, 5]


def test_rows_of_an_interrupted_snapshot_are_deleted_when_the_next_one_is_complete(spark: SparkSession, tmp_path: Path):
    # A position of a snapshot begins with a minus, so that it sorts before every change.
    first = [row("r", 5, 1), row("r", 5, 2), row("c", 3, 4)]
    apply(spark, tmp_path, first, [row("r", 9, 1, 7)], [Change("t", -9, None), row("r", 9, 3)])

    assert {key: item["pieces"] for key, item in stored_rows(spark, tmp_path).items()} == {1: 7, 3: None, 4: None}


def test_a_soft_delete_retains_the_row_with_its_time_until_the_key_is_used_again(spark: SparkSession, tmp_path: Path):
    first = [row("c", 1, 1, 1, "a"), row("c", 2, 2, 2), row("c", 3, 3, 3), row("d", 4, 9)]
    late_and_again = [row("u", 3, 1, 7), row("c", 6, 2, 8), row("d", 5, 1)]
    apply(spark, tmp_path, first, [row("d", 5, 1), row("d", 5, 2)], late_and_again, mirror=Mirror("soft"))

    def marked() -> set[tuple[object, ...]]:
        rows = spark.read.format("delta").load(str(tmp_path / "orders"))
        at = "CAST(_headrace_deleted_at - TIMESTAMP'2026-01-01' AS INT)"
        return {tuple(item) for item in rows.selectExpr("id", "pieces", "note", "_headrace_deleted", at).collect()}

    assert marked() == {
        (1, 1, "a", True, 5),
        (2, 8, None, False, None),
        (3, 3, None, False, None),
        (9, None, None, True, 4),
    }

    Mirror("soft").apply(frame(spark, [Change("t", 7, None), row("c", 8, 4, 4)], 900), into(tmp_path, 3))
    assert {(key, missing) for key, _, _, missing, _ in marked()} == {
        (1, True),
        (2, True),
        (3, True),
        (9, True),
        (4, False),
    }
