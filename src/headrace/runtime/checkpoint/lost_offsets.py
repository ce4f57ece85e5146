"""Records lost offsets that a flow continued without, because its source accepts loss: one file per batch.

    FLOW/headrace/lost/BATCH.json

A file is written before its batch can be committed, so a crash loses no record. A retried batch only adds ranges that
earlier attempts did not find.

| kind        | means                                                                                                 |
|-------------|-------------------------------------------------------------------------------------------------------|
| lost        | the offsets were lost before the batch was read: none of their rows is in the sinks                   |
| may be lost | they were lost while the batch was read, or between two attempts: their rows may be in the sinks      |
| not audited | they were lost after the batch: their rows are in the sinks, but invalid and late rows are unrecorded |
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum

from headrace.flow.source import CanLoseRows, MissingOffsets
from headrace.runtime.checkpoint.checkpoint import Checkpoint


class LossKind(StrEnum):
    """Whether the rows of lost offsets are missing in the sinks."""

    LOST = "lost"
    MAYBE = "may be lost"
    NOT_AUDITED = "not audited"


@dataclass(frozen=True)
class LostRange:
    """A range of lost offsets of one partition, from `first` to before `end`; None if the end is unknown.

    | field    | meaning                                                                      |
    |----------|------------------------------------------------------------------------------|
    | input    | the input of the flow                                                        |
    | source   | its source, such as `kafka:orders`                                           |
    | topic_id | the id of the topic, which changes when it is recreated; empty if unknown    |
    | at       | when it was detected, UTC                                                    |
    | why      | the declared reason for accepting the loss                                   |
    """

    input: str
    source: str
    topic: str
    topic_id: str
    partition: int
    first: int
    end: int | None
    kind: LossKind
    at: str
    why: str

    @classmethod
    def of(cls, missing: MissingOffsets, name: str, source: CanLoseRows, topic_id: str, kind: LossKind) -> LostRange:
        """Return the lost range of an input's source, detected now."""
        return cls(
            input=name,
            source=source.name,
            topic=missing.topic,
            topic_id=topic_id,
            partition=missing.partition,
            first=missing.first,
            end=missing.end,
            kind=kind,
            at=datetime.now(UTC).isoformat(timespec="seconds"),
            why=source.data_loss_reason or "",
        )

    def __str__(self) -> str:
        return f"{MissingOffsets(self.topic, self.partition, self.first, self.end)} {self.kind}"


class LostOffsets:
    """The records of lost offsets of one flow. One thread at a time writes: the query, after the commit the audit."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def of(self, batch_id: int) -> tuple[LostRange, ...]:
        """Return the recorded ranges of a batch of the current checkpoint."""
        return tuple(lost for query_id, lost in self._read(batch_id) if query_id == self._checkpoint.query_id())

    def add(self, batch_id: int, ranges: Sequence[LostRange]) -> tuple[LostRange, ...]:
        """Record ranges that are not recorded yet, and return them. Durable when this returns."""
        if not ranges:
            return ()
        query_id, written = self._checkpoint.query_id(), self._read(batch_id)
        recorded = [lost for owner, lost in written if owner == query_id]
        added: list[LostRange] = []
        for lost_range in ranges:
            added.extend(_unrecorded_parts(lost_range, [*recorded, *added]))
        if added:
            # Ranges of an earlier checkpoint under the same batch id stay.
            entries = [*written, *((query_id, lost) for lost in added)]
            text = {"batch": batch_id, "lost": [{"query_id": owner, **asdict(lost)} for owner, lost in entries]}
            self._checkpoint.files.write(self._path(batch_id), json.dumps(text, indent=1))
        return tuple(added)

    def _read(self, batch_id: int) -> list[tuple[str | None, LostRange]]:
        text = self._checkpoint.files.read(self._path(batch_id))
        entries = json.loads(text)["lost"] if text else []
        return [(entry.pop("query_id"), LostRange(**entry | {"kind": LossKind(entry["kind"])})) for entry in entries]

    def _path(self, batch_id: int) -> str:
        return f"{self._checkpoint.metadata_dir}/lost/{batch_id}.json"


def _unrecorded_parts(lost: LostRange, recorded: Iterable[LostRange]) -> Iterator[LostRange]:
    """Yield the parts of a range that no recorded range covers."""
    partition = (lost.input, lost.topic, lost.partition)
    covering = [
        other
        for other in recorded
        # The id of a deleted topic is unknown; ranges that were recorded with its id cover it.
        if (other.input, other.topic, other.partition) == partition and lost.topic_id in ("", other.topic_id)
    ]
    first = lost.first
    for other in sorted(covering, key=lambda covered: covered.first):
        if lost.end is not None and other.first >= lost.end:
            break
        if other.first > first:
            yield replace(lost, first=first, end=other.first)
        if other.end is None:
            return
        first = max(first, other.end)
    if lost.end is None or first < lost.end:
        yield replace(lost, first=first)
