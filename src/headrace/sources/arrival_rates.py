"""Recent arrival rates of local folders and tables, for `headrace check`. Other filesystems are not measured."""

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


def file_arrival_rates(location: str) -> dict[str, float]:
    """Return files and bytes per second of the last hour, by file modification times. Accepts a glob."""
    parts = urlsplit(location)
    if parts.scheme not in ("", "file"):
        return {}
    folders = [Path(folder) for folder in glob.glob(parts.path)]
    # Spark ignores files that begin with a dot or an underscore; so does this.
    return _per_second(
        entry.stat().st_size
        for folder in folders
        for entry in ([*folder.iterdir()] if folder.is_dir() else [folder])
        if entry.is_file() and entry.name[0] not in "._" and _is_recent(entry)
    )


def table_arrival_rates(location: str) -> dict[str, float]:
    """Return files and bytes per second that the versions of a Delta table added in the last hour."""
    parts = urlsplit(location)
    if parts.scheme not in ("", "file"):
        return {}
    return _per_second(
        size
        for entry in Path(parts.path, "_delta_log").glob("*.json")
        if _is_recent(entry)
        for size in _sizes(entry.read_text())
    )


def _per_second(sizes: Iterable[int]) -> dict[str, float]:
    """Return the rates; empty if something cannot be read, such as a file that is deleted concurrently."""
    try:
        measured = list(sizes)
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return {"files": len(measured) / _WINDOW_SECONDS, "bytes": sum(measured) / _WINDOW_SECONDS}


def _sizes(version: str) -> Iterator[int]:
    """Yield the sizes of the data files that a version of a table added."""
    for line in version.splitlines():
        action = json.loads(line)
        for kind in ("add", "cdc"):
            if kind in action and (kind == "cdc" or action[kind]["dataChange"]):
                yield int(action[kind]["size"])


def _is_recent(path: Path) -> bool:
    return time.time() - os.stat(path).st_mtime < _WINDOW_SECONDS
