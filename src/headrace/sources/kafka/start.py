"""Where the first start of a Kafka source starts reading. Later starts resume from the checkpoint."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Literal, TypeVar

from headrace.clients.positions import Partition, end_offsets, first_offsets, offsets_at
from headrace.errors import FlowError, did_you_mean
from headrace.flow.target import Target
from headrace.sources.kafka.topics import TopicSelection, require_topic_name
from headrace.sources.validation import invalid_source

EarliestOrLatest = Literal["earliest", "latest"]

# How Spark's connector writes the two edges between offsets.
_SPARK_OFFSETS = {"earliest": -2, "latest": -1}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_Value = TypeVar("_Value")


@dataclass(frozen=True)
class StartOffsets:
    """Start at explicit offsets: `StartOffsets({"rides": {0: 1200, 1: "earliest"}})`.

    Every partition of the source needs an offset, `earliest` or `latest`. A missing or unknown partition, or an offset
    that is not between the first and the end offset of its partition, is an error at the first start.
    """

    offsets: Mapping[str, Mapping[int, int | EarliestOrLatest]]

    def __post_init__(self) -> None:
        for partition, offset in _values_by_partition(self.offsets).items():
            if offset not in _SPARK_OFFSETS and (not isinstance(offset, int) or offset < 0):
                raise invalid_source(
                    f"{offset!r} is not an offset of {_partition_label(partition)}.",
                    "Offsets count from 0.",
                    "Set a number, or 'earliest' or 'latest'.",
                )
        object.__setattr__(self, "offsets", _read_only(self.offsets))

    def require(self, selection: TopicSelection, target: Target) -> None:
        """Raise unless every partition has an offset within its range of records."""
        declared = _values_by_partition(self.offsets)
        _require_start_per_partition(declared, selection, target)
        numbers = {partition: offset for partition, offset in declared.items() if isinstance(offset, int)}
        first, end = first_offsets(target, numbers), end_offsets(target, numbers)
        for partition, offset in numbers.items():
            if not first[partition] <= offset <= end[partition]:
                raise _no_records_error(
                    f"{_partition_label(partition)} cannot be read from offset {offset:,} on.",
                    f"Its records begin at {first[partition]:,} and end before {end[partition]:,}.",
                    "Set an offset between these, or 'earliest' or 'latest'.",
                )

    def options(self, selection: TopicSelection, target: Target) -> dict[str, str]:
        """Return the offsets in the format of Spark's connector."""
        return _starting_offsets(
            {
                partition: offset if isinstance(offset, int) else _SPARK_OFFSETS[offset]
                for partition, offset in _values_by_partition(self.offsets).items()
            }
        )


@dataclass(frozen=True)
class StartTime:
    """Start at the first record at or after a time, by the record timestamps.

    | field   | meaning                                                                                         |
    |---------|-------------------------------------------------------------------------------------------------|
    | at      | a datetime with a timezone; or one per partition that is read, `{"rides": {0: at, 1: at}}`      |
    | if_none | what to do with a partition that has no such record: `error` fails and names it, since the time |
    |         | may be mistyped; `latest` starts at its end                                                     |

    Times have millisecond precision. The records of a partition need not be ordered by timestamp: every record after
    the first match is read, even with an earlier timestamp.
    """

    at: datetime | Mapping[str, Mapping[int, datetime]]
    if_none: Literal["error", "latest"] = "error"

    def __post_init__(self) -> None:
        times = list(_values_by_partition(self.at).values()) if isinstance(self.at, Mapping) else [self.at]
        for moment in times:
            if not isinstance(moment, datetime) or moment.utcoffset() is None:
                raise invalid_source(
                    f"{moment!r} is not a point in time.",
                    "A start needs a datetime with a timezone: without one it means another moment on each machine.",
                    "Write datetime(2026, 1, 31, 12, tzinfo=UTC), with UTC from the module datetime.",
                )
        if self.if_none not in ("error", "latest"):
            raise invalid_source(
                f"StartTime sets if_none to {self.if_none!r}.",
                f"It is 'error' or 'latest'.{did_you_mean(str(self.if_none), ('error', 'latest'))}",
                "Set one of the two.",
            )
        if not isinstance(self.at, datetime):
            object.__setattr__(self, "at", _read_only(self.at))

    def require(self, selection: TopicSelection, target: Target) -> None:
        """Raise unless every partition has a time, and, where none is an error, a record at or after it."""
        times = self._times_by_partition(selection, target)
        if not isinstance(self.at, datetime):
            _require_start_per_partition(times, selection, target)
        if self.if_none == "error":
            without = [partition for partition, offset in offsets_at(target, times).items() if offset is None]
            if without:
                raise _no_records_error(
                    f"{_partition_label(without[0])} has no record at or after "
                    f"{(_EPOCH + timedelta(milliseconds=times[without[0]])).isoformat(timespec='milliseconds')}.",
                    f"Partitions without one: {len(without)} of {len(times)}.",
                    "Correct the time, or set if_none='latest' to begin at the end of such partitions.",
                )

    def options(self, selection: TopicSelection, target: Target) -> dict[str, str]:
        """Return the time in the format of Spark's connector; asks the broker where `if_none` is `latest`.

        Spark's own strategy `latest` reads the end after it has looked up the time, so a record that arrives between
        the two would never be read. Here the end is read first.
        """
        if self.if_none == "error":
            if isinstance(self.at, datetime):
                where = {"startingTimestamp": str(_epoch_millis(self.at))}
            else:
                per_partition = {
                    topic: {str(number): _epoch_millis(at) for number, at in partitions.items()}
                    for topic, partitions in self.at.items()
                }
                where = {"startingOffsetsByTimestamp": json.dumps(per_partition)}
            return {**where, "startingOffsetsByTimestampStrategy": "error"}
        times = self._times_by_partition(selection, target)
        ends = end_offsets(target, times)
        offsets = offsets_at(target, times)
        return _starting_offsets(
            {partition: ends[partition] if (offset := offsets[partition]) is None else offset for partition in times}
        )

    def _times_by_partition(self, selection: TopicSelection, target: Target) -> dict[Partition, int]:
        if isinstance(self.at, datetime):
            read = selection.partitions(target)
            return {(topic, number): _epoch_millis(self.at) for topic, numbers in read.items() for number in numbers}
        return {partition: _epoch_millis(at) for partition, at in _values_by_partition(self.at).items()}


