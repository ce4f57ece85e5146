"""Current offsets of partitions: the first, the end, and the first at or after a time."""

from collections.abc import Iterable, Mapping

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin._listoffsets import OffsetSpec

from headrace.clients.kafka import admin_client, broker_unavailable
from headrace.flow.target import Target

# A topic and the number of one of its partitions.
Partition = tuple[str, int]

_ANSWER_SECONDS = 10.0


def first_offsets(target: Target, partitions: Iterable[Partition]) -> dict[Partition, int]:
    """Return the first retained offset of each partition."""
    return _list_offsets(target, {partition: OffsetSpec.earliest() for partition in partitions})  # type: ignore[no-untyped-call]


def end_offsets(target: Target, partitions: Iterable[Partition]) -> dict[Partition, int]:
    """Return the last stable offset of each partition: the end for a read_committed reader."""
    return _list_offsets(target, {partition: OffsetSpec.latest() for partition in partitions})  # type: ignore[no-untyped-call]


def offsets_at(target: Target, times_ms: Mapping[Partition, int]) -> dict[Partition, int | None]:
    """Return the first offset of each partition at or after a time; None if there is no such record."""
    offsets = _list_offsets(target, {partition: OffsetSpec.for_timestamp(ms) for partition, ms in times_ms.items()})
    return {partition: offset if offset >= 0 else None for partition, offset in offsets.items()}


def _list_offsets(target: Target, specs: Mapping[Partition, OffsetSpec]) -> dict[Partition, int]:
    """List offsets. Raises HR-601 if the broker does not answer, or a partition has no leader yet."""
    if not specs:
        return {}
    # Hold a reference until the futures are done: they never complete if the client is garbage collected.
    client = admin_client(target.kafka)
    answers = client.list_offsets(
        {TopicPartition(*partition): spec for partition, spec in specs.items()},
        isolation_level=IsolationLevel.READ_COMMITTED,
        request_timeout=_ANSWER_SECONDS,
    )
    try:
        return {(partition.topic, partition.partition): answer.result().offset for partition, answer in answers.items()}
    except KafkaException as error:
        raise broker_unavailable(str(target.kafka["bootstrap.servers"]), error.args[0]) from error
