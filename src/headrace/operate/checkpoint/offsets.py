"""Offsets as each kind of source writes them, and what the next start of a flow reads by them."""

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
from headrace.spark_plan.source_order import PlannedSource


@dataclass(frozen=True)
class Range:
    """One line of what a source is read by: a partition of a topic, or the whole of another source.

    `end` is None when the next start itself decides how far to read. `latest` is the end of the topic now, and None
    when there is no topic or the broker did not say.
    """

    place: str
    start: int | str | None
    end: int | str | None
    latest: int | None = None
    topic: str | None = None
    partition: int | None = None

    @classmethod
    def of(cls, partition: Partition, start: int, end: int | None, latest: int | None = None) -> Range:
        """Return the range of a topic's partition."""
        return cls(f"{partition[0]}[{partition[1]}]", start, end, latest, *partition)

    @property
    def records(self) -> int | None:
        """How many offsets the range has, where they can be counted."""
        end = self.latest if self.end is None else self.end
        return end - (self.start or 0) if isinstance(end, int) and not isinstance(self.start, str) else None


@dataclass(frozen=True)
class SourceReads:
    """What the next start reads of one source. `unknown` says why the end of a topic is not known."""

    source: int
    input: str | None
    kind: str
    ranges: tuple[Range, ...]
    files: tuple[str, ...] = ()
    unknown: str | None = None

    def as_dict(self) -> dict[str, object]:
        """The source as `--json` prints it."""
        return asdict(self) | {"ranges": [asdict(each) | {"records": each.records} for each in self.ranges]}


def next_reads(checkpoint: Checkpoint, target: Target, inputs: Sequence[str]) -> Iterator[SourceReads]:
    """Yield, per source, the range of the unfinished batch; or where the next one begins, and the end of its topic."""
    begun = checkpoint.planned_batches()
    if not begun:
        return
    last, unfinished = begun[-1], checkpoint.unfinished_batch()
    entry = checkpoint.offset_entry(last)
    order = read_source_order(checkpoint)
    names = inputs if order is None else [_called(place) for place in order]
    for source, end in enumerate(entry.offsets):
        name = names[source] if len(names) == len(entry.offsets) else None
        if unfinished is None:
            yield _from_here(source, name, _read(end), target)
        else:
            found = checkpoint.offset_range(last, source)
            start = _read(found[0]) if found else _read(end)
            yield _again(checkpoint, source, name, start, _read(end))


def committed_offsets(checkpoint: Checkpoint) -> dict[Partition, int]:
    """Return how far a flow has committed what it read of topics: by partition the offset after the last record."""
    committed = checkpoint.committed_batches()
    sources = [_read(text) for text in checkpoint.offset_entry(committed[-1]).offsets] if committed else []
    kafka = [_partitions(offsets) for offsets in sources if kind_of(offsets) == "kafka"]
    return {partition: offset for offsets in kafka for partition, offset in offsets.items()}


def _called(place: PlannedSource) -> str:
    return place.input if place.role == "rows" else str(place)


def _from_here(source: int, name: str | None, offsets: Any, target: Target) -> SourceReads:
    kind = kind_of(offsets)
    if kind != "kafka":
        return SourceReads(source, name, kind, (Range(kind, said(offsets), None),))
    ends: dict[Partition, int] = {}
    unknown = None
    try:
        ends = _ends(target, offsets)
    except HeadraceError as error:
        unknown = error.what
    # A partition that was added since the last batch is read from 0.
    starts = dict.fromkeys(ends, 0) | _partitions(offsets)
    ranges = [Range.of(each, starts[each], None, ends.get(each)) for each in sorted(starts)]
    return SourceReads(source, name, kind, tuple(ranges), unknown=unknown)


def _again(checkpoint: Checkpoint, source: int, name: str | None, start: Any, end: Any) -> SourceReads:
    kind = kind_of(end)
    if kind == "kafka":
        before = _partitions(start)
        # A partition that was added during the batch is read from 0.
        ranges = [Range.of(each, before.get(each, 0), offset) for each, offset in sorted(_partitions(end).items())]
        return SourceReads(source, name, kind, tuple(ranges))
    files: tuple[str, ...] = ()
    if kind == "files":
        begun = json.dumps(start) if start != end and kind_of(start) == "files" else None
        files = tuple(checkpoint.source_files(source, begun, json.dumps(end)))
    return SourceReads(source, name, kind, (Range(kind, said(start), said(end)),), files)


def kind_of(offsets: Any) -> str:
    """Return what kind of source writes offsets like these."""
    if isinstance(offsets, dict) and "reservoirVersion" in offsets:
        return "delta"
    if isinstance(offsets, dict) and set(offsets) == {"logOffset"}:
        return "files"
    if isinstance(offsets, dict) and offsets and all(isinstance(each, dict) for each in offsets.values()):
        return "kafka"
    return "other"


def said(offsets: Any) -> int | str | None:
    """Return the offsets of any source but Kafka in a few words."""
    match kind_of(offsets):
        case "delta":
            # -1 stands for the version as a whole: nothing of it is read yet.
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


def _read(text: str | None) -> Any:
    try:
        return None if text is None else json.loads(text)
    except ValueError:
        return re.sub(r"\s+", " ", text or "")
