"""How much arrived lately in folders and tables of this machine, for `headrace check`. Elsewhere nothing is said."""

from __future__ import annotations

import glob
import json
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

# Files arrive more rarely than records: a landing folder often gets one every few minutes.
_WINDOW_SECONDS = 3600.0


def arriving_files(location: str) -> dict[str, float]:
    """Return the files and bytes a second of the last hour, by the times of the files. Takes a pattern of folders."""
    parts = urlsplit(location)
    if parts.scheme not in ("", "file"):
        return {}
    folders = [Path(each) for each in glob.glob(parts.path)]
    # Spark passes over hidden files and what begins with an underscore; so does this.
    return _per_second(
        entry.stat().st_size
        for folder in folders
        for entry in ([*folder.iterdir()] if folder.is_dir() else [folder])
        if entry.is_file() and entry.name[0] not in "._" and _lately(entry)
    )


def arriving_in_table(location: str) -> dict[str, float]:
    """Return the files and bytes a second that the versions of a Delta table of the last hour added."""
    parts = urlsplit(location)
    if parts.scheme not in ("", "file"):
        return {}
    return _per_second(
        size
        for entry in Path(parts.path, "_delta_log").glob("*.json")
        if _lately(entry)
        for size in _sizes(entry.read_text())
    )


def _per_second(sizes: Iterable[int]) -> dict[str, float]:
    """Count, or say nothing when something cannot be read: a file may go away while it is looked at."""
    try:
        found = list(sizes)
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return {"files": len(found) / _WINDOW_SECONDS, "bytes": sum(found) / _WINDOW_SECONDS}


def _sizes(version: str) -> Iterator[int]:
    """Yield the sizes of the files with rows that a version of a table added."""
    for line in version.splitlines():
        action = json.loads(line)
        for kind in ("add", "cdc"):
            if kind in action and (kind == "cdc" or action[kind]["dataChange"]):
                yield int(action[kind]["size"])


def _lately(path: Path) -> bool:
    return time.time() - os.stat(path).st_mtime < _WINDOW_SECONDS
