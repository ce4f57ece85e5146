"""Watches the sources of a flow that can lose or exchange their rows: at its start and around each batch.

Where rows of Kafka can vanish, and what is done about it:

| when                                   | seen by                  | loss not accepted      | loss accepted           |
|----------------------------------------|--------------------------|------------------------|-------------------------|
| while the flow is down, or lags behind | offsets, before a batch  | Spark stops it: HR-502 | recorded as lost        |
| while a batch is read                  | offsets, after the batch | Spark stops it: HR-502 | recorded as may be lost |
| a topic or a partition is deleted      | ids, offsets             | HR-506                 | recorded, end unknown   |
| a topic is made again                  | ids                      | HR-311                 | HR-311                  |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from headrace.errors import DataError, HeadraceError, Transient
from headrace.flow.flow import Flow
from headrace.flow.source import Gone, Watch, Watched
from headrace.flow.target import Target
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.checkpoint.lost_offsets import Kind, Lost, LostOffsets
from headrace.runtime.checkpoint.source_order import source_index
from headrace.runtime.checkpoint.topic_identity import Accepted, SourceIdentities
from headrace.runtime.events import OffsetsLost

# The errors that a topic which was made again, or a lost range, is behind.
_LOSS = ("HR-501", "HR-502")

# The most ranges that a message names: a topic has a few partitions, or hundreds.
_NAMED = 8


class SourceGuard:
    """The guard of one run of a flow. `begin` on the thread that starts the query, `around` on the one that writes."""

    def __init__(self, flow: Flow, target: Target, checkpoint: Checkpoint, hear: Callable[[OffsetsLost], None]) -> None:
        self._flow, self._target, self._checkpoint, self._hear = flow, target, checkpoint, hear
        self._sources: dict[str, Watched] = {
            name: given.source for name, given in flow.named_inputs.items() if isinstance(given.source, Watched)
        }
        self._lost = LostOffsets(checkpoint)
        # The last batch that may be in the sinks: one that an earlier run began, then each that this one writes.
        self._maybe_written = checkpoint.unfinished() if self._sources else None
        self._watches: dict[str, Watch] = {}
        # Read once per run: the record is written before the first batch and stays.
        self._indices: dict[str, int | None] = {}
        self._identities: SourceIdentities

    def begin(self) -> None:
        """Compare the ids of all topics with those that the checkpoint is about. Raises HR-311, HR-312 or HR-506."""
        if self._sources:
            self._watches = {name: source.watch(self._target) for name, source in self._sources.items()}
            self._identities = SourceIdentities(self._checkpoint, self._sources)
            self._identities.at_start(self._ids())

    @contextmanager
    def around(self, batch_id: int) -> Iterator[None]:
        """Compare ids and offsets before a batch is written; after it, record what went while it was read.

        Of a batch that an earlier run may have written, what is gone by now may be in the sinks.
        """
        if not self._sources:
            yield
            return
        again = self._may_be_written(batch_id)
        try:
            now = self._ids()
            self._identities.before_batch(now)
            self._require_there(batch_id)
        except HeadraceError:
            if not again:
                self._identities.note_unwritten(batch_id)
            raise
        self._record(batch_id, now, Kind.MAYBE if again else Kind.LOST)
        self._identities.note_unwritten(None)
        self._maybe_written = batch_id
        yield
        self._record(batch_id, now, Kind.MAYBE)

    def look(self) -> None:
        """Compare the ids of all topics, for a flow without batches. Raises HR-311 or HR-506."""
        if self._sources:
            self._identities.before_batch(self._ids())

    def explained(self, error: HeadraceError) -> HeadraceError:
        """Return the error that a query died of; a loss with what is behind it: a new topic, or the ranges."""
        begun = self._checkpoint.unfinished() if error.code in _LOSS and self._watches else None
        if begun is None:
            return error
        try:
            if not self._may_be_written(begun):
                self._identities.note_unwritten(begun)
            self._identities.before_batch(self._ids())
            self._require_there(begun, error.why)
        except Transient:
            return error
        except HeadraceError as behind:
            return behind
        return error

    def _may_be_written(self, batch_id: int) -> bool:
        return self._maybe_written == batch_id != self._identities.unwritten

    def _require_there(self, batch_id: int, cause: str = "") -> None:
        """Raise HR-502 when offsets of a batch are gone, of a source that does not accept it."""
        for name, source in self._sources.items():
            gone = self._gone(name, batch_id) if source.data_loss_reason is None else ()
            if gone:
                raise self._named(source, batch_id, gone, cause)

    def _ids(self) -> dict[str, dict[str, str]]:
        return {name: dict(watch.identities()) for name, watch in self._watches.items()}

    def _gone(self, name: str, batch_id: int) -> tuple[Gone, ...]:
        ends = self._ends(name, batch_id)
        return self._watches[name].gone(*ends) if ends is not None else ()

    def _ends(self, name: str, batch_id: int) -> tuple[str, str] | None:
        if name not in self._indices:
            self._indices[name] = source_index(self._checkpoint, self._flow, name)
        index = self._indices[name]
        return None if index is None else self._checkpoint.range(batch_id, index)

    def _record(self, batch_id: int, now: Mapping[str, Mapping[str, str]], kind: Kind) -> None:
        """Record what is gone of a batch, in sources that accept it. Each range is recorded once, as first found."""
        found: list[Lost] = []
        for name, source in self._sources.items():
            if source.data_loss_reason is None:
                continue
            accepted = self._identities.accepted_in(name, batch_id)
            exchanged = {each.topic for each in accepted}
            gone = [each for each in self._gone(name, batch_id) if each.end is not None or each.topic not in exchanged]
            found.extend(self._as_lost(name, each, self._identities.id_of(name, each.topic), kind) for each in gone)
            for each in accepted:
                found.extend(self._passed_over(each, batch_id))
            # The offsets of the next batch are without such a topic: one that is made later is read from its start.
            self._identities.forget(name, {each.topic for each in gone if each.end is None} - set(now[name]))
        added = self._lost.add(batch_id, found)
        if added:
            self._hear(OffsetsLost(self._flow.name, batch_id, added))

    def _passed_over(self, accepted: Accepted, batch_id: int) -> Iterator[Lost]:
        """Yield what is never read of the old topic and of the one that takes its place."""
        ends = self._ends(accepted.input, batch_id)
        if ends is None:
            return
        watch = self._watches[accepted.input]
        for rest in watch.rest(accepted.topic, ends[0]):
            yield self._as_lost(accepted.input, rest, accepted.before, Kind.LOST)
        for before in watch.passed_over(accepted.topic, *ends):
            yield self._as_lost(accepted.input, before, accepted.id, Kind.LOST)

    def _as_lost(self, name: str, gone: Gone, topic_id: str, kind: Kind) -> Lost:
        return Lost.of(gone, name, self._sources[name], topic_id, kind)

    def _named(self, source: Watched, batch_id: int, gone: Sequence[Gone], cause: str) -> DataError:
        ranges = ", ".join(str(each) for each in gone[:_NAMED])
        more = f" and {len(gone) - _NAMED} more" if len(gone) > _NAMED else ""
        return DataError(
            f"Flow '{self._flow.name}': Kafka no longer has offsets that the flow has not read: {ranges}{more}.",
            why=f"Batch {batch_id} needs them; retention or a deletion took them. {cause}".rstrip(),
            state="The sinks hold every batch up to the last commit. The rows of these offsets are lost.",
            remedy=f"To go on without them, set data_loss_reason='why' on {source.name}: the ranges are then recorded "
            f"in {self._checkpoint.house}/lost. Look at the topic's retention.",
            code="HR-502",
        )
