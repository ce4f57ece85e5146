"""What is true of topics at this moment: their ids, and which offsets they still hold.

The client is kept, so that a question costs one round trip: a few milliseconds before each batch of a flow.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.admin._topic import TopicDescription

from headrace.clients.kafka import reached
from headrace.errors import PartUnavailable
from headrace.flow.source import Gone
from headrace.flow.target import Target

# A broker answers in milliseconds; one that elects a leader in seconds. Past this the flow is started again.
ANSWER_WITHIN_SECONDS = 10.0

# A broker that has just started may not know a topic yet that is there. Nobody loses a topic for less.
_BELIEVE_MISSING_AFTER_SECONDS = 2.0
_ASK_AGAIN_SECONDS = 0.1

_MISSING = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)

# How far back a rate is measured: long enough to even out bursts, short enough to be about now.
_LATELY_SECONDS = 300.0

# What a broker answers that is older than topic ids.
_NO_ID = "A" * 22

Offsets = Mapping[str, Mapping[str, int]]


class TopicWatch:
    """The topics of one source under watch, as `flow.source.Watch` asks: given names, or a condition on names."""

    def __init__(
        self,
        target: Target,
        topics: Sequence[str] | Callable[[str], bool],
        patience: float = ANSWER_WITHIN_SECONDS,
    ) -> None:
        self._topics, self._patience = topics, patience
        self._seen: set[str] = set()
        self._address = str(target.kafka.get("bootstrap.servers", ""))
        # Asked at once: a broker that refuses the login will not let anybody in who tries again.
        self._client, _ = reached(target.kafka, patience)

    def identities(self) -> dict[str, str]:
        """Return the id of every topic that is there. A topic is missing only when it stays so for a while."""
        deadline = time.monotonic() + _BELIEVE_MISSING_AFTER_SECONDS
        while True:
            names = self._names()
            found = dict(self._ids(names))
            if len(found) == len(names) or time.monotonic() > deadline:
                self._seen = set(found)
                return {name: each for name, each in found.items() if each != _NO_ID}
            time.sleep(_ASK_AGAIN_SECONDS)

    def gone(self, start: str, end: str) -> tuple[Gone, ...]:
        """Return what is not there any more of the records from `start` to before `end`."""
        first, last = json.loads(start), json.loads(end)
        both = _partitions(first) | _partitions(last)
        earliest = self._earliest(both)
        found = (_gone(each, _at(first, each) or 0, _at(last, each), earliest.get(each)) for each in sorted(both))
        return tuple(each for each in found if each is not None)

    def rest(self, topic: str, start: str) -> tuple[Gone, ...]:
        """Return everything of a topic from `start` on."""
        first = json.loads(start).get(topic, {})
        return tuple(Gone(topic, int(number), offset, None) for number, offset in sorted(first.items()))

    def passed_over(self, topic: str, start: str, end: str) -> tuple[Gone, ...]:
        """Return the records before the offsets at which a flow goes on in a topic that was made again."""
        first, last = json.loads(start), json.loads(end)
        there = {each for each in _partitions(first) & _partitions(last) if each[0] == topic}
        earliest = self._earliest(there)
        found = (
            # Where the topic is shorter than the old one, Spark goes on at the end that it had when it was first seen.
            Gone(*each, earliest.get(each, 0), min(_at(first, each) or 0, _at(last, each) or 0))
            for each in sorted(there)
        )
        return tuple(each for each in found if each.end is not None and each.end > each.first)

    def held(self, start: Offsets, end: Offsets) -> tuple[Offsets, Offsets]:
        """Return a range without what is not there any more."""
        earliest = self._earliest(_partitions(end))
        first: dict[str, dict[str, int]] = {}
        last: dict[str, dict[str, int]] = {}
        for (topic, partition), bound in earliest.items():
            number = str(partition)
            from_offset = max(bound, start.get(topic, {}).get(number, 0))
            first.setdefault(topic, {})[number] = from_offset
            last.setdefault(topic, {})[number] = max(from_offset, end[topic][number])
        return first, last

    def _names(self) -> list[str]:
        """Return the names of the topics. Under a condition: those that are there now, and were when last asked for."""
        if not callable(self._topics):
            return list(self._topics)
        try:
            present = self._client.list_topics(timeout=self._patience).topics
        except KafkaException as error:
            raise self._away(error.args[0]) from error
        return sorted(self._seen.union(filter(self._topics, present)))

    def _ids(self, names: Sequence[str]) -> Iterator[tuple[str, str]]:
        return ((name, str(found.topic_id)) for name, found in self._described(names))

    def _described(self, names: Sequence[str]) -> Iterator[tuple[str, TopicDescription]]:
        """Yield what the broker says of each topic that is there."""
        if not names:
            return
        asked = self._client.describe_topics(TopicCollection(list(names)), request_timeout=self._patience)
        for name, answer in asked.items():
            try:
                yield name, answer.result()
            except KafkaException as error:
                if error.args[0].code() not in _MISSING:
                    raise self._away(error.args[0]) from error

    def records_per_second(self) -> float:
        """Return how many records a second arrived in the last minutes, by their timestamps."""
        partitions = {(name, each.id) for name, found in self._described(self._names()) for each in found.partitions}
        since = OffsetSpec.for_timestamp(int((time.time() - _LATELY_SECONDS) * 1000))
        first, end = self._offsets(partitions, since), self._offsets(partitions, OffsetSpec.latest())  # type: ignore[no-untyped-call]
        # A partition without a record of that time, or after it, answers with -1.
        arrived = sum(end[each] - offset for each, offset in first.items() if offset >= 0 and each in end)
        return arrived / _LATELY_SECONDS

    def _earliest(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """Return the first offset of each partition that is there."""
        return self._offsets(partitions, OffsetSpec.earliest())  # type: ignore[no-untyped-call]

    def _offsets(self, partitions: Iterable[tuple[str, int]], spec: OffsetSpec) -> dict[tuple[str, int], int]:
        """Return the offset that a specification stands for, of each partition that is there."""
        wanted = {TopicPartition(*each): spec for each in partitions}
        deadline = time.monotonic() + self._patience
        found = {}
        while wanted:
            asked = self._client.list_offsets(wanted, request_timeout=self._patience)
            for partition, answer in asked.items():
                try:
                    found[partition.topic, partition.partition] = answer.result().offset
                except KafkaException as error:
                    problem = error.args[0]
                    if problem.code() in _MISSING:
                        continue
                    if not problem.retriable() or time.monotonic() > deadline:
                        raise self._away(problem) from error
                    break
            else:
                return found
            time.sleep(_ASK_AGAIN_SECONDS)
        return found

    def _away(self, error: KafkaError) -> PartUnavailable:
        return PartUnavailable(
            f"Kafka at {self._address} does not answer.",
            why=f"The client says: {error.str().rstrip('.')}.",
            state="The batch under way is not committed; it will be run again from the same offsets.",
            remedy="Start the broker; the flow goes on by itself.",
            code="HR-601",
        )


def _partitions(offsets: Offsets) -> set[tuple[str, int]]:
    return {(topic, int(number)) for topic, numbers in offsets.items() for number in numbers}


def _at(offsets: Offsets, partition: tuple[str, int]) -> int | None:
    topic, number = partition
    return offsets.get(topic, {}).get(str(number))


def _gone(partition: tuple[str, int], first: int, end: int | None, earliest: int | None) -> Gone | None:
    """Judge one partition. A partition that the range begins without is read from 0, so `first` is 0 there."""
    if end is None or end < first:
        return Gone(*partition, first, None)
    if earliest is None:
        earliest = end
    return Gone(*partition, first, min(earliest, end)) if min(earliest, end) > first else None
