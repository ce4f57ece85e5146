"""The lock on a file that every part of Headrace uses. Two open files of one process exclude each other, too."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from headrace.clients.file_lock import lock_file
from headrace.errors import StackError
from headrace.stack.file_lock import file_lock


def test_a_locked_file_is_not_locked_again_until_it_is_closed(tmp_path: Path) -> None:
    first = lock_file(tmp_path / "new" / "lock")
    assert first is not None
    assert lock_file(tmp_path / "new" / "lock") is None
    first.close()
    second = lock_file(tmp_path / "new" / "lock")
    assert second is not None
    second.close()


def test_a_process_that_waits_says_so_once_and_gets_the_lock(tmp_path: Path) -> None:
    first = lock_file(tmp_path / "lock")
    assert first is not None
    waits: list[threading.Timer] = []

    def on_wait() -> None:
        waits.append(threading.Timer(0.3, first.close))
        waits[-1].start()

    second = lock_file(tmp_path / "lock", timeout_seconds=30, on_wait=on_wait)
    assert second is not None
    second.close()
    assert len(waits) == 1


def test_the_lock_of_a_folder_of_the_stack_ends_with_its_block_and_its_patience_with_an_error(tmp_path: Path) -> None:
    with file_lock(tmp_path / "lock"):
        with pytest.raises(StackError) as failure, file_lock(tmp_path / "lock", patience=0):
            pass
        assert failure.value.code == "HR-411"
    with file_lock(tmp_path / "lock", patience=0) as descriptor:
        assert descriptor > 2
