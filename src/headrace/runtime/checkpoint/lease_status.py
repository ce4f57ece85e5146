"""Who holds a checkpoint, asked from outside: without taking the lease, for even a moment of it would fail a start."""

from __future__ import annotations

import json
from pathlib import Path

import psutil

from headrace.clients.storage import is_local, local_path
from headrace.runtime.checkpoint.checkpoint import Checkpoint

# The kernel's list of locks, with the inode of each. Other systems than Linux have none.
_LOCKS = Path("/proc/locks")


def held_by(checkpoint: Checkpoint) -> dict[str, object] | None:
    """Return what the holder of the lease noted of itself, or None when nobody holds it.

    Storage of other machines has no locks to ask for: a lease there counts as held until its holder says `ended`, also
    when the holder has died.
    """
    taken = [name for name in checkpoint.files.names(f"{checkpoint.house}/leases") if name.isdigit()]
    note = f"{checkpoint.house}/leases/{taken[-1]}" if taken else f"{checkpoint.house}/lease"
    holder = _read(checkpoint.files.read(note))
    beat = checkpoint.files.read(f"{note}.beat") if taken else None
    if beat is not None:
        return holder if beat != "ended" else None
    if not is_local(checkpoint.house) or not holder:
        return None
    return holder if _is_locked(local_path(checkpoint.house) / "lease", holder) else None


def _is_locked(path: Path, holder: dict[str, object]) -> bool:
    if not path.exists():
        return False
    if not _LOCKS.exists():
        return psutil.pid_exists(int(str(holder.get("pid", -1))))
    inode = str(path.stat().st_ino)
    return any(line.split()[1] == "FLOCK" and line.split()[5].endswith(f":{inode}") for line in _lock_lines())


def _lock_lines() -> list[str]:
    # A process that waits for a lock has a line of its own, with an arrow in the second column.
    return [line for line in _LOCKS.read_text().splitlines() if len(line.split()) > 5 and "->" not in line]


def _read(text: str | None) -> dict[str, object]:
    try:
        read = json.loads(text or "{}")
    except ValueError:
        return {}
    return read if isinstance(read, dict) else {}
