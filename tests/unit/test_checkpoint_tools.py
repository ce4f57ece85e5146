"""What `headrace checkpoint` makes of checkpoints that are spelt out here, file by file."""

from __future__ import annotations

import io
import json
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from typer.testing import CliRunner

from headrace.cli.main import app
from headrace.clients.storage import LocalFileStore
from headrace.errors import HeadraceError
from headrace.flow.flow import Flow
from headrace.flow.guarantee import Guarantee
from headrace.flow.inputs import Input
from headrace.flow.levers import OutputMode
from headrace.flow.run_cache import RunCache
from headrace.flow.target import Target
from headrace.operate.checkpoint import restore as checkpoint_restore
from headrace.operate.checkpoint.backup import back_up
from headrace.operate.checkpoint.find import find_checkpoint
from headrace.operate.checkpoint.offsets import next_reads
from headrace.operate.checkpoint.restore import plan_restore, restore
from headrace.operate.checkpoint.show import show
from headrace.operate.checkpoint.verify import matches_hadoop_checksum, matches_spark_checksum, verify
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.checkpoint.integrity import require_intact
from headrace.runtime.checkpoint.lease import acquire_lease
from headrace.runtime.checkpoint.manifest import Manifest
from headrace.sources.kafka.source import KafkaSource

SETTINGS = '{"batchWatermarkMs":1714996800000,"batchTimestampMs":1714997400123,"conf":{}}'
OPERATOR = (
    '{"operatorInfo":{"operatorId":0,"operatorName":"dedupe"},'
    '"stateStoreInfo":[{"storeName":"default","numColsPrefixKey":0,"numPartitions":1}]}'
)


class CheckpointFolder:
    """A flow's folder, written by hand: batches of a topic, with the state of one operator in one partition."""

    def __init__(self, root: Path, flow: str = "rides", query_id: str = "6a1f") -> None:
        self.root, self.folder = root, root / flow
        self.target = Target("dev", lake=str(root / "lake"), checkpoints=str(root))
        self.checkpoint = Checkpoint.of(flow, self.target)
        self.put("metadata", f'{{"id":"{query_id}"}}')
        self.put("sources/0/0", '\0v1\n{"rides":{"0":0,"1":0}}')

    def put(self, path: str, content: str | bytes) -> Path:
        file = self.folder / "spark" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        return file

    def batch(self, number: int, *, committed: bool = True) -> None:
        self.put(f"offsets/{number}", f'v1\n{SETTINGS}\n{{"rides":{{"0":{10 * (number + 1)},"1":{number}}}}}')
        if committed:
            self.put(f"commits/{number}", 'v1\n{"nextBatchWatermarkMs":1714996800000}')
            Manifest(self.checkpoint).record(number)

    def state(self, *names: str) -> None:
        self.put("state/0/_metadata/metadata", f"v1\n{OPERATOR}")
        for name in names:
            self.put(f"state/0/0/{name}", b"LZ4Block")

    def damages(self) -> list[tuple[str, str]]:
        return [(flaw.path, flaw.problem) for flaw in verify(self.checkpoint).damages]


@pytest.fixture
def stored(tmp_path: Path) -> CheckpointFolder:
    """Three batches, 0 to 2, all committed and noted."""
    actual = CheckpointFolder(tmp_path / "checkpoints")
    for number in range(3):
        actual.batch(number)
    return actual


def code(act: Callable[[], object]) -> str:
    with pytest.raises(HeadraceError) as refused:
        act()
    return refused.value.code


# ---- verify ----


def test_the_checksums_of_hadoop_and_of_spark_are_the_known_ones() -> None:
    """The check values of CRC-32 and CRC-32C: the sums of the digits 1 to 9."""
    digits = b"123456789"
    assert matches_hadoop_checksum(digits, b"crc\0" + struct.pack(">iI", 512, 0xCBF43926))
    assert not matches_hadoop_checksum(b"123456780", b"crc\0" + struct.pack(">iI", 512, 0xCBF43926))
    signed = struct.unpack(">i", struct.pack(">I", 0xE3069283))[0]
    noted = {"algorithm": "CRC32C", "value": signed, "mainFileSize": 9}
    assert matches_spark_checksum(digits, json.dumps(noted).encode())
    assert not matches_spark_checksum(b"123456780", json.dumps(noted).encode())
    assert not matches_spark_checksum(digits, b"{")


