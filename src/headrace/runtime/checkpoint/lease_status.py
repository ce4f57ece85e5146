"""Finds the current holder of a checkpoint without taking the lease, which could fail a start."""

import json
from pathlib import Path

import psutil

from headrace.clients.storage import is_local, local_path
from headrace.runtime.checkpoint.checkpoint import Checkpoint

# The kernel's list of locks, with the inode of each. Other systems than Linux have none.
_LOCKS = Path("/proc/locks")


def current_holder(checkpoint: Checkpoint) -> dict[str, object] | None:
    """Return the holder of the lease as recorded (pid, host, since), or None if the lease is free.

    Shared storage has no locks to inspect: a lease there counts as held until its holder records `ended`, even if the
    holder has died.
    """
    numbers = [name for name in checkpoint.files.names(f"{checkpoint.metadata_dir}/leases") if name.isdigit()]
    record = f"{checkpoint.metadata_dir}/leases/{numbers[-1]}" if numbers else f"{checkpoint.metadata_dir}/lease"
    holder = _read(checkpoint.files.read(record))
    heartbeat = checkpoint.files.read(f"{record}.beat") if numbers else None
    if heartbeat is not None:
        return holder if heartbeat != "ended" else None
    if not is_local(checkpoint.metadata_dir) or not holder:
        return None
    return holder if _is_locked(local_path(checkpoint.metadata_dir) / "lease", holder) else None


def _is_locked(path: Path, holder: dict[str, object]) -> bool:
    if not path.exists():
        return False
    if not _LOCKS.exists():
        return psutil.pid_exists(int(str(holder.get("pid", -1))))
    inode = str(path.stat().st_ino)
    return any(line.split()[1] == "FLOCK" and line.split()[5].endswith(f":{inode}") for line in _lock_lines())


def _lock_lines() -> list[str]:
    # A process that waits for a lock has its own line, with an arrow in the second column.
    return [line for line in _LOCKS.read_text().splitlines() if len(line.split()) > 5 and "->" not in line]


def _read(text: str | None) -> dict[str, object]:
    try:
        record = json.loads(text or "{}")
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}
