"""Locks the local folders that a flow writes: one writing process per folder.

A commit to a Delta table, and to the log of a folder of files, is a rename. On a local disk Hadoop checks that the name
is free and then renames, which is not atomic: one process can overwrite the commit of another. So a process locks the
folders that its flows write. Its own flows may share a folder: Delta serialises them itself.

The lock is an operating system lock on a file next to the folder, `_headrace_locks/NAME`. It ends with the process.
With `lease.kind: record` several machines share the folders and such a lock is impossible: tables are then not locked,
see docs/operate/leases.md.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from io import TextIOWrapper
from pathlib import Path

from headrace.clients.file_lock import lock_file
from headrace.clients.storage import is_local, local_path
from headrace.errors import RecoveryError
from headrace.flow.flow import Flow
from headrace.flow.sink import WritesFolder, leaf_sinks
from headrace.flow.target import Target

# The folders that this process writes, each with its lock file and the number of holders.
_locked: dict[Path, tuple[TextIOWrapper, int]] = {}
_mutex = threading.Lock()


@contextmanager
def lock_sink_folders(flow: Flow, target: Target) -> Iterator[None]:
    """Lock the local folders of a flow's sinks, or raise if another process has locked one."""
    with ExitStack() as stack:
        if target.lease.kind != "record":
            for _, sink in leaf_sinks(flow.sink):
                if isinstance(sink, WritesFolder):
                    stack.enter_context(lock_folder(sink.folder(target)))
        yield


@contextmanager
def lock_folder(location: str) -> Iterator[None]:
    """Lock a folder for this process, or raise if another process has locked it. Only local folders need a lock."""
    if not is_local(location):
        yield
        return
    folder = local_path(location).resolve()
    _lock(folder)
    try:
        yield
    finally:
        _unlock(folder)


def _lock(folder: Path) -> None:
    with _mutex:
        file, holders = _locked.get(folder, (None, 0))
        if file is None:
            path = folder.parent / "_headrace_locks" / folder.name
            file = lock_file(path)
            if file is None:
                raise RecoveryError(
                    f"{folder} is written by another process.",
                    why=f"Process {path.read_text().strip() or 'unknown'} writes it. On a local disk two processes can "
                    "overwrite each other's commits.",
                    state="Nothing was started and nothing was written.",
                    remedy="Stop the other process, or run all flows that write this folder with one `headrace run`.",
                    code="HR-337",
                )
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
        _locked[folder] = (file, holders + 1)


def _unlock(folder: Path) -> None:
    with _mutex:
        file, holders = _locked.pop(folder)
        if holders > 1:
            _locked[folder] = (file, holders - 1)
        else:
            file.close()
