"""Whether the topics that a flow reads are still those that its checkpoint is about.

A topic that was deleted and made again has the same name and other records. Where it was filled past the offset of the
checkpoint, Spark notices nothing: it skips the first rows of the new topic and takes the others for those of the old.
Kafka gives every topic an id. The ids lie beside the checkpoint, before the first batch can be committed:

    FLOW/headrace/sources.json

They are compared before a query starts and before each batch is written. A topic that is new to the flow, under a
pattern or in its list, is added. One that was made again stops the flow, unless its source accepts its new id.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime

from headrace.errors import DataError, RecoveryError
from headrace.flow.source import Watched
from headrace.runtime.checkpoint.checkpoint import Checkpoint


@dataclass(frozen=True)
class Accepted:
    """A topic that is read in place of one that was deleted, from batch `batch` on."""

    input: str
    topic: str
    before: str
    id: str
    batch: int
    at: str


@dataclass
class _Record:
    """What sources.json holds."""

    query_id: str | None
    topics: dict[str, dict[str, str]] = field(default_factory=dict)
    accepted: list[Accepted] = field(default_factory=list)
    unwritten: int | None = None


class SourceIdentities:
    """The ids of one flow's topics. Made for each start; `at_start` is called once, the others per attempt."""

    def __init__(self, checkpoint: Checkpoint, sources: Mapping[str, Watched]) -> None:
        self._checkpoint, self._sources = checkpoint, sources
        self._path = f"{checkpoint.house}/sources.json"
        self._known_query_id: str | None = None
        self._record = self._read()

    def at_start(self, now: Mapping[str, Mapping[str, str]]) -> None:
        """Compare the ids per input with the record, take over what is new or accepted, and make the record durable."""
        accepted = list(self._record.accepted)
        for name, topic, before in self._made_again(now):
            if now[name][topic] not in self._sources[name].accepted_topic_ids:
                raise self._refused(name, topic, before, now[name][topic])
            accepted.append(self._accept(name, topic, before, now[name][topic]))
        self._require_all(now)
        self._record.accepted = accepted
        # A flow that has never run begins anew, whatever an attempt to start it noted.
        known = self._record.topics if self._query_id() is not None else {}
        self._remember({name: known.get(name, {}) | dict(ids) for name, ids in now.items()})

    def before_batch(self, now: Mapping[str, Mapping[str, str]]) -> None:
        """Raise when a topic was made again or is gone since the start; take over topics that are new."""
        for name, topic, before in self._made_again(now):
            raise self._refused(name, topic, before, now[name][topic])
        self._require_all(now)
        topics = {name: self._record.topics.get(name, {}) | dict(ids) for name, ids in now.items()}
        if topics != self._record.topics or self._record.query_id is None:
            self._remember(topics)

    @property
    def unwritten(self) -> int | None:
        """The batch that was planned, and refused before anything of it was written by any run."""
        return self._record.unwritten

    def note_unwritten(self, batch_id: int | None) -> None:
        """Note such a batch; None when it is about to be written. Durable when this returns."""
        if self._record.unwritten != batch_id:
            self._record.unwritten = batch_id
            self._write()

    def forget(self, name: str, topics: set[str]) -> None:
        """Take topics out of the record that are gone, and that a batch has gone on without."""
        kept = {topic: each for topic, each in self._record.topics[name].items() if topic not in topics}
        if kept != self._record.topics[name]:
            self._remember(self._record.topics | {name: kept})

    def id_of(self, name: str, topic: str) -> str:
        """Return the id under which a topic is read, or an empty text."""
        return self._record.topics.get(name, {}).get(topic, "")

    def accepted_in(self, name: str, batch_id: int) -> list[Accepted]:
        """Return the topics of an input that are read in place of others from this batch on."""
        return [each for each in self._record.accepted if (each.input, each.batch) == (name, batch_id)]

    def _made_again(self, now: Mapping[str, Mapping[str, str]]) -> list[tuple[str, str, str]]:
        """Return input, topic and recorded id of every topic that has another id now."""
        if self._query_id() is None:
            return []
        known = self._record.topics
        return [
            (name, topic, known[name][topic])
            for name, ids in now.items()
            for topic, each in ids.items()
            if known.get(name, {}).get(topic, each) != each
        ]

    def _require_all(self, now: Mapping[str, Mapping[str, str]]) -> None:
        """Raise for a topic that is gone, unless the source accepts loss."""
        if self._query_id() is None:
            return
        for name, source in self._sources.items():
            missing = sorted(set(self._record.topics.get(name, {})) - set(now[name]))
            if missing and source.data_loss_reason is None:
                raise DataError(
                    f"Flow '{self._checkpoint.flow}': topic '{missing[0]}', which {source.name} reads, is gone.",
                    why=f"It had the id {self.id_of(name, missing[0])}; Kafka has no topic of this name any more, or "
                    "the source no longer names it.",
                    state="The sinks hold every batch up to the last commit. Records that were not read are lost.",
                    remedy=f"To go on without it, set data_loss_reason='why' on {source.name}: what is lost is then "
                    "recorded. Or start the flow under a new name.",
                    code="HR-506",
                )

    def _accept(self, name: str, topic: str, before: str, new: str) -> Accepted:
        begun = self._checkpoint.unfinished()
        if begun is not None and begun != self._record.unwritten:
            raise RecoveryError(
                f"Flow '{self._checkpoint.flow}': topic '{topic}' of id {new} cannot be accepted.",
                why=f"Batch {begun} was begun on the topic of id {before} and not committed. Its rows may be in the "
                "sinks, and the new topic has other rows at the same offsets.",
                state="Nothing was started and nothing was written.",
                remedy="Start the flow under a new name: it reads the new topic from its start.",
                code="HR-312",
            )
        planned = self._checkpoint.planned()
        batch = begun if begun is not None else (planned[-1] + 1 if planned else 0)
        return Accepted(name, topic, before, new, batch, datetime.now(UTC).isoformat())

    def _remember(self, topics: dict[str, dict[str, str]]) -> None:
        self._record.topics = topics
        self._record.query_id = self._query_id()
        self._write()

    def _query_id(self) -> str | None:
        """Return the identity of the checkpoint, read until it is there: Spark writes it once."""
        self._known_query_id = self._known_query_id or self._checkpoint.query_id()
        return self._known_query_id

    def _write(self) -> None:
        self._checkpoint.files.write(self._path, json.dumps(asdict(self._record), indent=1))

    def _read(self) -> _Record:
        text, query_id = self._checkpoint.files.read(self._path), self._query_id()
        if text is None:
            return _Record(query_id)
        try:
            read = json.loads(text)
            record = _Record(
                read["query_id"],
                {name: dict(ids) for name, ids in read["topics"].items()},
                [Accepted(**each) for each in read["accepted"]],
                read["unwritten"],
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RecoveryError(
                f"Flow '{self._checkpoint.flow}': {self._path} cannot be read.",
                why=f"It holds the ids of the topics that the checkpoint is about; here: {error}.",
                state="Nothing was started and nothing was written.",
                remedy="Restore the file from a backup. If no topic was made again since the flow last ran, delete "
                "it: the next start writes it anew.",
                code="HR-312",
            ) from error
        # A record of another checkpoint says nothing about this one.
        return record if record.query_id in (None, query_id) else _Record(query_id)

    def _refused(self, name: str, topic: str, before: str, now: str) -> RecoveryError:
        source = self._sources[name]
        return RecoveryError(
            f"Flow '{self._checkpoint.flow}': topic '{topic}', which {source.name} reads, was deleted and made again.",
            why=f"The checkpoint is about the topic of id {before}; Kafka now has one of id {now} under this name. "
            "The same offsets stand for other records there.",
            state="Nothing of the new topic was written. The sinks hold every batch up to the last commit. Records of "
            "the old topic that were not read are lost.",
            remedy="Start the flow under a new name: it reads the new topic from its start. Or go on at the old "
            f"offsets, without the records before them: set accepted_topic_ids=('{now}',) and data_loss_reason='why' "
            f"on {source.name}; what is passed over is recorded.",
            code="HR-311",
        )
