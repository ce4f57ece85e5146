"""Offsets that a flow went on without, because its source declares that this is accepted: a file for each batch.

    FLOW/headrace/lost/BATCH.json

A file is written before its batch can be committed, so a crash forgets none. A batch that is run again adds to its
file what the earlier attempts did not find, and takes nothing away.

| kind        | says                                                                                                  |
|-------------|-------------------------------------------------------------------------------------------------------|
| lost        | the offsets were gone before the batch was read: no row of them is in the sinks                       |
| may be lost | they went while the batch was read, or between two attempts: their rows may be in the sinks, or not   |
| not audited | they went after the batch: their rows are in the sinks, but bad and late ones among them are not filed |
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum

from headrace.flow.source import Gone, Watched
from headrace.runtime.checkpoint.checkpoint import Checkpoint


class Kind(StrEnum):
    """How sure it is that the rows are lost."""

    LOST = "lost"
    MAYBE = "may be lost"
    NOT_AUDITED = "not audited"


@dataclass(frozen=True)
class Lost:
    """A range of offsets of one partition, from `first` to before `end`; None where nobody can say how far it went.

    | field    | meaning                                                                      |
    |----------|------------------------------------------------------------------------------|
    | input    | the input of the flow                                                        |
    | source   | its source, such as `kafka:orders`                                           |
    | topic_id | which topic of that name, where one was made again; empty when it is unknown |
    | at       | when it was found, UTC                                                       |
    | why      | the words in which the source accepts it                                     |
    """

    input: str
    source: str
    topic: str
    topic_id: str
    partition: int
    first: int
    end: int | None
    kind: Kind
    at: str
    why: str

    @classmethod
    def of(cls, gone: Gone, name: str, source: Watched, topic_id: str, kind: Kind) -> Lost:
        """Return the range of an input's source, found now."""
        return cls(
            input=name,
            source=source.name,
            topic=gone.topic,
            topic_id=topic_id,
            partition=gone.partition,
            first=gone.first,
            end=gone.end,
            kind=kind,
            at=datetime.now(UTC).isoformat(timespec="seconds"),
            why=source.data_loss_reason or "",
        )

    def as_dict(self) -> dict[str, object]:
        """The range as `--json` prints it and the file holds it."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{Gone(self.topic, self.partition, self.first, self.end)} {self.kind}"


class LostOffsets:
    """The files of one flow. One thread writes a batch's file at a time: its query, and after the commit its audit."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def of(self, batch_id: int) -> tuple[Lost, ...]:
        """Return what is recorded of a batch of the present checkpoint."""
        return tuple(lost for query_id, lost in self._read(batch_id) if query_id == self._checkpoint.query_id())

    def add(self, batch_id: int, found: Sequence[Lost]) -> tuple[Lost, ...]:
        """Record what was not recorded before, and return it. Durable when this returns."""
        if not found:
            return ()
        query_id, written = self._checkpoint.query_id(), self._read(batch_id)
        known = [lost for owner, lost in written if owner == query_id]
        added: list[Lost] = []
        for each in found:
            added.extend(_without(each, [*known, *added]))
        if added:
            # What another checkpoint of this name lost in its batch of this number stays.
            entries = [*written, *((query_id, lost) for lost in added)]
            text = {"batch": batch_id, "lost": [{"query_id": owner, **lost.as_dict()} for owner, lost in entries]}
            self._checkpoint.files.write(self._path(batch_id), json.dumps(text, indent=1))
        return tuple(added)

    def _read(self, batch_id: int) -> list[tuple[str | None, Lost]]:
        text = self._checkpoint.files.read(self._path(batch_id))
        entries = json.loads(text)["lost"] if text else []
        return [(each.pop("query_id"), Lost(**each | {"kind": Kind(each["kind"])})) for each in entries]

    def _path(self, batch_id: int) -> str:
        return f"{self._checkpoint.house}/lost/{batch_id}.json"


def _without(lost: Lost, known: Iterable[Lost]) -> Iterator[Lost]:
    """Yield the parts of a range that no known one covers."""
    place = (lost.input, lost.topic, lost.partition)
    covering = [
        each
        for each in known
        # The id of a topic that is gone is forgotten; what was recorded under it stands for it.
        if (each.input, each.topic, each.partition) == place and lost.topic_id in ("", each.topic_id)
    ]
    first = lost.first
    for each in sorted(covering, key=lambda known: known.first):
        if lost.end is not None and each.first >= lost.end:
            break
        if each.first > first:
            yield replace(lost, first=first, end=each.first)
        if each.end is None:
            return
        first = max(first, each.end)
    if lost.end is None or first < lost.end:
        yield replace(lost, first=first)
