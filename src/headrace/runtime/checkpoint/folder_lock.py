"""One writing process per folder of a local disk.

A commit to a Delta table, and to the log of a folder of files, is a rename. On a local disk Hadoop looks whether the
name is free and renames then, over whatever came in between: of two processes one can wipe out the other's commit. So
a process locks the folders that its flows write. Its own flows may share a folder: Delta serialises them by itself.

The lock is one of the operating system, on a file beside the folder, `_headrace_locks/NAME`. It ends with the process.
A target that declares leases by record says that machines share its folders, where such a lock cannot be had: there
nothing locks a table, and docs/operate/leases.md says what that means.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from io import TextIOWrapper
from pathlib import Path

from headrace.clients.storage import is_local, local_path
from headrace.errors import RecoveryError
from headrace.flow.flow import Flow
from headrace.flow.sink import InFolder, leaves
from headrace.flow.target import Target

# The folders that this process writes, each with the file that locks it and how many hold it.
_held: dict[Path, tuple[TextIOWrapper, int]] = {}
_changing = threading.Lock()


@contextmanager
def sole_writer(flow: Flow, target: Target) -> Iterator[None]:
    """Keep other processes from writing the local folders of a flow's sinks, or raise when one of them does."""
    with ExitStack() as stack:
        if target.lease.kind != "record":
            for _, sink in leaves(flow.sink):
                if isinstance(sink, InFolder):
                    stack.enter_context(writing(sink.folder(target)))
        yield


@contextmanager
def writing(location: str) -> Iterator[None]:
    """Lock one folder for this process, or raise when another one holds it. Other storage than a disk needs none."""
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
    with _changing:
        file, holders = _held.get(folder, (None, 0))
        if file is None:
            path = folder.parent / "_headrace_locks" / folder.name
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("a+")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                file.seek(0)
                holder = file.read().strip()
                file.close()
                raise RecoveryError(
                    f"{folder} is written by another process.",
                    why=f"Process {holder or 'unknown'} writes it. On a local disk two processes can wipe out each "
                    "other's commits.",
                    state="Nothing was started and nothing was written.",
                    remedy="Stop the other process, or run all flows that write this folder with one `headrace run`.",
                    code="HR-337",
                ) from error
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
        _held[folder] = (file, holders + 1)


def _unlock(folder: Path) -> None:
    with _changing:
        file, holders = _held.pop(folder)
        if holders > 1:
            _held[folder] = (file, holders - 1)
        else:
            file.close()