def test_of_a_wrong_checksum_and_an_intact_file_the_checksum_is_deleted(stored: CheckpointFolder) -> None:
    stored.put("offsets/.1.crc", b"crc\0" + struct.pack(">iI", 512, 7))
    [flaw] = verify(stored.checkpoint).damages
    assert flaw.path == "spark/offsets/.1.crc"
    assert flaw.remedy.startswith("Delete this checksum")


def test_a_file_of_the_state_that_is_not_what_its_checksum_was_taken_of_is_named(stored: CheckpointFolder) -> None:
    stored.state("1.changelog", "2.changelog", "3.changelog", "4.changelog")
    for number in (3, 4):
        stored.put(f"state/0/0/.{number}.changelog.crc", b"crc\0" + struct.pack(">iI", 512, 7))
    verdict = verify(stored.checkpoint)
    assert [flaw.path for flaw in verdict.damages] == ["spark/state/0/0/3.changelog"]
    # Version 4 belongs to a batch that was never committed: it is written again.
    assert [flaw.path for flaw in verdict.flaws if flaw.level == "note"] == ["spark/state/0/0/4.changelog"]


@pytest.mark.parametrize(
    ("there", "missing"),
    [
        (["1.changelog", "2.changelog", "3.changelog"], []),
        (["1.changelog", "3.changelog"], ["2.changelog"]),
        (["1.changelog", "2.changelog"], ["3.changelog"]),
        ([], ["1.changelog", "2.changelog", "3.changelog"]),
        (["1.delta", "3.delta"], ["2.delta"]),
        (["2.snapshot", "3.delta"], []),
        (["2.snapshot", "2.delta"], ["3.delta"]),
        (["4.snapshot", "1.delta", "2.delta", "3.delta"], []),
        ([f"{number}_6a1f2b3c-0000-4000-8000-000000000000.changelog" for number in (1, 2, 3)], []),
    ],
)
def test_the_state_of_the_last_commit_needs_a_snapshot_and_every_change_since(
    stored: CheckpointFolder, there: list[str], missing: list[str]
) -> None:
    stored.state(*there)
    assert stored.damages() == [(f"spark/state/0/0/{name}", "is missing") for name in missing]


def snapshot(tables: dict[str, int]) -> bytes:
    """Return a snapshot of RocksDB as Spark uploads it: an archive and a list of its tables."""
    listed = [{"localFileName": name, "dfsSstFileName": name, "sizeBytes": size} for name, size in tables.items()]
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("metadata", f"v1\n{json.dumps({'sstFiles': listed, 'numKeys': 1})}")
        archive.writestr("CURRENT", "MANIFEST-000005\n")
    return file.getvalue()


