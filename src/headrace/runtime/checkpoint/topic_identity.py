"""Checks that the topics of a flow are still those of its checkpoint, by topic id.

A recreated topic has the same name and different records. If it has grown past the offset of the checkpoint, Spark does
not notice: it skips the first records of the new topic and continues with the others. Kafka gives every topic an id.
The ids are recorded in the checkpoint's metadata before the first batch commits:

    FLOW/headrace/sources.json

They are compared before a query starts and before each batch is written. A topic that is new to the flow, by a pattern
or in its list, is added. A recreated topic stops the flow, unless its source accepts the new id.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime

from headrace.errors import DataError, RecoveryError
from headrace.flow.source import CanLoseRows
from headrace.runtime.checkpoint.checkpoint import Checkpoint


@dataclass(frozen=True)
class AcceptedTopic:
    """A recreated topic that the flow reads in place of the deleted one, from batch `batch` on."""

    input: str
    topic: str
    before: str
    id: str
    batch: int
    at: str


@dataclass
class _Record:
    """The content of sources.json."""

    query_id: str | None
    topics: dict[str, dict[str, str]] = field(default_factory=dict)
    accepted: list[AcceptedTopic] = field(default_factory=list)
    unwritten: int | None = None


class TopicIdentities:
    """The topic ids of one flow. Created per start; `at_start` is called once, the other methods per attempt."""

    def __init__(self, checkpoint: Checkpoint, sources: Mapping[str, CanLoseRows]) -> None:
        self._checkpoint, self._sources = checkpoint, sources
        self._path = f"{checkpoint.metadata_dir}/sources.json"
        self._cached_query_id: str | None = None
        self._record = self._read()

    def at_start(self, now: Mapping[str, Mapping[str, str]]) -> None:
        """Compare the ids per input with the record, add new and accepted topics, and save the record."""
        accepted = list(self._record.accepted)
        for name, topic, before in self._recreated(now):
            if now[name][topic] not in self._sources[name].accepted_topic_ids:
                raise self._recreated_error(name, topic, before, now[name][topic])
            accepted.append(self._accept(name, topic, before, now[name][topic]))
        self._require_all(now)
        self._record.accepted = accepted
        # A flow that has never run ignores the records of earlier attempts to start it.
        recorded = self._record.topics if self._query_id() is not None else {}
        self._save({name: recorded.get(name, {}) | dict(ids) for name, ids in now.items()})

    def before_batch(self, now: Mapping[str, Mapping[str, str]]) -> None:
        """Raise if a topic was recreated or deleted since the start; record new topics."""
        for name, topic, before in self._recreated(now):
            raise self._recreated_error(name, topic, before, now[name][topic])
        self._require_all(now)
        topics = {name: self._record.topics.get(name, {}) | dict(ids) for name, ids in now.items()}
        if topics != self._record.topics or self._record.query_id is None:
            self._save(topics)

    @property
    def unwritten_batch_id(self) -> int | None:
        """The planned batch that was refused before any run wrote rows of it."""
        return self._record.unwritten

    def record_unwritten(self, batch_id: int | None) -> None:
        """Record such a batch; None when it is about to be written. Durable when this returns."""
        if self._record.unwritten != batch_id:
            self._record.unwritten = batch_id
            self._write()

    def remove_topics(self, name: str, topics: set[str]) -> None:
        """Remove deleted topics from the record, after a batch continued without them."""
        remaining = {topic: topic_id for topic, topic_id in self._record.topics[name].items() if topic not in topics}
        if remaining != self._record.topics[name]:
            self._save(self._record.topics | {name: remaining})

    def id_of(self, name: str, topic: str) -> str:
        """Return the recorded id of a topic, or an empty string."""
        return self._record.topics.get(name, {}).get(topic, "")

    def accepted_in(self, name: str, batch_id: int) -> list[AcceptedTopic]:
        """Return the recreated topics of an input that are read from this batch on."""
        return [topic for topic in self._record.accepted if (topic.input, topic.batch) == (name, batch_id)]

    def _recreated(self, now: Mapping[str, Mapping[str, str]]) -> list[tuple[str, str, str]]:
        """Return input, topic and recorded id of every recreated topic."""
        if self._query_id() is None:
            return []
        recorded = self._record.topics
        return [
            (name, topic, recorded[name][topic])
            for name, ids in now.items()
            for topic, topic_id in ids.items()
            if recorded.get(name, {}).get(topic, topic_id) != topic_id
        ]

    def _require_all(self, now: Mapping[str, Mapping[str, str]]) -> None:
        """Raise for a deleted topic, unless the source accepts loss."""
        if self._query_id() is None:
            return
        for name, source in self._sources.items():
            missing = sorted(set(self._record.topics.get(name, {})) - set(now[name]))
            if missing and source.data_loss_reason is None:
                raise DataError(
                    f"Flow '{self._checkpoint.flow}': topic '{missing[0]}' of {source.name} no longer exists.",
                    why=f"It had the id {self.id_of(name, missing[0])}; Kafka has no topic of this name any more, or "
                    "the source no longer names it.",
                    state="The sinks hold every batch up to the last commit. Records that were not read are lost.",
                    remedy=f"To continue without it, set data_loss_reason='why' on {source.name}: what is lost is then "
                    "recorded. Or start the flow under a new name.",
                    code="HR-506",
                )

    def _accept(self, name: str, topic: str, before: str, new: str) -> AcceptedTopic:
        unfinished = self._checkpoint.unfinished_batch()
        if unfinished is not None and unfinished != self._record.unwritten:
            raise RecoveryError(
                f"Flow '{self._checkpoint.flow}': topic '{topic}' with id {new} cannot be accepted.",
                why=f"Batch {unfinished} was started on the topic with id {before} and not committed. Its rows may be "
                "in the sinks, and the new topic has other rows at the same offsets.",
                state="Nothing was started and nothing was written.",
                remedy="Start the flow under a new name: it reads the new topic from its start.",
                code="HR-318",
            )
        planned = self._checkpoint.planned_batches()
        batch = unfinished if unfinished is not None else (planned[-1] + 1 if planned else 0)
        return AcceptedTopic(name, topic, before, new, batch, datetime.now(UTC).isoformat())

    def _save(self, topics: dict[str, dict[str, str]]) -> None:
        self._record.topics = topics
        self._record.query_id = self._query_id()
        self._write()

    def _query_id(self) -> str | None:
        """Return the query id of the checkpoint. Spark writes it once, so it is cached."""
        self._cached_query_id = self._cached_query_id or self._checkpoint.query_id()
        return self._cached_query_id

    def _write(self) -> None:
        self._checkpoint.files.write(self._path, json.dumps(asdict(self._record), indent=1))

    def _read(self) -> _Record:
        text, query_id = self._checkpoint.files.read(self._path), self._query_id()
        if text is None:
            return _Record(query_id)
        try:
            content = json.loads(text)
            record = _Record(
                content["query_id"],
                {name: dict(ids) for name, ids in content["topics"].items()},
                [AcceptedTopic(**topic) for topic in content["accepted"]],
                content["unwritten"],
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RecoveryError(
                f"Flow '{self._checkpoint.flow}': {self._path} cannot be read.",
                why=f"It has the ids of the topics of the checkpoint; here: {error}.",
                state="Nothing was started and nothing was written.",
                remedy="Restore the file from a backup. If no topic was recreated since the flow last ran, delete "
                "it: the next start writes it again.",
                code="HR-312",
            ) from error
        # A record of another checkpoint does not apply.
        return record if record.query_id in (None, query_id) else _Record(query_id)

    def _recreated_error(self, name: str, topic: str, before: str, now: str) -> RecoveryError:
        source = self._sources[name]
        return RecoveryError(
            f"Flow '{self._checkpoint.flow}': topic '{topic}', which {source.name} reads, was deleted and recreated.",
            why=f"The checkpoint belongs to the topic with id {before}; Kafka now has one with id {now}. "
            "The same offsets have other records there.",
            state="Nothing of the new topic was written. The sinks hold every batch up to the last commit. Records of "
            "the old topic that were not read are lost.",
            remedy="Start the flow under a new name: it reads the new topic from its start. Or continue at the old "
            "offsets, without the records before them: set "
            f"accepted_topic_ids=('{now}',) and data_loss_reason='why' on "
            f"{source.name}; what is skipped is recorded.",
            code="HR-311",
        )
