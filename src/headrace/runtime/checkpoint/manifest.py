"""The manifest: checksums (sha256) of Spark's log files, stored next to the checkpoint.

Spark can checksum its state, but neither its offset log nor its commit log. A changed byte there could silently move a
flow to other rows. So a running flow records the checksum of each log file:

    FLOW/headrace/manifest/N    the new files after the commit of batch N, in the format of `sha256sum`

There is one file per batch, never rewritten, so any storage works. The last line is the checksum of the lines above.
Files whose entries Spark has purged are deleted.

If a driver dies between the commit of a batch and the record, only the files of that batch have no checksum. The next
start continues, and the next batch records them.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from headrace.runtime.checkpoint.checkpoint import Checkpoint

# The logs with one file per batch. Spark purges the oldest files.
LOGS = ("offsets", "commits")

# A file of a source's own log; `N.compact` contains the files up to N.
SOURCE_LOG = re.compile(r"(\d+)(\.compact)?")

_LAST_LINE = "# sha256 of the lines above: "
_LINE = re.compile(r"([0-9a-f]{64})  (\S.*)")


@dataclass(frozen=True)
class ManifestSums:
    """The content of the manifest: checksums by path in Spark's checkpoint, and the damaged parts."""

    sums: Mapping[str, str]
    damaged: tuple[str, ...]


class Manifest:
    """The manifest of one checkpoint. One thread of the running flow calls `record`; any process may read."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._folder = f"{checkpoint.metadata_dir}/manifest"
        self._parts: dict[int, dict[str, str]] | None = None

    def read(self) -> ManifestSums:
        """Read all checksums. Never raises because of damaged content."""
        sums: dict[str, str] = {}
        damaged = []
        for number in self._numbers():
            part = _parse(self._checkpoint.files.read_bytes(f"{self._folder}/{number}"))
            if part is None:
                damaged.append(f"manifest/{number}")
            else:
                sums |= part
        return ManifestSums(sums, tuple(damaged))

    def record(self, batch_id: int, offsets: str | None = None) -> None:
        """Record the new files after the commit of a batch; delete records of files that Spark purged.

        `offsets` is the checksum of the offset entry as the batch itself read it.
        """
        parts = self._load_parts()
        # A retried batch writes its files again.
        parts.pop(batch_id, None)
        recorded = {path for part in parts.values() for path in part}
        present = set(log_files(self._checkpoint))
        sums = {}
        for path in sorted(present - recorded):
            if path == f"offsets/{batch_id}" and offsets is not None:
                sums[path] = offsets
            elif self._is_complete(path, batch_id):
                content = self._checkpoint.files.read_bytes(f"{self._checkpoint.location}/{path}")
                if content is not None:
                    sums[path] = hashlib.sha256(content).hexdigest()
        self._checkpoint.files.write(f"{self._folder}/{batch_id}", _format(sums))
        parts[batch_id] = sums
        for number in [number for number, part in parts.items() if present.isdisjoint(part)]:
            self._checkpoint.files.delete(f"{self._folder}/{number}")
            del parts[number]

    def _is_complete(self, path: str, batch_id: int) -> bool:
        """Whether a file is complete: the next batch may have started, and its entries are recorded with its commit."""
        log, _, name = path.rpartition("/")
        return log not in LOGS or int(name) <= batch_id

    def _load_parts(self) -> dict[int, dict[str, str]]:
        if self._parts is None:
            content = {
                number: self._checkpoint.files.read_bytes(f"{self._folder}/{number}") for number in self._numbers()
            }
            self._parts = {number: _parse(text) or {} for number, text in content.items()}
        return self._parts

    def _numbers(self) -> list[int]:
        return sorted(int(name) for name in self._checkpoint.files.names(self._folder) if name.isdigit())


def log_files(checkpoint: Checkpoint) -> Iterator[str]:
    """Yield the paths in Spark's checkpoint of the existing files that a manifest covers."""
    files, location = checkpoint.files, checkpoint.location
    if "metadata" in files.names(location):
        yield "metadata"
    # Commits first: a batch that commits during the read then appears unfinished, not without offsets.
    for log in reversed(LOGS):
        yield from (f"{log}/{name}" for name in files.names(f"{location}/{log}") if name.isdigit())
    for source in files.names(f"{location}/sources"):
        names = files.names(f"{location}/sources/{source}") if source.isdigit() else []
        yield from (f"sources/{source}/{name}" for name in names if SOURCE_LOG.fullmatch(name))


def _format(sums: Mapping[str, str]) -> str:
    lines = "".join(f"{digest}  {path}\n" for path, digest in sums.items())
    return f"{lines}{_LAST_LINE}{hashlib.sha256(lines.encode()).hexdigest()}\n"


def _parse(content: bytes | None) -> dict[str, str] | None:
    """Return the checksums of one part, or None if it is damaged."""
    try:
        text = (content or b"").decode()
    except UnicodeDecodeError:
        return None
    sums = {match[2]: match[1] for match in map(_LINE.fullmatch, text.splitlines()) if match}
    return sums if text == _format(sums) else None
