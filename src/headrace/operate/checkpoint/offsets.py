"""Parse the offsets of each kind of source, and work out what the next start of a flow reads."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from headrace.clients.kafka import list_topics
from headrace.clients.positions import Partition, end_offsets
from headrace.errors import HeadraceError
from headrace.flow.target import Target
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.checkpoint.source_order import read_source_order


@dataclass(frozen=True)
class OffsetRange:
    """The range of a partition of a topic, or of another source as a whole.

    `end` is None if the next start decides how far to read. `latest` is the present end of the topic, and None if there
    is no topic or the broker did not answer.
    """

    place: str
    start: int | str | None
    end: int | str | None
    latest: int | None = None
    topic: str | None = None
    partition: int | None = None

    @classmethod
    def of(cls, partition: Partition, start: int, end: int | None, latest: int | None = None) -> OffsetRange:
        """Return the range of a topic's partition."""
        return cls(f"{partition[0]}[{partition[1]}]", start, end, latest, *partition)

    @property
    def records(self) -> int | None:
        """The number of offsets in the range, if they can be counted."""
        end = self.latest if self.end is None else self.end
        return end - (self.start or 0) if isinstance(end, int) and not isinstance(self.start, str) else None


@dataclass(frozen=True)
class SourceReads:
    """What the next start reads of one source. `unknown` says why the end of a topic is not known."""

    source: int
    input: str | None
    kind: str
    ranges: tuple[OffsetRange, ...]
    files: tuple[str, ...] = ()
    unknown: str | None = None

    def as_dict(self) -> dict[str, object]:
        """The source as `--json` prints it."""
        return asdict(self) | {"ranges": [asdict(range_) | {"records": range_.records} for range_ in self.ranges]}


def next_reads(checkpoint: Checkpoint, target: Target, inputs: Sequence[str]) -> Iterator[SourceReads]:
    """Yield, per source, the range of the unfinished batch, or the start of the next one and the end of its topic."""
    planned = checkpoint.planned_batches()
    if not planned:
        return
    last, unfinished = planned[-1], checkpoint.unfinished_batch()
    entry = checkpoint.offset_entry(last)
    order = read_source_order(checkpoint)
    names = inputs if order is None else [place.input if place.role == "rows" else str(place) for place in order]
    for source, end in enumerate(entry.offsets):
        name = names[source] if len(names) == len(entry.offsets) else None
        if unfinished is None:
            yield _reads_from(source, name, _parse(end), target)
        else:
            offsets = checkpoint.offset_range(last, source)
            start = _parse(offsets[0]) if offsets else _parse(end)
            yield _rereads(checkpoint, source, name, start, _parse(end))


def committed_offsets(checkpoint: Checkpoint) -> dict[Partition, int]:
    """Return the committed offsets of a flow: by partition the offset after the last record."""
    committed = checkpoint.committed_batches()
    sources = [_parse(text) for text in checkpoint.offset_entry(committed[-1]).offsets] if committed else []
    kafka = [_partitions(offsets) for offsets in sources if source_kind(offsets) == "kafka"]
    return {partition: offset for offsets in kafka for partition, offset in offsets.items()}


def _reads_from(source: int, name: str | None, offsets: Any, target: Target) -> SourceReads:
    kind = source_kind(offsets)
    if kind != "kafka":
        return SourceReads(source, name, kind, (OffsetRange(kind, describe_offsets(offsets), None),))
    ends: dict[Partition, int] = {}
    unknown = None
    try:
        ends = _ends(target, offsets)
    except HeadraceError as error:
        unknown = error.what
    # A partition that was added since the last batch is read from 0.
    starts = dict.fromkeys(ends, 0) | _partitions(offsets)
    ranges = [OffsetRange.of(partition, starts[partition], None, ends.get(partition)) for partition in sorted(starts)]
    return SourceReads(source, name, kind, tuple(ranges), unknown=unknown)


def _rereads(checkpoint: Checkpoint, source: int, name: str | None, start: Any, end: Any) -> SourceReads:
    kind = source_kind(end)
    if kind == "kafka":
        before = _partitions(start)
        # A partition that was added during the batch is read from 0.
        ranges = [
            OffsetRange.of(partition, before.get(partition, 0), offset)
            for partition, offset in sorted(_partitions(end).items())
        ]
        return SourceReads(source, name, kind, tuple(ranges))
    files: tuple[str, ...] = ()
    if kind == "files":
        first_offset = json.dumps(start) if start != end and source_kind(start) == "files" else None
        files = tuple(checkpoint.source_files(source, first_offset, json.dumps(end)))
    return SourceReads(source, name, kind, (OffsetRange(kind, describe_offsets(start), describe_offsets(end)),), files)


def source_kind(offsets: Any) -> str:
    """Return the kind of source that writes such offsets."""
    if isinstance(offsets, dict) and "reservoirVersion" in offsets:
        return "delta"
    if isinstance(offsets, dict) and set(offsets) == {"logOffset"}:
        return "files"
    if isinstance(offsets, dict) and offsets and all(isinstance(partitions, dict) for partitions in offsets.values()):
        return "kafka"
    return "other"


def describe_offsets(offsets: Any) -> int | str | None:
    """Describe the offsets of any source except Kafka."""
    match source_kind(offsets):
        case "delta":
            # -1 means that no file of the version is read yet.
            index = f", file {offsets['index']}" if int(offsets.get("index", -1)) >= 0 else ""
            return f"version {offsets['reservoirVersion']}{index}"
        case "files":
            return f"entry {offsets['logOffset']}"
    return offsets if isinstance(offsets, int) or offsets is None else json.dumps(offsets)


def _partitions(offsets: Any) -> dict[Partition, int]:
    return {
        (topic, int(partition)): int(offset)
        for topic, partitions in (offsets or {}).items()
        for partition, offset in partitions.items()
    }


def _ends(target: Target, offsets: Any) -> dict[Partition, int]:
    """Ask the broker for the ends of all partitions of the topics. Raises when it does not answer."""
    present = list_topics(target)
    return end_offsets(target, [(topic, number) for topic in offsets for number in range(present.get(topic, 0))])


def _parse(text: str | None) -> Any:
    try:
        return None if text is None else json.loads(text)
    except ValueError:
        return re.sub(r"\s+", " ", text or "")
