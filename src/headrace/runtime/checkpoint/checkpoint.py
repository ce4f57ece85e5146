"""Where a flow's progress lives, and how to read it.

Layout of a flow's folder, below the target's checkpoints root:

    FLOW/spark/      Spark's checkpoint: metadata, offsets/N, commits/N, sources/, state/
    FLOW/headrace/   what Headrace keeps beside it: the lease, the manifest, how far the audit has come, ids of topics
                     and of places, the order of the sources, lost offsets, heartbeats, the size of the state, where
                     continuous processing began

This module names and reads. It never deletes a checkpoint: that is a recovery, and planned as one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace.clients.storage import FileStore
from headrace.errors import RecoveryError
from headrace.flow.target import Target

# What continuous processing leaves out of an entry.
_NO_SETTINGS = '{"batchWatermarkMs": 0, "batchTimestampMs": 0}'


@dataclass(frozen=True)
class OffsetEntry:
    """One entry of the offset log: what a batch reads up to, and the watermark that it runs with.

    `offsets` holds, per source in the order of the plan, the JSON as Spark wrote it; None where a source had nothing.
    `settings` are those that the first batch froze. `continuous` when continuous processing wrote it, which notes
    neither a watermark nor a time; both are then 0.
    """

    batch_id: int
    watermark_ms: int
    timestamp_ms: int
    offsets: tuple[str | None, ...]
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    continuous: bool = False


@dataclass(frozen=True)
class Checkpoint:
    """The progress of one flow. Reading it needs no Spark unless the root is on another filesystem."""

    flow: str
    folder: str
    files: FileStore

    @classmethod
    def of(cls, flow: str, target: Target, files: FileStore) -> Checkpoint:
        """Return the checkpoint of a flow in a target."""
        return cls(flow, target.flow_folder(flow), files)

    @property
    def location(self) -> str:
        """What Spark is told as checkpointLocation."""
        return f"{self.folder}/spark"

    @property
    def house(self) -> str:
        """The folder for what Headrace keeps beside Spark's checkpoint."""
        return f"{self.folder}/headrace"

    def query_id(self) -> str | None:
        """Return the identity that Spark gave the checkpoint, or None before the first start."""
        path = f"{self.location}/metadata"
        found = self.files.read_bytes(path)
        if found is None:
            return None
        try:
            return str(json.loads(found)["id"])
        except (ValueError, KeyError, TypeError) as error:
            raise self._damaged(path, f"The metadata hold the identity of the checkpoint; here: {error}.") from error

    def planned(self) -> list[int]:
        """Return the batches in the offset log, oldest first."""
        return _numbers(self.files.names(f"{self.location}/offsets"))

    def committed(self) -> list[int]:
        """Return the batches in the commit log, oldest first."""
        return _numbers(self.files.names(f"{self.location}/commits"))

    def unfinished(self) -> int | None:
        """Return the batch that was begun and not committed, if there is one: the next start runs it again."""
        begun, done = self.planned(), self.committed()
        return begun[-1] if begun and begun[-1] not in done[-1:] else None

    def entry(self, batch_id: int) -> OffsetEntry:
        """Read one entry of the offset log."""
        path = f"{self.location}/offsets/{batch_id}"
        found = self.files.read_bytes(path)
        try:
            if found is None:
                raise ValueError("the file is not there")
            _version, settings, *offsets = found.decode().split("\n")
            continuous = not settings and any(offsets)
            read = json.loads(_NO_SETTINGS if continuous else settings)
            return OffsetEntry(
                batch_id,
                watermark_ms=int(read["batchWatermarkMs"]),
                timestamp_ms=int(read["batchTimestampMs"]),
                offsets=tuple(None if line == "-" else line for line in offsets),
                settings=read.get("conf", {}),
                continuous=continuous,
            )
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            why = f"An entry of the offset log holds a version, the settings and the offsets; here: {error}."
            raise self._damaged(path, why) from error

    def digest(self, batch_id: int) -> str:
        """Return the sha256 of one entry of the offset log. Spark writes an entry once, before the batch runs."""
        path = f"{self.location}/offsets/{batch_id}"
        found = self.files.read_bytes(path)
        if found is None:
            raise self._damaged(path, "The file is not there.")
        return hashlib.sha256(found).hexdigest()

    def range(self, batch_id: int, source: int) -> tuple[str, str] | None:
        """Return the offsets that a batch read of one source, `end` excluded; None when it read nothing."""
        end = self._end(batch_id, source)
        start = self._end(batch_id - 1, source) if batch_id else None
        if start is None:
            start = self.beginning(source)
        return None if start is None or end is None or start == end else (start, end)

    def lacks_beginning(self, batch_id: int, source: int) -> bool:
        """Whether a batch read something of a source, and where it began to is not written down.

        So it is for the first batch with rows of every source but Kafka's.
        """
        return (
            self._end(batch_id, source) is not None
            and ((self._end(batch_id - 1, source) if batch_id else None) or self.beginning(source)) is None
        )

    def source_files(self, source: int, start: str | None, end: str) -> list[str]:
        """Return the files that a source of files has read after one offset, up to another.

        Its log has an entry per offset. Spark puts entries together now and then and deletes the single ones.
        """
        folder = f"{self.location}/sources/{source}"
        names = self.files.names(folder)
        whole = sorted(int(name.removesuffix(".compact")) for name in names if name.endswith(".compact"))
        found = []
        for number in range(_log_offset(start) + 1, _log_offset(end) + 1):
            later = next((each for each in whole if each >= number), None)
            name = str(number) if str(number) in names else f"{later}.compact"
            text = self.files.read(f"{folder}/{name}")
            entries = [json.loads(line) for line in (text or "").split("\n")[1:]]
            found += [str(entry["path"]) for entry in entries if entry["batchId"] == number]
        return found

    def _end(self, batch_id: int, source: int) -> str | None:
        """Return the offsets after the last row that a batch read of one source."""
        offsets = self.entry(batch_id).offsets
        if source >= len(offsets):
            why = f"It holds the offsets of {len(offsets)} sources, and the flow reads at least {source + 1}."
            raise self._damaged(f"{self.location}/offsets/{batch_id}", why)
        return offsets[source]

    def beginning(self, source: int) -> str | None:
        """Return where the first batch began, or None. Kafka's source writes it down once, as `v1` and the JSON.

        Continuous processing does not; Headrace has noted it before it let the flow begin.
        """
        text = self.files.read(f"{self.location}/sources/{source}/0")
        if text and "{" in text:
            return text[text.index("{") :]
        began = self.began()
        return began[source] if source < len(began) else None

    def began(self) -> tuple[str, ...]:
        """Return the offsets, per source, at which continuous processing began; empty when nothing is noted."""
        text = self.files.read(f"{self.house}/began.json")
        note = json.loads(text) if text else {"query_id": None, "offsets": []}
        # Noted before Spark gave the checkpoint its id, or under this one; of an earlier checkpoint it says nothing.
        return tuple(note["offsets"]) if note["query_id"] in (None, self.query_id()) else ()

    def note_began(self, offsets: Sequence[str]) -> None:
        """Note where continuous processing begins. Durable when this returns."""
        note = {"query_id": self.query_id(), "offsets": list(offsets)}
        self.files.write(f"{self.house}/began.json", json.dumps(note))

    def _damaged(self, path: str, why: str) -> RecoveryError:
        return RecoveryError(
            f"Flow '{self.flow}': {path} cannot be read.",
            why=why,
            state="Nothing was changed. The sinks hold every batch up to the last entry of the commit log.",
            remedy="Restore the checkpoint from a backup, or start the flow under a new name.",
            code="HR-301",
        )


def _log_offset(offset: str | None) -> int:
    """Return how far a source of files is in its log, -1 before its beginning."""
    return int(json.loads(offset).get("logOffset", -1)) if offset else -1


def _numbers(names: list[str]) -> list[int]:
    return sorted(int(name) for name in names if name.isdigit())