Start = EarliestOrLatest | StartOffsets | StartTime


def resolve_start(starting: Start, selection: TopicSelection, target: Target) -> str:
    """Return the current offsets of a start for every partition, as in the offset log. Asks the broker."""
    read = [(topic, number) for topic, numbers in selection.partitions(target).items() for number in numbers]
    first, end = first_offsets(target, read), end_offsets(target, read)
    if isinstance(starting, StartTime):
        offsets_by_time = offsets_at(target, starting._times_by_partition(selection, target))
        offsets = {
            partition: end[partition] if (offset := offsets_by_time.get(partition)) is None else offset
            for partition in read
        }
    else:
        declared = (
            _values_by_partition(starting.offsets)
            if isinstance(starting, StartOffsets)
            else dict.fromkeys(read, starting)
        )
        edges = {"earliest": first, "latest": end}
        offsets = {
            partition: edges[at][partition] if isinstance(at, str) else at
            for partition, at in declared.items()
            if partition in end
        }
    return _starting_offsets(offsets)["startingOffsets"]


def require_earliest_or_latest(source: str, starting: object) -> None:
    """Raise unless a start is `earliest` or `latest`."""
    if starting not in _SPARK_OFFSETS:
        raise invalid_source(
            f"{source} starts at {starting!r}.",
            f"A start is 'earliest', 'latest', StartOffsets or StartTime.{did_you_mean(str(starting), _SPARK_OFFSETS)}",
            "Set starting to one of them.",
        )


def _starting_offsets(offsets: Mapping[Partition, int]) -> dict[str, str]:
    by_topic: dict[str, dict[str, int]] = {}
    for (topic, number), offset in offsets.items():
        by_topic.setdefault(topic, {})[str(number)] = offset
    return {"startingOffsets": json.dumps(by_topic)}


def _values_by_partition(by_topic: Mapping[str, Mapping[int, _Value]]) -> dict[Partition, _Value]:
    """Flatten a declaration to its partitions; raise for an invalid topic name or partition number."""
    values: dict[Partition, _Value] = {}
    for topic, by_number in by_topic.items():
        require_topic_name(topic)
        for number, value in by_number.items():
            if not isinstance(number, int) or number < 0:
                raise invalid_source(
                    f"{number!r} is not a partition of topic '{topic}'.",
                    "Partitions count from 0.",
                    "Name the partition by its number.",
                )
            values[topic, number] = value
    if not values:
        raise invalid_source("A start names no partition.", "Every partition needs one.", "Name each partition.")
    return values


def _read_only(by_topic: Mapping[str, Mapping[int, _Value]]) -> Mapping[str, Mapping[int, _Value]]:
    return MappingProxyType({topic: MappingProxyType(dict(partitions)) for topic, partitions in by_topic.items()})


def _epoch_millis(at: datetime) -> int:
    """Return a time in epoch milliseconds, rounded up, to exclude records before it."""
    return -((_EPOCH - at) // timedelta(milliseconds=1))


def _require_start_per_partition(
    declared: Mapping[Partition, object], selection: TopicSelection, target: Target
) -> None:
    """Raise unless exactly the partitions that are read have a start. Spark's own error is late and unclear."""
    read = {(topic, number) for topic, numbers in selection.partitions(target).items() for number in numbers}
    missing, unknown = sorted(read - declared.keys()), sorted(declared.keys() - read)
    if missing or unknown:
        problems = [f"No start for: {', '.join(map(_partition_label, missing))}."] if missing else []
        problems += [f"Not among those that are read: {', '.join(map(_partition_label, unknown))}."] if unknown else []
        raise FlowError(
            f"The start of {selection.label} does not fit its partitions.",
            why=" ".join(problems),
            remedy="Give every partition that is read a start, and no other.",
            code="HR-212",
        )


def _no_records_error(what: str, why: str, remedy: str) -> FlowError:
    return FlowError(what, why=why, remedy=remedy, code="HR-213")


def _partition_label(partition: Partition) -> str:
    return f"{partition[0]}[{partition[1]}]"
