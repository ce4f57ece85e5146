"""The sha256 of what Spark writes into a checkpoint's logs, kept beside the checkpoint.

Spark checksums its state, if asked to, but neither its offset log nor its commit log. A byte that changes there may
move a flow to other rows without a word. So a running flow notes the sum of each file of the logs:

    FLOW/headrace/manifest/N    the files that were new after batch N was committed, as `sha256sum` writes and reads it

One file a batch: nothing is rewritten, and any storage can do it. The last line is the sum of the lines above. Files
whose entries Spark has purged are deleted.

A driver that dies between the commit of a batch and the note leaves at most the files of that batch without a sum. The
next start goes on; they get theirs with the next batch.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from headrace.runtime.checkpoint.checkpoint import Checkpoint

# The logs that grow by one file a batch. Both are purged from their beginning.
LOGS = ("offsets", "commits")

# A file of a source's own log; `N.compact` holds what the files up to N held.
SOURCE_LOG = re.compile(r"(\d+)(\.compact)?")

_LAST_LINE = "# sha256 of the lines above: "
_LINE = re.compile(r"([0-9a-f]{64})  (\S.*)")


@dataclass(frozen=True)
class Known:
    """What the manifest holds: the sum of each file, by its path in Spark's checkpoint, and parts that are damaged."""

    sums: Mapping[str, str]
    damaged: tuple[str, ...]


class Manifest:
    """The manifest of one checkpoint. `record` is called by one thread of the running flow; reading by anybody."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._folder = f"{checkpoint.house}/manifest"
        self._parts: dict[int, dict[str, str]] | None = None

    def known(self) -> Known:
        """Read everything. Never raises for what it finds."""
        sums: dict[str, str] = {}
        damaged = []
        for number in self._numbers():
            part = _parsed(self._checkpoint.files.read_bytes(f"{self._folder}/{number}"))
            if part is None:
                damaged.append(f"manifest/{number}")
            else:
                sums |= part
        return Known(sums, tuple(damaged))

    def record(self, batch_id: int, offsets: str | None = None) -> None:
        """Note the files that are new since the last call, after a batch was committed; forget what Spark purged.

        `offsets` is the sum of the batch's offsets as the batch itself read them.
        """
        parts = self._loaded()
        # A batch that is run again writes its files again.
        parts.pop(batch_id, None)
        noted = {path for part in parts.values() for path in part}
        present = set(log_files(self._checkpoint))
        sums = {}
        for path in sorted(present - noted):
            if path == f"offsets/{batch_id}" and offsets is not None:
                sums[path] = offsets
            elif self._belongs(path, batch_id):
                found = self._checkpoint.files.read_bytes(f"{self._checkpoint.location}/{path}")
                if found is not None:
                    sums[path] = hashlib.sha256(found).hexdigest()
        self._checkpoint.files.write(f"{self._folder}/{batch_id}", _written(sums))
        parts[batch_id] = sums
        for number in [number for number, part in parts.items() if present.isdisjoint(part)]:
            self._checkpoint.files.delete(f"{self._folder}/{number}")
            del parts[number]

    def _belongs(self, path: str, batch_id: int) -> bool:
        """Whether a file is whole by now: the next batch may have begun, and its entries are noted with its commit."""
        log, _, name = path.rpartition("/")
        return log not in LOGS or int(name) <= batch_id

    def _loaded(self) -> dict[int, dict[str, str]]:
        if self._parts is None:
            read = {number: self._checkpoint.files.read_bytes(f"{self._folder}/{number}") for number in self._numbers()}
            self._parts = {number: _parsed(text) or {} for number, text in read.items()}
        return self._parts

    def _numbers(self) -> list[int]:
        return sorted(int(name) for name in self._checkpoint.files.names(self._folder) if name.isdigit())


def log_files(checkpoint: Checkpoint) -> Iterator[str]:
    """Yield the paths, in Spark's checkpoint, of the files that a manifest is about, those that are there."""
    files, location = checkpoint.files, checkpoint.location
    if "metadata" in files.names(location):
        yield "metadata"
    # Commits first: a batch that is committed meanwhile then shows as unfinished, and not as one without offsets.
    for log in reversed(LOGS):
        yield from (f"{log}/{name}" for name in files.names(f"{location}/{log}") if name.isdigit())
    for source in files.names(f"{location}/sources"):
        names = files.names(f"{location}/sources/{source}") if source.isdigit() else []
        yield from (f"sources/{source}/{name}" for name in names if SOURCE_LOG.fullmatch(name))


def _written(sums: Mapping[str, str]) -> str:
    lines = "".join(f"{digest}  {path}\n" for path, digest in sums.items())
    return f"{lines}{_LAST_LINE}{hashlib.sha256(lines.encode()).hexdigest()}\n"


def _parsed(found: bytes | None) -> dict[str, str] | None:
    """Return the sums of one part, or None when it is not what was written."""
    try:
        text = (found or b"").decode()
    except UnicodeDecodeError:
        return None
    sums = {match[2]: match[1] for match in map(_LINE.fullmatch, text.splitlines()) if match}
    return sums if text == _written(sums) else None
