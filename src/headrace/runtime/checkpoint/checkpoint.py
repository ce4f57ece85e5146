"""Reads the checkpoint of a flow: its location, offset log and commit log.

Layout of a flow's folder, below the target's checkpoints root:

    FLOW/spark/      Spark's checkpoint: metadata, offsets/N, commits/N, sources/, state/
    FLOW/headrace/   Headrace's metadata: the lease, the manifest, the progress of the audit, ids of topics and of
                     tables, the order of the sources, lost offsets, idle ticks, the size of the state, the start of
                     continuous processing

This module never deletes a checkpoint: that is a recovery operation.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from headrace.clients.storage import FileStore, file_store
from headrace.errors import RecoveryError
from headrace.flow.target import Target

# Continuous processing omits the settings of an entry.
_NO_SETTINGS = '{"batchWatermarkMs": 0, "batchTimestampMs": 0}'


@dataclass(frozen=True)
class OffsetEntry:
    """One entry of the offset log: the end offsets of a batch, and its watermark.

    `offsets` holds Spark's JSON per source, in the order of the plan; None if a source had no data. `settings` are
    those that the first batch pinned. `continuous` is True for continuous processing, which records neither a watermark
    nor a timestamp; both are then 0.
    """

    batch_id: int
    watermark_ms: int
    timestamp_ms: int
    offsets: tuple[str | None, ...]
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    continuous: bool = False


@dataclass(frozen=True)
class Checkpoint:
    """The checkpoint of one flow. Reading it needs Spark only if the files are not local."""

    flow: str
    folder: str
    files: FileStore

    @classmethod
    def of(cls, flow: str, target: Target, spark: SparkSession | None = None) -> Checkpoint:
        """Return the checkpoint of a flow in a target. Without a session only local files can be read."""
        return cls(flow, target.flow_folder(flow), file_store(target.checkpoints, spark))

    @property
    def location(self) -> str:
        """The checkpointLocation for Spark."""
        return f"{self.folder}/spark"

    @property
    def metadata_dir(self) -> str:
        """The folder of Headrace's metadata, next to Spark's checkpoint."""
        return f"{self.folder}/headrace"

    def query_id(self) -> str | None:
        """Return the query id of the checkpoint, or None before the first start."""
        path = f"{self.location}/metadata"
        content = self.files.read_bytes(path)
        if content is None:
            return None
        try:
            return str(json.loads(content)["id"])
        except (ValueError, KeyError, TypeError) as error:
            raise self._damaged_error(
                path, f"The metadata hold the identity of the checkpoint; here: {error}."
            ) from error

    def planned_batches(self) -> list[int]:
        """Return the batches in the offset log, oldest first."""
        return _numbers(self.files.names(f"{self.location}/offsets"))

    def committed_batches(self) -> list[int]:
        """Return the batches in the commit log, oldest first."""
        return _numbers(self.files.names(f"{self.location}/commits"))

    def unfinished_batch(self) -> int | None:
        """Return the batch that is planned and not committed, or None. The next start retries it."""
        planned, committed = self.planned_batches(), self.committed_batches()
        return planned[-1] if planned and planned[-1] not in committed[-1:] else None

    def offset_entry(self, batch_id: int) -> OffsetEntry:
        """Read one entry of the offset log."""
        path = f"{self.location}/offsets/{batch_id}"
        content = self.files.read_bytes(path)
        try:
            if content is None:
                raise ValueError("the file does not exist")
            _version, settings, *offsets = content.decode().split("\n")
            continuous = not settings and any(offsets)
            metadata = json.loads(_NO_SETTINGS if continuous else settings)
            return OffsetEntry(
                batch_id,
                watermark_ms=int(metadata["batchWatermarkMs"]),
                timestamp_ms=int(metadata["batchTimestampMs"]),
                offsets=tuple(None if line == "-" else line for line in offsets),
                settings=metadata.get("conf", {}),
                continuous=continuous,
            )
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            why = f"An entry of the offset log has a version, the settings and the offsets; here: {error}."
            raise self._damaged_error(path, why) from error

    def digest(self, batch_id: int) -> str:
        """Return the sha256 of one entry of the offset log. Spark writes an entry once, before the batch runs."""
        path = f"{self.location}/offsets/{batch_id}"
        content = self.files.read_bytes(path)
        if content is None:
            raise self._damaged_error(path, "The file does not exist.")
        return hashlib.sha256(content).hexdigest()

    def offset_range(self, batch_id: int, source: int) -> tuple[str, str] | None:
        """Return the offset range that a batch read from a source, `end` excluded; None if it read nothing."""
        end = self._end_offset(batch_id, source)
        start = self._end_offset(batch_id - 1, source) if batch_id else None
        if start is None:
            start = self.start_offset(source)
        return None if start is None or end is None or start == end else (start, end)

    def lacks_start_offset(self, batch_id: int, source: int) -> bool:
        """Whether a batch read from a source and its start offset is not recorded.

        This is the case for the first batch with rows of every source except Kafka.
        """
        return (
            self._end_offset(batch_id, source) is not None
            and ((self._end_offset(batch_id - 1, source) if batch_id else None) or self.start_offset(source)) is None
        )

    def source_files(self, source: int, start: str | None, end: str) -> list[str]:
        """Return the files that a file source has read after one offset, up to another.

        Its log has one entry per offset. Spark compacts entries and deletes the single ones.
        """
        folder = f"{self.location}/sources/{source}"
        names = self.files.names(folder)
        compacted = sorted(int(name.removesuffix(".compact")) for name in names if name.endswith(".compact"))
        paths: list[str] = []
        for number in range(_log_offset(start) + 1, _log_offset(end) + 1):
            compact = next((last for last in compacted if last >= number), None)
            name = str(number) if str(number) in names else f"{compact}.compact"
            text = self.files.read(f"{folder}/{name}")
            entries = [json.loads(line) for line in (text or "").split("\n")[1:]]
            paths += [str(entry["path"]) for entry in entries if entry["batchId"] == number]
        return paths

    def _end_offset(self, batch_id: int, source: int) -> str | None:
        """Return the end offset of a batch for one source."""
        offsets = self.offset_entry(batch_id).offsets
        if source >= len(offsets):
            why = f"It has the offsets of {len(offsets)} sources, and the flow reads at least {source + 1}."
            raise self._damaged_error(f"{self.location}/offsets/{batch_id}", why)
        return offsets[source]

    def start_offset(self, source: int) -> str | None:
        """Return the start offset of the first batch, or None. The Kafka source records it once, as `v1` and the JSON.

        Continuous processing does not; Headrace records it before the first start.
        """
        text = self.files.read(f"{self.location}/sources/{source}/0")
        if text and "{" in text:
            return text[text.index("{") :]
        start = self.continuous_start()
        return start[source] if source < len(start) else None

    def continuous_start(self) -> tuple[str, ...]:
        """Return the start offsets of continuous processing per source; empty if not recorded."""
        text = self.files.read(f"{self.metadata_dir}/began.json")
        record = json.loads(text) if text else {"query_id": None, "offsets": []}
        # Recorded before the checkpoint had its id, or with this id. A record of an earlier checkpoint does not apply.
        return tuple(record["offsets"]) if record["query_id"] in (None, self.query_id()) else ()

    def record_continuous_start(self, offsets: Sequence[str]) -> None:
        """Record the start offsets of continuous processing. Durable when this returns."""
        record = {"query_id": self.query_id(), "offsets": list(offsets)}
        self.files.write(f"{self.metadata_dir}/began.json", json.dumps(record))

    def _damaged_error(self, path: str, why: str) -> RecoveryError:
        return RecoveryError(
            f"Flow '{self.flow}': {path} cannot be read.",
            why=why,
            state="Nothing was changed. The sinks hold every batch up to the last entry of the commit log.",
            remedy="Restore the checkpoint from a backup, or start the flow under a new name.",
            code="HR-301",
        )


def _log_offset(offset: str | None) -> int:
    """Return the position of a file source in its log, -1 before the first entry."""
    return int(json.loads(offset).get("logOffset", -1)) if offset else -1


def _numbers(names: list[str]) -> list[int]:
    return sorted(int(name) for name in names if name.isdigit())
