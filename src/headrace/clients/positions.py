"""Offsets of partitions, as the broker knows them now: the first, the end, and the first at or after a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin._listoffsets import OffsetSpec

from headrace.clients.kafka import admin, no_broker
from headrace.flow.target import Target

# A topic and the number of one of its partitions.
Partition = tuple[str, int]

_ANSWER_SECONDS = 10.0


def first_offsets(target: Target, partitions: Iterable[Partition]) -> dict[Partition, int]:
    """Return the offset of the first record that each partition still has."""
    return _listed(target, {each: OffsetSpec.earliest() for each in partitions})  # type: ignore[no-untyped-call]


def end_offsets(target: Target, partitions: Iterable[Partition]) -> dict[Partition, int]:
    """Return the offset after the last record of each partition that a reader of committed records can see."""
    return _listed(target, {each: OffsetSpec.latest() for each in partitions})  # type: ignore[no-untyped-call]


def offsets_at(target: Target, times_ms: Mapping[Partition, int]) -> dict[Partition, int | None]:
    """Return the offset of each partition's first record at or after a time; None where there is no such record."""
    found = _listed(target, {each: OffsetSpec.for_timestamp(ms) for each, ms in times_ms.items()})
    return {each: offset if offset >= 0 else None for each, offset in found.items()}


def _listed(target: Target, wanted: Mapping[Partition, OffsetSpec]) -> dict[Partition, int]:
    """Ask the broker. Raises HR-601 when it does not answer, or has no leader for a partition yet."""
    if not wanted:
        return {}
    # Kept until the answers are there: a client that is forgotten never gives them.
    client = admin(target.kafka)
    answers = client.list_offsets(
        {TopicPartition(*each): spec for each, spec in wanted.items()},
        isolation_level=IsolationLevel.READ_COMMITTED,
        request_timeout=_ANSWER_SECONDS,
    )
    try:
        return {(each.topic, each.partition): answer.result().offset for each, answer in answers.items()}
    except KafkaException as error:
        raise no_broker(str(target.kafka["bootstrap.servers"]), error.args[0]) from error
