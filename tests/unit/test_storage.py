"""Small files on this machine's disk: complete or missing."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from headrace.clients.storage import LocalFileStore, file_store, is_local, local_path
from headrace.errors import ConfigError
from headrace.sinks.local_folder import require_writable

FILES = LocalFileStore()


def test_what_is_written_is_read_and_folders_are_made(tmp_path: Path) -> None:
    path = str(tmp_path / "a" / "b" / "note.json")
    FILES.write(path, "Zürich\n")
    assert FILES.read(path) == "Zürich\n"


def test_a_file_or_a_folder_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    assert FILES.read(str(tmp_path / "absent")) is None
    assert FILES.names(str(tmp_path / "absent")) == []


def test_names_are_sorted(tmp_path: Path) -> None:
    for name in ("b", "a", "10", "9"):
        FILES.write(str(tmp_path / name), "")
    assert FILES.names(str(tmp_path)) == ["10", "9", "a", "b"]


def test_writing_leaves_no_other_file(tmp_path: Path) -> None:
    for text in ("one", "two"):
        FILES.write(str(tmp_path / "note"), text)
    assert [path.name for path in tmp_path.iterdir()] == ["note"]


def test_a_write_that_fails_leaves_the_old_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk shows at the flush, before the rename; no real disk can be filled here."""
    path = str(tmp_path / "note")
    FILES.write(path, "old")

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        FILES.write(path, "new and longer")
    assert FILES.read(path) == "old"


def test_a_reader_never_sees_a_part_of_a_file(tmp_path: Path) -> None:
    path = str(tmp_path / "note")
    texts = {letter * 200_000 for letter in "abcd"}
    FILES.write(path, "a" * 200_000)
    done = threading.Event()

    def write() -> None:
        for _ in range(10):
            for text in texts:
                FILES.write(path, text)
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    observed = set()
    while not done.is_set():
        observed.add(FILES.read(path))
    writer.join()
    assert observed <= texts


@pytest.mark.parametrize(
    ("location", "local"),
    [
        ("/data", True),
        ("data", True),
        ("file:///data", True),
        ("file:/data", True),
        ("s3a://b/x", False),
        ("hdfs:///x", False),
    ],
)
def test_a_location_without_another_scheme_is_on_this_machine(location: str, local: bool) -> None:
    assert is_local(location) is local


def test_a_file_uri_is_a_path() -> None:
    assert local_path("file:///data/x") == local_path("file:/data/x") == local_path("/data/x") == Path("/data/x")


def test_the_disk_is_read_without_a_session() -> None:
    assert isinstance(file_store("/data"), LocalFileStore)


# ---- before a start ----


def test_a_folder_that_can_be_made_is_writable_and_not_made_yet(tmp_path: Path) -> None:
    require_writable(str(tmp_path / "not" / "yet"))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_below_a_file_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="Not a directory") as refused:
        require_writable(str(tmp_path / "file" / "lake"))
    assert refused.value.code == "HR-111"


def test_a_folder_that_does_not_take_files_is_named_with_the_reason() -> None:
    """/proc takes no files, from root neither."""
    with pytest.raises(ConfigError, match="/proc") as refused:
        require_writable("file:///proc/lake")
    assert refused.value.code == "HR-111"


def test_other_storage_is_left_to_spark() -> None:
    require_writable("s3a://bucket/lake")
