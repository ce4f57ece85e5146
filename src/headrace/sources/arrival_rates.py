"""Recent arrival rates of local folders and tables, for `headrace check`. Other filesystems are not measured."""

import glob
import os
import time
from collections.abc import Iterable
from pathlib import Path

from headrace.clients.spark.delta_log import added_sizes, local_log_entries
from headrace.clients.storage import is_local, local_path

# Files arrive more rarely than records: a landing folder often gets one every few minutes.
_WINDOW_SECONDS = 3600.0


def file_arrival_rates(location: str) -> dict[str, float]:
    """Return files and bytes per second of the last hour, by file modification times. Accepts a glob."""
    if not is_local(location):
        return {}
    folders = [Path(folder) for folder in glob.glob(str(local_path(location)))]
    # Spark ignores files that begin with a dot or an underscore; so does this.
    return _units_per_second(
        entry.stat().st_size
        for folder in folders
        for entry in ([*folder.iterdir()] if folder.is_dir() else [folder])
        if entry.is_file() and entry.name[0] not in "._" and _is_recent(entry)
    )


def table_arrival_rates(location: str) -> dict[str, float]:
    """Return files and bytes per second that the versions of a Delta table added in the last hour."""
    if not is_local(location):
        return {}
    return _units_per_second(
        size for entry in local_log_entries(location) if _is_recent(entry) for size in added_sizes(entry.read_text())
    )


def _units_per_second(sizes: Iterable[int]) -> dict[str, float]:
    """Return the rates; empty if something cannot be read, such as a file that is deleted concurrently."""
    try:
        measured = list(sizes)
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return {"files": len(measured) / _WINDOW_SECONDS, "bytes": sum(measured) / _WINDOW_SECONDS}


def _is_recent(path: Path) -> bool:
    return time.time() - os.stat(path).st_mtime < _WINDOW_SECONDS
