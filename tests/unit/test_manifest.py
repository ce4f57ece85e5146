"""The manifest and the refusal of damaged logs, over checkpoints as Spark writes them, spelt out here."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from headrace.errors import RecoveryError
from headrace.flow.target import Target
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.checkpoint.integrity import find_log_flaws, require_intact
from headrace.runtime.checkpoint.manifest import Manifest

SETTINGS = '{"batchWatermarkMs":1714996800000,"batchTimestampMs":1714997400123,"conf":{"spark.x":"2"}}'


def checkpoint(root: Path) -> Checkpoint:
    return Checkpoint.of("rides", Target("dev", lake="unused", checkpoints=str(root)))


def batch(root: Path, number: int, *, committed: bool = True) -> None:
    """Write the files of one batch of a flow that reads a topic, as Spark does."""
    spark = root / "rides" / "spark"
    for folder in ("offsets", "commits", "sources/0"):
        (spark / folder).mkdir(parents=True, exist_ok=True)
    if number == 0:
        (spark / "metadata").write_text('{"id":"6a1f"}')
        (spark / "sources/0/0").write_text('\0v1\n{"rides":{"0":0}}')
    (spark / f"offsets/{number}").write_text(f'v1\n{SETTINGS}\n{{"rides":{{"0":{number + 1}}}}}')
    if committed:
        (spark / f"commits/{number}").write_text('v1\n{"nextBatchWatermarkMs":1714996800000}')


@pytest.fixture
def noted(tmp_path: Path) -> Checkpoint:
    """Four batches, 0 to 3, each noted after its commit."""
    actual = checkpoint(tmp_path)
    manifest = Manifest(actual)
    for number in range(4):
        batch(tmp_path, number)
        manifest.record(number)
    return actual


def at(actual: Checkpoint, path: str) -> Path:
    return Path(actual.folder) / path


def damage(actual: Checkpoint) -> list[tuple[str, str]]:
    return [(flaw.path, flaw.problem) for flaw in find_log_flaws(actual) if flaw.level == "damage"]


def notes(actual: Checkpoint) -> list[tuple[str, str]]:
    return [(flaw.path, flaw.problem) for flaw in find_log_flaws(actual) if flaw.level == "note"]


def test_each_batch_notes_the_sums_of_its_own_files_as_sha256sum_does(noted: Checkpoint) -> None:
    lines = at(noted, "headrace/manifest/2").read_text().splitlines()
    expected = [
        f"{hashlib.sha256(at(noted, f'spark/{path}').read_bytes()).hexdigest()}  {path}"
        for path in ("commits/2", "offsets/2")
    ]
    assert lines[:2] == expected
    assert lines[2].startswith("# ")
    assert len(lines) == 3
    assert sorted(Manifest(noted).read().sums) == sorted(
        ["metadata", "sources/0/0", *(f"{log}/{number}" for log in ("offsets", "commits") for number in range(4))]
    )
    assert find_log_flaws(noted) == []


def test_the_sum_that_the_batch_itself_saw_is_the_one_that_is_noted(tmp_path: Path) -> None:
    actual = checkpoint(tmp_path)
    batch(tmp_path, 0)
    observed = hashlib.sha256(b"what the batch saw").hexdigest()
    Manifest(actual).record(0, observed)
    assert [path for path, _ in damage(actual)] == ["spark/offsets/0"]


def test_a_flow_that_never_ran_has_no_flaws(tmp_path: Path) -> None:
    require_intact(checkpoint(tmp_path))


def test_a_crash_before_the_note_leaves_files_that_are_not_in_the_manifest_yet(noted: Checkpoint) -> None:
    root = Path(noted.folder).parent
    batch(root, 4)
    batch(root, 5, committed=False)
    require_intact(noted)
    assert notes(noted) == [
        (f"spark/{path}", "is not in the manifest yet") for path in ("commits/4", "offsets/4", "offsets/5")
    ]
    batch(root, 5)
    Manifest(noted).record(5)
    assert find_log_flaws(noted) == []


def test_entries_of_a_batch_are_recorded_only_at_its_commit(noted: Checkpoint) -> None:
    batch(Path(noted.folder).parent, 4, committed=False)
    Manifest(noted).record(3)
    assert "offsets/4" not in Manifest(noted).read().sums


def test_files_that_spark_purges_are_removed_from_the_manifest_and_are_no_damage(noted: Checkpoint) -> None:
    for number in (0, 1):
        at(noted, f"spark/offsets/{number}").unlink()
        at(noted, f"spark/commits/{number}").unlink()
    require_intact(noted)
    batch(Path(noted.folder).parent, 4)
    Manifest(noted).record(4)
    # Part 0 still holds the sums of the metadata and of where the topic began.
    assert sorted(path.name for path in at(noted, "headrace/manifest").iterdir()) == ["0", "2", "3", "4"]
    assert find_log_flaws(noted) == []


def test_a_purge_that_was_cut_off_is_no_damage(tmp_path: Path) -> None:
    """Spark deletes what is older than the last hundred batches in the order in which the folder lists it."""
    actual = checkpoint(tmp_path)
    for number in range(110):
        batch(tmp_path, number)
    Manifest(actual).record(109)
    for path in ("offsets/3", "offsets/9", "commits/4", "commits/9"):
        at(actual, f"spark/{path}").unlink()
    require_intact(actual)
    at(actual, "spark/offsets/10").unlink()
    assert damage(actual) == [("spark/offsets/10", "is not there")]


def test_a_compacted_log_of_a_source_may_lose_the_files_that_it_contains(noted: Checkpoint) -> None:
    for name in ("1", "2", "3.compact"):
        at(noted, f"spark/sources/0/{name}").write_text('v1\n{"path":"file:///a"}')
    Manifest(noted).record(3)
    at(noted, "spark/sources/0/2").unlink()
    require_intact(noted)
    at(noted, "spark/sources/0/3.compact").unlink()
    assert damage(noted) == [("spark/sources/0/2", "is not there"), ("spark/sources/0/3.compact", "is not there")]


def test_a_commit_that_was_taken_away_means_that_the_batch_is_run_again(noted: Checkpoint) -> None:
    at(noted, "spark/commits/3").unlink()
    require_intact(noted)
    assert notes(noted) == [("spark/commits/3", "existed and is missing")]
    batch(Path(noted.folder).parent, 3)
    Manifest(noted).record(3)
    assert find_log_flaws(noted) == []


@pytest.mark.parametrize(
    ("missing", "named"),
    [
        (["metadata"], "metadata"),
        (["offsets/3"], "offsets/3"),
        (["offsets/3", "commits/3"], "commits/3"),
        (["offsets/1"], "offsets/1"),
        (["commits/1"], "commits/1"),
        (["offsets/0", "offsets/1", "offsets/2", "offsets/3"], "offsets/0"),
        (["sources/0/0"], "sources/0/0"),
    ],
)
@pytest.mark.parametrize("with_manifest", [True, False])
def test_a_file_that_must_be_there_is_named(
    noted: Checkpoint, missing: list[str], named: str, with_manifest: bool
) -> None:
    if not with_manifest:
        for part in at(noted, "headrace/manifest").iterdir():
            part.unlink()
    for path in missing:
        at(noted, f"spark/{path}").unlink()
    if not with_manifest and named in ("sources/0/0", "commits/3"):
        require_intact(noted)  # nothing shows that they existed
        return
    if not with_manifest and len(missing) == 4:
        named = "offsets/3"  # the commits contain it
    with pytest.raises(RecoveryError) as refused:
        require_intact(noted)
    assert refused.value.code == "HR-320"
    assert f"{noted.location}/{named} is not there" in refused.value.what


def test_a_checkpoint_that_was_deleted_does_not_start_from_zero(noted: Checkpoint) -> None:
    for path in sorted(Path(noted.location).rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    with pytest.raises(RecoveryError, match="metadata is not there"):
        require_intact(noted)


Spoil = Callable[[bytes], bytes]


@pytest.mark.parametrize(
    ("spoil", "actual"),
    [(lambda _: b"", "is empty"), (lambda text: text[:-1], "is torn"), (lambda _: b"\xff\xfe", "is torn")],
    ids=["empty", "truncated", "not text"],
)
@pytest.mark.parametrize("path", ["metadata", "offsets/3", "commits/3", "sources/0/0"])
def test_a_torn_file_is_named_without_the_manifest_too(noted: Checkpoint, path: str, spoil: Spoil, actual: str) -> None:
    for part in at(noted, "headrace/manifest").iterdir():
        part.unlink()
    file = at(noted, f"spark/{path}")
    file.write_bytes(spoil(file.read_bytes()))
    [(named, message)] = damage(noted)
    assert named == f"spark/{path}"
    assert message.startswith(actual)


def test_a_torn_last_commit_is_repaired_by_taking_it_away(noted: Checkpoint) -> None:
    at(noted, "spark/commits/3").write_text("")
    with pytest.raises(RecoveryError) as refused:
        require_intact(noted)
    assert "Delete spark/commits/3 and spark/commits/.3.crc" in refused.value.remedy
    at(noted, "spark/commits/3").unlink()
    require_intact(noted)


def test_a_batch_with_a_truncated_offset_entry_is_planned_again_only_if_no_sink_has_it(noted: Checkpoint) -> None:
    batch(Path(noted.folder).parent, 4, committed=False)
    at(noted, "spark/offsets/4").write_text("v1\n")
    with pytest.raises(RecoveryError) as refused:
        require_intact(noted)
    assert refused.value.remedy.startswith("If no sink holds rows of batch 4, delete spark/offsets/4")


def test_a_restore_that_was_cut_off_is_no_checkpoint_to_start_from(noted: Checkpoint) -> None:
    at(noted, "headrace/restoring.json").write_text("{}")
    with pytest.raises(RecoveryError, match="a restore was interrupted"):
        require_intact(noted)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_byte_that_changes_in_any_file_is_found_and_the_file_is_named(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.getbasetemp() / "any-byte"
    actual = checkpoint(root)
    if not root.exists():
        for number in range(3):
            batch(root, number)
            Manifest(actual).record(number)
    files = sorted(path for path in root.rglob("*") if path.is_file())
    file = data.draw(st.sampled_from(files), label="file")
    complete = file.read_bytes()
    place = data.draw(st.integers(0, len(complete) - 1), label="place")
    value = data.draw(st.integers(0, 255).filter(lambda item: item != complete[place]), label="byte")
    file.write_bytes(complete[:place] + bytes([value]) + complete[place + 1 :])
    try:
        assert [path for path, _ in damage(actual)] == [str(file.relative_to(root / "rides"))]
    finally:
        file.write_bytes(complete)
