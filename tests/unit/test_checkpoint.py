"""Checkpoints read from files as Spark writes them, spelt out here."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import RecoveryError
from headrace.flow.target import Target
from headrace.runtime.checkpoint.checkpoint import Checkpoint

SETTINGS = '{"batchWatermarkMs":1714996800000,"batchTimestampMs":1714997400123,"conf":{"spark.x":"2"}}'


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    target = Target("dev", lake=str(tmp_path / "lake"), checkpoints=str(tmp_path))
    return Checkpoint.of("rides", target)


def put(checkpoint: Checkpoint, name: str, text: str) -> None:
    path = Path(checkpoint.location) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def offsets(checkpoint: Checkpoint, batch: int, *sources: str) -> None:
    put(checkpoint, f"offsets/{batch}", "\n".join(["v1", SETTINGS, *sources]))


def test_a_flow_that_never_ran_has_no_identity_and_no_batches(checkpoint: Checkpoint) -> None:
    assert checkpoint.query_id() is None
    assert checkpoint.planned_batches() == []
    assert checkpoint.committed_batches() == []


def test_the_identity_is_the_one_that_spark_wrote(checkpoint: Checkpoint) -> None:
    put(checkpoint, "metadata", '{"id":"9f3c2c5e-0000-4000-8000-0123456789ab"}')
    assert checkpoint.query_id() == "9f3c2c5e-0000-4000-8000-0123456789ab"


def test_batches_are_listed_by_number_and_other_files_left_out(checkpoint: Checkpoint) -> None:
    for name in ("10", "9", "2", ".10.crc", ".11.tmp", "12.compact"):
        put(checkpoint, f"offsets/{name}", "")
        put(checkpoint, f"commits/{name}", "")
    assert checkpoint.planned_batches() == [2, 9, 10]
    assert checkpoint.committed_batches() == [2, 9, 10]


def test_an_entry_contains_the_watermark_the_time_and_the_offsets_of_each_source(checkpoint: Checkpoint) -> None:
    offsets(checkpoint, 4, '{"rides":{"0":7,"1":9}}', "-", '{"drivers":{"0":3}}')
    entry = checkpoint.offset_entry(4)
    assert (entry.batch_id, entry.watermark_ms, entry.timestamp_ms) == (4, 1714996800000, 1714997400123)
    assert entry.offsets == ('{"rides":{"0":7,"1":9}}', None, '{"drivers":{"0":3}}')


def test_an_entry_of_continuous_processing_has_offsets_and_no_settings(checkpoint: Checkpoint) -> None:
    put(checkpoint, "offsets/4", 'v1\n\n{"rides":{"0":7}}')
    entry = checkpoint.offset_entry(4)
    assert (entry.continuous, entry.watermark_ms, entry.offsets) == (True, 0, ('{"rides":{"0":7}}',))
    offsets(checkpoint, 5, '{"rides":{"0":9}}')
    assert not checkpoint.offset_entry(5).continuous


def test_where_continuous_processing_began_is_noted_for_one_checkpoint_only(checkpoint: Checkpoint) -> None:
    assert checkpoint.continuous_start() == ()
    checkpoint.record_continuous_start(['{"rides":{"0":3}}'])
    put(checkpoint, "offsets/0", 'v1\n\n{"rides":{"0":7}}')
    assert checkpoint.offset_range(0, 0) == ('{"rides":{"0":3}}', '{"rides":{"0":7}}')
    put(checkpoint, "metadata", '{"id":"first"}')
    checkpoint.record_continuous_start(checkpoint.continuous_start())
    assert checkpoint.continuous_start() == ('{"rides":{"0":3}}',)
    put(checkpoint, "metadata", '{"id":"second"}')
    assert checkpoint.continuous_start() == ()


def test_the_range_of_a_batch_starts_where_the_previous_batch_ended(checkpoint: Checkpoint) -> None:
    offsets(checkpoint, 3, '{"rides":{"0":5}}')
    offsets(checkpoint, 4, '{"rides":{"0":9}}')
    assert checkpoint.offset_range(4, 0) == ('{"rides":{"0":5}}', '{"rides":{"0":9}}')


def test_the_first_batch_starts_at_the_start_offset_that_the_source_recorded(checkpoint: Checkpoint) -> None:
    put(checkpoint, "sources/0/0", '0v1\n{"rides":{"0":2}}')
    offsets(checkpoint, 0, '{"rides":{"0":9}}')
    assert checkpoint.offset_range(0, 0) == ('{"rides":{"0":2}}', '{"rides":{"0":9}}')


def test_a_source_without_earlier_offsets_starts_at_its_beginning(checkpoint: Checkpoint) -> None:
    put(checkpoint, "sources/1/0", 'v1\n{"drivers":{"0":0}}')
    offsets(checkpoint, 3, '{"rides":{"0":5}}', "-")
    offsets(checkpoint, 4, '{"rides":{"0":5}}', '{"drivers":{"0":4}}')
    assert checkpoint.offset_range(4, 1) == ('{"drivers":{"0":0}}', '{"drivers":{"0":4}}')


def test_a_batch_that_read_nothing_has_no_range(checkpoint: Checkpoint) -> None:
    offsets(checkpoint, 3, '{"rides":{"0":5}}', "-")
    offsets(checkpoint, 4, '{"rides":{"0":5}}', "-")
    assert checkpoint.offset_range(4, 0) is None
    assert checkpoint.offset_range(4, 1) is None


def test_a_source_that_wrote_no_beginning_has_no_range_for_the_first_batch(checkpoint: Checkpoint) -> None:
    offsets(checkpoint, 0, '{"rides":{"0":5}}')
    assert checkpoint.offset_range(0, 0) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "v1",
        "v1\n",
        f"v1\n{SETTINGS[:40]}",
        'v1\n{"batchTimestampMs":1}\n{"rides":{"0":5}}',
        'v1\n{"batchWatermarkMs":"soon","batchTimestampMs":1}\n{}',
        "v1\nnull\n{}",
        "v1\n[]\n{}",
    ],
    ids=["empty", "version only", "no settings", "torn", "no watermark", "watermark no number", "null", "list"],
)
def test_an_entry_that_is_torn_or_foreign_is_refused(checkpoint: Checkpoint, text: str) -> None:
    put(checkpoint, "offsets/4", text)
    with pytest.raises(RecoveryError, match="offsets/4") as refused:
        checkpoint.offset_entry(4)
    assert refused.value.code == "HR-301"


def test_an_entry_that_is_not_there_is_refused(checkpoint: Checkpoint) -> None:
    offsets(checkpoint, 4, '{"rides":{"0":5}}')
    with pytest.raises(RecoveryError, match="offsets/3 cannot be read") as refused:
        checkpoint.offset_range(4, 0)
    assert refused.value.code == "HR-301"
    assert "does not exist" in refused.value.why


def test_an_entry_without_the_offsets_of_a_source_is_refused(checkpoint: Checkpoint) -> None:
    """A torn file may well end after a complete line."""
    offsets(checkpoint, 3, '{"rides":{"0":5}}')
    offsets(checkpoint, 4)
    with pytest.raises(RecoveryError) as refused:
        checkpoint.offset_range(4, 0)
    assert refused.value.code == "HR-301"


@pytest.mark.parametrize("text", ["", '{"id":', "{}", "null"])
def test_metadata_that_is_torn_is_refused(checkpoint: Checkpoint, text: str) -> None:
    put(checkpoint, "metadata", text)
    with pytest.raises(RecoveryError, match="metadata") as refused:
        checkpoint.query_id()
    assert refused.value.code == "HR-301"


def test_the_files_of_a_batch_are_found_in_single_entries_and_in_those_put_together(checkpoint: Checkpoint) -> None:
    def entries(*numbers: int) -> str:
        return "\n".join(["v1", *(f'{{"path":"/in/{number}","timestamp":1,"batchId":{number}}}' for number in numbers)])

    put(checkpoint, "sources/0/2.compact", entries(0, 1, 2))
    put(checkpoint, "sources/0/3", entries(3))
    put(checkpoint, "sources/0/4", entries(4))
    assert checkpoint.source_files(0, '{"logOffset":0}', '{"logOffset":3}') == ["/in/1", "/in/2", "/in/3"]
    assert checkpoint.source_files(0, '{"logOffset":3}', '{"logOffset":4}') == ["/in/4"]
    assert checkpoint.source_files(0, None, '{"logOffset":1}') == ["/in/0", "/in/1"]


def test_a_batch_lacks_its_beginning_where_the_source_had_nothing_before_and_wrote_none_down(
    checkpoint: Checkpoint,
) -> None:
    offsets(checkpoint, 0, "-", "-")
    offsets(checkpoint, 1, '{"reservoirVersion":7}', "-")
    offsets(checkpoint, 2, '{"reservoirVersion":8}', '{"rides":{"0":5}}')
    put(checkpoint, "sources/1/0", 'v1\n{"rides":{"0":2}}')
    assert [checkpoint.lacks_start_offset(number, 0) for number in range(3)] == [False, True, False]
    assert [checkpoint.lacks_start_offset(number, 1) for number in range(3)] == [False, False, False]