def test_a_rocksdb_snapshot_is_complete_with_all_the_files_that_it_lists(stored: CheckpointFolder) -> None:
    stored.state("3.changelog")
    stored.put("state/0/0/2.zip", snapshot({"1.sst": 4, "2.sst": 4}))
    for name, content in (("1.sst", b"rows"), ("2.sst", b"row")):
        stored.put(f"state/0/0/SSTs/{name}", content)
    assert stored.damages() == [("spark/state/0/0/SSTs/2.sst", "has 3 bytes; the snapshot 2.zip names 4")]
    (stored.folder / "spark/state/0/0/SSTs/1.sst").unlink()
    stored.put("state/0/0/SSTs/2.sst", b"rows")
    assert stored.damages() == [("spark/state/0/0/SSTs/1.sst", "is missing")]


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_snapshot_with_any_byte_changed_is_named_or_reads_as_before(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.getbasetemp() / "any-byte-of-a-snapshot"
    fresh = not root.exists()
    stored = CheckpointFolder(root)
    if fresh:
        for number in range(3):
            stored.batch(number)
        stored.state("3.changelog")
    complete = snapshot({})
    place = data.draw(st.integers(0, len(complete) - 1), label="place")
    value = data.draw(st.integers(0, 255).filter(lambda item: item != complete[place]), label="byte")
    stored.put("state/0/0/2.zip", complete[:place] + bytes([value]) + complete[place + 1 :])
    # Times and rights of the archive's members are bytes that nobody reads; Hadoop's sums cover them on a disk.
    assert {path for path, _ in stored.damages()} <= {"spark/state/0/0/2.zip"}
    stored.put("state/0/0/.2.zip.crc", b"crc\0" + struct.pack(">iI", 4096, zlib.crc32(complete)))
    assert [path for path, _ in stored.damages()] == ["spark/state/0/0/2.zip"]
    (stored.folder / "spark/state/0/0/.2.zip.crc").unlink()


def test_a_missing_partition_is_reported(stored: CheckpointFolder) -> None:
    stored.state("1.changelog", "2.changelog", "3.changelog")
    stored.put("state/0/_metadata/metadata", "v1\n" + OPERATOR.replace('Partitions":1', 'Partitions":2'))
    assert [path for path, _ in stored.damages()] == [f"spark/state/0/1/{number}.changelog" for number in (1, 2, 3)]


def test_what_a_killed_driver_left_half_written_is_no_damage(stored: CheckpointFolder) -> None:
    stored.put("commits/.3.6a1f.tmp", "")
    [flaw] = verify(stored.checkpoint).flaws
    assert (flaw.level, flaw.problem) == ("note", "was never completed")


# ---- find ----


def test_a_flow_that_left_the_project_is_found_by_its_folder_and_one_that_never_ran_by_its_declaration(
    stored: CheckpointFolder,
) -> None:
    assert find_checkpoint("rides", stored.target, LocalFileStore()).folder == str(stored.folder)
    assert find_checkpoint("fresh", stored.target, LocalFileStore(), ["fresh"]).planned_batches() == []
    assert code(lambda: find_checkpoint("fresh", stored.target, LocalFileStore(), [])) == "HR-321"


@pytest.mark.parametrize("name", ["../rides", "rides/spark", "/etc", "..", "", "rides.replaced-1", "Rides"])
def test_a_name_cannot_lead_out_of_the_root(stored: CheckpointFolder, name: str) -> None:
    assert code(lambda: find_checkpoint(name, stored.target, LocalFileStore(), [name])) == "HR-321"


def test_a_link_cannot_lead_out_of_the_root(stored: CheckpointFolder, tmp_path: Path) -> None:
    CheckpointFolder(tmp_path / "elsewhere", "other")
    (stored.root / "linked").symlink_to(tmp_path / "elsewhere" / "other")
    assert code(lambda: find_checkpoint("linked", stored.target, LocalFileStore())) == "HR-322"
    (stored.root / "half").mkdir()
    (stored.root / "half" / "spark").symlink_to(tmp_path / "elsewhere" / "other" / "spark")
    assert code(lambda: find_checkpoint("half", stored.target, LocalFileStore())) == "HR-322"


def test_a_root_that_is_a_link_itself_is_fine(stored: CheckpointFolder, tmp_path: Path) -> None:
    (tmp_path / "root").symlink_to(stored.root)
    target = Target("dev", lake="unused", checkpoints=str(tmp_path / "root"))
    assert find_checkpoint("rides", target, LocalFileStore()).planned_batches() == [0, 1, 2]


# ---- show ----


def test_an_unfinished_batch_is_shown_with_the_exact_range_of_its_retry(stored: CheckpointFolder) -> None:
    stored.batch(3, committed=False)
    anatomy = show(stored.checkpoint, stored.target, None)
    assert (anatomy.unfinished, anatomy.committed) == (3, (0, 2))
    [source] = anatomy.reads
    actual = [(item.topic, item.partition, item.start, item.end, item.records) for item in source.ranges]
    assert actual == [("rides", 0, 30, 40, 10), ("rides", 1, 2, 3, 1)]
    assert anatomy.watermark == "2024-05-06T12:00:00.000Z"
    assert anatomy.begun_at == "2024-05-06T12:10:00.123Z"


def test_the_first_batch_starts_where_the_topic_was_first_read_and_a_new_partition_at_0(tmp_path: Path) -> None:
    stored = CheckpointFolder(tmp_path)
    stored.put("sources/0/0", '\0v1\n{"rides":{"0":4}}')
    stored.put("offsets/0", f'v1\n{SETTINGS}\n{{"rides":{{"0":9,"1":3}}}}')
    [source] = next_reads(stored.checkpoint, stored.target, [])
    assert [(item.start, item.end) for item in source.ranges] == [(4, 9), (0, 3)]


def test_without_an_unfinished_batch_the_flow_continues_where_the_last_one_ended(stored: CheckpointFolder) -> None:
    [source] = next_reads(stored.checkpoint, stored.target, ["rows"])
    assert [(item.place, item.start, item.end, item.records) for item in source.ranges] == [
        ("rides[0]", 30, None, None),
        ("rides[1]", 2, None, None),
    ]
    assert source.unknown == "Target 'dev' has no address of Kafka."


def test_the_offsets_of_other_sources_are_described_in_words(stored: CheckpointFolder) -> None:
    table = '{"sourceVersion":1,"reservoirId":"a","reservoirVersion":%d,"index":%d,"isStartingVersion":false}'
    stored.put("offsets/3", f'v1\n{SETTINGS}\n{table % (16, -1)}\n{{"logOffset":1}}\n7\n-')
    stored.put("offsets/4", f'v1\n{SETTINGS}\n{table % (17, 2)}\n{{"logOffset":2}}\n9\n-')
    stored.put("commits/3", 'v1\n{"nextBatchWatermarkMs":0}')
    stored.put("sources/1/2", 'v1\n{"path":"file:///a.csv","timestamp":1,"batchId":2}')
    actual = list(next_reads(stored.checkpoint, stored.target, ["table", "folder", "rate", "nothing"]))
    assert [(item.input, item.kind, item.ranges[0].start, item.ranges[0].end, item.files) for item in actual] == [
        ("table", "delta", "version 16", "version 17, file 2", ()),
        ("folder", "files", "entry 1", "entry 2", ("file:///a.csv",)),
        ("rate", "other", 7, 9, ()),
        ("nothing", "other", None, None, ()),
    ]


def test_a_damaged_checkpoint_is_shown_as_far_as_it_can_be_trusted(stored: CheckpointFolder) -> None:
    stored.put("offsets/2", "v1")
    anatomy = show(stored.checkpoint, stored.target, None)
    assert (anatomy.committed, anatomy.reads, anatomy.query_id) == ((0, 2), (), None)
    assert [flaw.path for flaw in anatomy.damages] == ["spark/offsets/2"]


def test_lost_offsets_are_shown_in_the_order_of_their_batches(stored: CheckpointFolder) -> None:
    lost = stored.folder / "headrace" / "lost"
    lost.mkdir(parents=True)
    for number in (10, 9):
        entry = {"query_id": "6a1f", "topic": "rides", "partition": 0, "first": number, "end": 20, "kind": "lost"}
        (lost / f"{number}.json").write_text(json.dumps({"batch": number, "lost": [entry]}))
    (lost / "11.json").write_text("torn")
    actual = show(stored.checkpoint, stored.target, None).lost
    assert [(item["batch"], item.get("first"), item["kind"]) for item in actual] == [
        (9, 9, "lost"),
        (10, 10, "lost"),
        (11, None, "unreadable"),
    ]


def test_who_runs_the_flow_is_shown_only_while_it_runs(stored: CheckpointFolder) -> None:
    with acquire_lease(stored.checkpoint):
        holder = show(stored.checkpoint, stored.target, None).holder
        assert holder is not None
        assert "pid" in holder
    assert show(stored.checkpoint, stored.target, None).holder is None


# ---- backup and restore ----


def files(folder: Path) -> dict[str, bytes]:
    actual = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {path: content for path, content in actual.items() if "headrace/lease" not in path}


def test_a_backup_contains_every_file_except_the_lease_and_is_restored_unchanged(
    stored: CheckpointFolder, tmp_path: Path
) -> None:
    before = files(stored.folder)
    folder, backup = back_up(stored.checkpoint, tmp_path / "backups")
    assert {path: content for path, content in files(folder).items() if path != "backup.json"} == before
    assert (backup.query_id, backup.committed, backup.planned) == ("6a1f", 2, 2)

    stored.put("offsets/2", "torn")
    torn = files(stored.folder)
    aside = restore(stored.checkpoint, plan_restore(stored.checkpoint, folder, None))
    assert aside is not None
    assert files(stored.folder) == before
    assert files(aside) == torn
    require_intact(stored.checkpoint)


def test_a_running_flow_is_neither_backed_up_nor_replaced(stored: CheckpointFolder, tmp_path: Path) -> None:
    folder, _ = back_up(stored.checkpoint, tmp_path / "backups")
    plan = plan_restore(stored.checkpoint, folder, None)
    before = files(stored.root)
    with acquire_lease(stored.checkpoint):
        assert code(lambda: back_up(stored.checkpoint, tmp_path / "backups")) == "HR-302"
        assert code(lambda: restore(stored.checkpoint, plan)) == "HR-302"
    assert files(stored.root) == before


def test_what_is_damaged_or_was_never_started_is_not_backed_up(stored: CheckpointFolder, tmp_path: Path) -> None:
    stored.put("commits/1", "")
    assert code(lambda: back_up(stored.checkpoint, tmp_path / "backups")) == "HR-320"
    fresh = Checkpoint.of("fresh", stored.target)
    assert code(lambda: back_up(fresh, tmp_path / "backups")) == "HR-324"
    assert not (tmp_path / "backups").exists()


def test_a_link_within_a_checkpoint_is_not_followed_into_a_backup(stored: CheckpointFolder, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("v1\n{}")
    (stored.folder / "spark/state").mkdir()
    (stored.folder / "spark/state/link").symlink_to(tmp_path / "secret")
    assert code(lambda: back_up(stored.checkpoint, tmp_path / "backups")) == "HR-322"


def test_a_backup_that_cannot_be_written_leaves_nothing_behind(stored: CheckpointFolder, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert code(lambda: back_up(stored.checkpoint, tmp_path / "file" / "backups")) == "HR-328"


def test_a_backup_that_was_changed_is_refused(stored: CheckpointFolder, tmp_path: Path) -> None:
    folder, _ = back_up(stored.checkpoint, tmp_path / "backups")
    before = files(stored.root)
    offsets = folder / "spark/offsets/1"
    complete = offsets.read_bytes()

    def refused() -> str:
        return code(lambda: plan_restore(stored.checkpoint, folder, None))

    offsets.write_bytes(complete[:-1] + b"\n")
    assert refused() == "HR-325"
    offsets.unlink()
    assert refused() == "HR-325"
    offsets.write_bytes(complete)
    (folder / "spark/offsets/9").write_text("added")
    assert refused() == "HR-325"
    (folder / "spark/offsets/9").unlink()
    plan_restore(stored.checkpoint, folder, None)
    (folder / "backup.json").unlink()
    assert refused() == "HR-325"
    assert files(stored.root) == before


def test_a_backup_of_another_flow_or_of_another_beginning_is_refused(stored: CheckpointFolder, tmp_path: Path) -> None:
    folder, _ = back_up(stored.checkpoint, tmp_path / "backups")
    other = Checkpoint.of("other", stored.target)
    assert code(lambda: plan_restore(other, folder, None)) == "HR-326"
    stored.put("metadata", '{"id":"begun anew"}')
    assert code(lambda: plan_restore(stored.checkpoint, folder, None)) == "HR-326"
    # Where nothing is, nothing is replaced.
    stored.folder.rename(tmp_path / "away")
    assert restore(stored.checkpoint, plan_restore(stored.checkpoint, folder, None)) is None
    assert stored.checkpoint.query_id() == "6a1f"


class Silent:
    """An exactly-once sink that cannot say what it holds."""

    name = "silent"
    guarantee = Guarantee.EXACTLY_ONCE
    output_modes = frozenset(OutputMode)

    def preflight(self, target: Target) -> None: ...

    def prepare(self, spark: object, target: Target, cache: RunCache) -> None: ...

    def write(self, rows: object, batch: object) -> None: ...


def test_a_backup_that_is_older_than_an_exactly_once_sink_is_refused(stored: CheckpointFolder, tmp_path: Path) -> None:
    flow = Flow("rides", Input(KafkaSource("rides")), lambda rows: rows, Silent())
    folder, _ = back_up(stored.checkpoint, tmp_path / "backups")
    plan_restore(stored.checkpoint, folder, flow)
    stored.batch(3)
    assert code(lambda: plan_restore(stored.checkpoint, folder, flow)) == "HR-327"
    # Also when nothing but the manifest contains the later batch.
    for path in sorted((stored.folder / "spark").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    assert code(lambda: plan_restore(stored.checkpoint, folder, flow)) == "HR-327"


def test_fencing_tokens_increase_after_a_restore_even_if_nothing_was_left(
    stored: CheckpointFolder, tmp_path: Path
) -> None:
    """Sinks refuse a driver whose number is below one that they have seen."""
    for _ in range(3):
        with acquire_lease(stored.checkpoint):
            pass
    folder, backup = back_up(stored.checkpoint, tmp_path / "backups")
    assert backup.lease == 4
    stored.folder.rename(tmp_path / "away")
    restore(stored.checkpoint, plan_restore(stored.checkpoint, folder, None))
    with acquire_lease(stored.checkpoint) as holding:
        assert holding.token == 6
    restore(stored.checkpoint, plan_restore(stored.checkpoint, folder, None))
    with acquire_lease(stored.checkpoint) as holding:
        assert holding.token == 8


@pytest.mark.parametrize("cut_at", ["after the old one is aside", "before anything moves"])
def test_a_restore_that_is_cut_off_is_not_started_from_and_can_be_run_again(
    stored: CheckpointFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut_at: str
) -> None:
    folder, _ = back_up(stored.checkpoint, tmp_path / "backups")
    before = files(stored.folder)
    stored.put("offsets/2", "torn")
    plan, moved, calls = plan_restore(stored.checkpoint, folder, None), checkpoint_restore._move_checkpoint, []

    def killed(source: Path, into: Path) -> Path | None:
        calls.append(source)
        if len(calls) == 2 or cut_at == "before anything moves":
            raise KeyboardInterrupt
        return moved(source, into)

    monkeypatch.setattr(checkpoint_restore, "_move_checkpoint", killed)
    with pytest.raises(KeyboardInterrupt):
        restore(stored.checkpoint, plan)
    assert code(lambda: require_intact(stored.checkpoint)) == "HR-320"

    monkeypatch.undo()
    restore(stored.checkpoint, plan_restore(stored.checkpoint, folder, None))
    assert files(stored.folder) == before
    require_intact(stored.checkpoint)


# ---- the command ----


@pytest.fixture
def project(stored: CheckpointFolder, tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "headrace.yml").write_text(f"name: shop\ntargets: {{dev: {{checkpoints: {stored.root}}}}}\n")
    (folder / "flows.py").write_text("")
    return folder


def headrace(project: Path, *words: str, answer: str | None = None) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["checkpoint", *words, "--project", str(project)], input=answer)
    return result.exit_code, result.stdout


def test_the_commands_answer_machines_with_one_object(stored: CheckpointFolder, project: Path) -> None:
    exit_code, printed = headrace(project, "show", "rides", "--json")
    assert (exit_code, json.loads(printed)["committed"]) == (0, [0, 2])
    exit_code, printed = headrace(project, "backup", "rides", "--json")
    backup = json.loads(printed)["backup"]
    assert (exit_code, Path(backup).parent) == (0, project / ".headrace" / "backups")

    stored.put("commits/1", "")
    exit_code, printed = headrace(project, "verify", "rides", "--json")
    flaws = json.loads(printed)["flaws"]
    assert (exit_code, [flaw["path"] for flaw in flaws]) == (3, ["spark/commits/1"])

    assert headrace(project, "restore", "rides", "--from", backup, "--json")[0] == 2
    exit_code, printed = headrace(project, "restore", "rides", "--from", backup, "--json", "--yes")
    assert (exit_code, json.loads(printed)["committed"]) == (0, 2)
    assert headrace(project, "verify", "rides")[0] == 0


def test_a_restore_asks_first_and_no_changes_nothing(stored: CheckpointFolder, project: Path) -> None:
    _, printed = headrace(project, "backup", "rides")
    before = files(stored.root)
    assert headrace(project, "restore", "rides", "--from", printed.strip(), answer="n\n")[0] == 1
    assert files(stored.root) == before
    assert headrace(project, "restore", "rides", "--from", printed.strip(), answer="y\n")[0] == 0


def test_progress_can_be_looked_after_while_the_project_cannot_be_imported(
    stored: CheckpointFolder, project: Path
) -> None:
    (project / "flows.py").write_text("import nothing_of_this_name")
    exit_code, printed = headrace(project, "show", "rides", "--json")
    assert (exit_code, json.loads(printed)["query_id"]) == (0, "6a1f")
