"""The current ids of topics, and the offsets that they still retain.

The client stays connected, so that a request costs one round trip: a few milliseconds before each batch of a flow.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.admin._topic import TopicDescription

from headrace.clients.kafka import connect_admin
from headrace.errors import ServiceUnavailable
from headrace.flow.source import MissingOffsets
from headrace.flow.target import Target

# A broker answers in milliseconds, during a leader election in seconds. After this timeout the flow is restarted.
ANSWER_WITHIN_SECONDS = 10.0

# A broker that has just started may not know all topics yet, so a topic counts as missing only after this time.
_MISSING_TIMEOUT_SECONDS = 2.0
_RETRY_SECONDS = 0.1

_MISSING = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)

# The window of rate measurements: long enough to smooth bursts, short enough to be current.
_RATE_WINDOW_SECONDS = 300.0

# The answer of a broker without topic ids.
_NO_ID = "A" * 22

Offsets = Mapping[str, Mapping[str, int]]


class TopicMonitor:
    """Watches the topics of one source, by names or by a predicate on names."""

    def __init__(
        self,
        target: Target,
        topics: Sequence[str] | Callable[[str], bool],
        timeout_seconds: float = ANSWER_WITHIN_SECONDS,
    ) -> None:
        self._topics, self._timeout_seconds = topics, timeout_seconds
        self._known_topics: set[str] = set()
        self._address = str(target.kafka.get("bootstrap.servers", ""))
        # Connect immediately: a broker that refuses the login would refuse it later too.
        self._client, _ = connect_admin(target.kafka, timeout_seconds)

    def topic_ids(self) -> dict[str, str]:
        """Return the id of every existing topic. Retries for a while before a topic counts as missing."""
        deadline = time.monotonic() + _MISSING_TIMEOUT_SECONDS
        while True:
            names = self._names()
            ids = {name: str(description.topic_id) for name, description in self._descriptions(names)}
            if len(ids) == len(names) or time.monotonic() > deadline:
                self._known_topics = set(ids)
                return {name: topic_id for name, topic_id in ids.items() if topic_id != _NO_ID}
            time.sleep(_RETRY_SECONDS)

    def missing_offsets(self, start: str, end: str) -> tuple[MissingOffsets, ...]:
        """Return the ranges between `start` and `end` that the broker no longer has."""
        first, last = json.loads(start), json.loads(end)
        partitions = _partitions(first) | _partitions(last)
        earliest = self._earliest(partitions)
        lost_ranges = (
            _lost_range(
                partition, _offset_of(first, partition) or 0, _offset_of(last, partition), earliest.get(partition)
            )
            for partition in sorted(partitions)
        )
        return tuple(partition for partition in lost_ranges if partition is not None)

    def remaining_offsets(self, topic: str, start: str) -> tuple[MissingOffsets, ...]:
        """Return the ranges of a topic from `start` on."""
        first = json.loads(start).get(topic, {})
        return tuple(MissingOffsets(topic, int(number), offset, None) for number, offset in sorted(first.items()))

    def skipped_offsets(self, topic: str, start: str, end: str) -> tuple[MissingOffsets, ...]:
        """Return the ranges of a recreated topic before the offsets at which a flow resumes."""
        first, last = json.loads(start), json.loads(end)
        partitions = {partition for partition in _partitions(first) & _partitions(last) if partition[0] == topic}
        earliest = self._earliest(partitions)
        ranges = (
            # If the topic is shorter than the old one, Spark resumes at its first observed end.
            MissingOffsets(
                *partition,
                earliest.get(partition, 0),
                min(_offset_of(first, partition) or 0, _offset_of(last, partition) or 0),
            )
            for partition in sorted(partitions)
        )
        return tuple(partition for partition in ranges if partition.end is not None and partition.end > partition.first)

    def available_range(self, start: Offsets, end: Offsets) -> tuple[Offsets, Offsets]:
        """Return the part of a range that the broker still has."""
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
        """Return the topic names; with a predicate, those that match now or matched in the last call."""
        if not callable(self._topics):
            return list(self._topics)
        try:
            present = self._client.list_topics(timeout=self._timeout_seconds).topics
        except KafkaException as error:
            raise self._unavailable(error.args[0]) from error
        return sorted(self._known_topics.union(filter(self._topics, present)))

    def _descriptions(self, names: Sequence[str]) -> Iterator[tuple[str, TopicDescription]]:
        """Yield the description of each existing topic."""
        if not names:
            return
        answers = self._client.describe_topics(TopicCollection(list(names)), request_timeout=self._timeout_seconds)
        for name, answer in answers.items():
            try:
                yield name, answer.result()
            except KafkaException as error:
                if error.args[0].code() not in _MISSING:
                    raise self._unavailable(error.args[0]) from error

    def records_per_second(self) -> float:
        """Return the records per second of the last minutes, by their timestamps."""
        partitions = {
            (name, partition.id)
            for name, description in self._descriptions(self._names())
            for partition in description.partitions
        }
        since = OffsetSpec.for_timestamp(int((time.time() - _RATE_WINDOW_SECONDS) * 1000))
        first, end = self._offsets(partitions, since), self._offsets(partitions, OffsetSpec.latest())  # type: ignore[no-untyped-call]
        # The answer is -1 for a partition without a record at or after that time.
        arrived = sum(
            end[partition] - offset for partition, offset in first.items() if offset >= 0 and partition in end
        )
        return arrived / _RATE_WINDOW_SECONDS

    def _earliest(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """Return the first offset of each existing partition."""
        return self._offsets(partitions, OffsetSpec.earliest())  # type: ignore[no-untyped-call]

    def _offsets(self, partitions: Iterable[tuple[str, int]], spec: OffsetSpec) -> dict[tuple[str, int], int]:
        """Return the offset of a specification for each existing partition."""
        requests = {TopicPartition(*partition): spec for partition in partitions}
        deadline = time.monotonic() + self._timeout_seconds
        offsets = {}
        while requests:
            answers = self._client.list_offsets(requests, request_timeout=self._timeout_seconds)
            for partition, answer in answers.items():
                try:
                    offsets[partition.topic, partition.partition] = answer.result().offset
                except KafkaException as error:
                    problem = error.args[0]
                    if problem.code() in _MISSING:
                        continue
                    if not problem.retriable() or time.monotonic() > deadline:
                        raise self._unavailable(problem) from error
                    break
            else:
                return offsets
            time.sleep(_RETRY_SECONDS)
        return offsets

    def _unavailable(self, error: KafkaError) -> ServiceUnavailable:
        return ServiceUnavailable(
            f"Kafka at {self._address} does not answer.",
            why=f"The client says: {error.str().rstrip('.')}.",
            state="The batch under way is not committed; it will be run again from the same offsets.",
            remedy="Start the broker; the flow continues automatically.",
            code="HR-601",
        )


def _partitions(offsets: Offsets) -> set[tuple[str, int]]:
    return {(topic, int(number)) for topic, numbers in offsets.items() for number in numbers}


def _offset_of(offsets: Offsets, partition: tuple[str, int]) -> int | None:
    topic, number = partition
    return offsets.get(topic, {}).get(str(number))


def _lost_range(partition: tuple[str, int], first: int, end: int | None, earliest: int | None) -> MissingOffsets | None:
    """Return the lost range of one partition, or None. `first` is 0 for a partition that is missing at the start."""
    if end is None or end < first:
        return MissingOffsets(*partition, first, None)
    if earliest is None:
        earliest = end
    return MissingOffsets(*partition, first, min(earliest, end)) if min(earliest, end) > first else None
