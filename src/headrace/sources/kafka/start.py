"""Where the first start of a Kafka source begins. A checkpoint goes before: later starts read none of this."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Literal, TypeVar

from headrace.clients.positions import Partition, end_offsets, first_offsets, offsets_at
from headrace.errors import FlowError, nearest
from headrace.flow.target import Target
from headrace.sources.bounds import undeclarable
from headrace.sources.kafka.topics import Selection, require_topic_name

Edge = Literal["earliest", "latest"]

# How Spark's connector writes the two edges between offsets.
_EDGES = {"earliest": -2, "latest": -1}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_Place = TypeVar("_Place")


@dataclass(frozen=True)
class StartOffsets:
    """Begin at given offsets: `StartOffsets({"rides": {0: 1200, 1: "earliest"}})`.

    Every partition that the source reads needs one, an offset or an edge. Whatever is missing, is not there, or is not
    between the first and the end offset of its partition is refused before the first start.
    """

    offsets: Mapping[str, Mapping[int, int | Edge]]

    def __post_init__(self) -> None:
        for place, offset in _each(self.offsets).items():
            if offset not in _EDGES and (not isinstance(offset, int) or offset < 0):
                raise undeclarable(
                    f"{offset!r} is not an offset of {_written(place)}.",
                    "Offsets count from 0.",
                    "Set a number, or 'earliest' or 'latest'.",
                )
        object.__setattr__(self, "offsets", _frozen(self.offsets))

    def require(self, selection: Selection, target: Target) -> None:
        """Raise unless every partition has an offset that its records reach to."""
        wanted = _each(self.offsets)
        _require_all(wanted, selection, target)
        numbers = {place: offset for place, offset in wanted.items() if isinstance(offset, int)}
        first, end = first_offsets(target, numbers), end_offsets(target, numbers)
        for place, offset in numbers.items():
            if not first[place] <= offset <= end[place]:
                raise _nothing_there(
                    f"{_written(place)} cannot be read from offset {offset:,} on.",
                    f"Its records begin at {first[place]:,} and end before {end[place]:,}.",
                    "Set an offset between these, or 'earliest' or 'latest'.",
                )

    def options(self, selection: Selection, target: Target) -> dict[str, str]:
        """Return the offsets as Spark's connector takes them."""
        return _explicit({place: _as_number(offset) for place, offset in _each(self.offsets).items()})


@dataclass(frozen=True)
class StartTime:
    """Begin at the first record at or after a time, by the timestamps that Kafka keeps of records.

    | field   | meaning                                                                                         |
    |---------|-------------------------------------------------------------------------------------------------|
    | at      | a datetime with a timezone; or one per partition, `{"rides": {0: at, 1: at}}`, for all that are  |
    |         | read                                                                                            |
    | if_none | what to do with a partition that has no such record: `error` refuses the start and names it,    |
    |         | since the time may be mistyped; `latest` begins at its end, and reads all that arrive from then |

    Times are read to the millisecond. Records of a partition need not be in the order of their timestamps: those behind
    the first one that matches are all read, earlier or not.
    """

    at: datetime | Mapping[str, Mapping[int, datetime]]
    if_none: Literal["error", "latest"] = "error"

    def __post_init__(self) -> None:
        times = list(_each(self.at).values()) if isinstance(self.at, Mapping) else [self.at]
        for each in times:
            if not isinstance(each, datetime) or each.utcoffset() is None:
                raise undeclarable(
                    f"{each!r} is not a point in time.",
                    "A start needs a datetime with a timezone: without one it means another moment on each machine.",
                    "Write datetime(2026, 1, 31, 12, tzinfo=UTC), with UTC from the module datetime.",
                )
        if self.if_none not in ("error", "latest"):
            raise undeclarable(
                f"StartTime sets if_none to {self.if_none!r}.",
                f"It is 'error' or 'latest'.{nearest(str(self.if_none), ('error', 'latest'))}",
                "Set one of the two.",
            )
        if not isinstance(self.at, datetime):
            object.__setattr__(self, "at", _frozen(self.at))

    def require(self, selection: Selection, target: Target) -> None:
        """Raise unless every partition has a time, and, where none is an error, a record at or after it."""
        times = self._times(selection, target)
        if not isinstance(self.at, datetime):
            _require_all(times, selection, target)
        if self.if_none == "error":
            without = [place for place, offset in offsets_at(target, times).items() if offset is None]
            if without:
                raise _nothing_there(
                    f"{_written(without[0])} has no record at or after "
                    f"{(_EPOCH + timedelta(milliseconds=times[without[0]])).isoformat(timespec='milliseconds')}.",
                    f"Partitions without one: {len(without)} of {len(times)}.",
                    "Correct the time, or set if_none='latest' to begin at the end of such partitions.",
                )

    def options(self, selection: Selection, target: Target) -> dict[str, str]:
        """Return the time as Spark's connector takes it; asks the broker where `if_none` is `latest`.

        Spark's own strategy `latest` asks for the end after it has asked for the time, so a record that arrives between
        the two would never be read. Here the end is asked for first.
        """
        if self.if_none == "error":
            if isinstance(self.at, datetime):
                where = {"startingTimestamp": str(_ms(self.at))}
            else:
                per_partition = {
                    topic: {str(number): _ms(at) for number, at in of.items()} for topic, of in self.at.items()
                }
                where = {"startingOffsetsByTimestamp": json.dumps(per_partition)}
            return {**where, "startingOffsetsByTimestampStrategy": "error"}
        times = self._times(selection, target)
        ends = end_offsets(target, times)
        found = offsets_at(target, times)
        return _explicit({place: ends[place] if (offset := found[place]) is None else offset for place in times})

    def _times(self, selection: Selection, target: Target) -> dict[Partition, int]:
        if isinstance(self.at, datetime):
            read = selection.partitions(target)
            return {(topic, number): _ms(self.at) for topic, numbers in read.items() for number in numbers}
        return {place: _ms(at) for place, at in _each(self.at).items()}


Start = Edge | StartOffsets | StartTime


def resolved(starting: Start, selection: Selection, target: Target) -> str:
    """Return where a start begins now, every partition by its number, as the offset log writes it. Asks the broker."""
    read = [(topic, number) for topic, numbers in selection.partitions(target).items() for number in numbers]
    first, end = first_offsets(target, read), end_offsets(target, read)
    if isinstance(starting, StartTime):
        found = offsets_at(target, starting._times(selection, target))
        places = {place: end[place] if (offset := found.get(place)) is None else offset for place in read}
    else:
        declared = _each(starting.offsets) if isinstance(starting, StartOffsets) else dict.fromkeys(read, starting)
        edges = {"earliest": first, "latest": end}
        places = {
            place: edges[at][place] if isinstance(at, str) else at for place, at in declared.items() if place in end
        }
    return _explicit(places)["startingOffsets"]


def require_edge(source: str, starting: object) -> None:
    """Raise unless a start that is none of the two classes is an edge."""
    if starting not in _EDGES:
        raise undeclarable(
            f"{source} starts at {starting!r}.",
            f"A start is 'earliest', 'latest', StartOffsets or StartTime.{nearest(str(starting), _EDGES)}",
            "Set starting to one of them.",
        )


def _as_number(offset: int | Edge) -> int:
    return offset if isinstance(offset, int) else _EDGES[offset]


def _explicit(offsets: Mapping[Partition, int]) -> dict[str, str]:
    by_topic: dict[str, dict[str, int]] = {}
    for (topic, number), offset in offsets.items():
        by_topic.setdefault(topic, {})[str(number)] = offset
    return {"startingOffsets": json.dumps(by_topic)}


def _each(by_topic: Mapping[str, Mapping[int, _Place]]) -> dict[Partition, _Place]:
    """Return what is declared per partition; raise for what is no topic and no partition."""
    found: dict[Partition, _Place] = {}
    for topic, by_number in by_topic.items():
        require_topic_name(topic)
        for number, value in by_number.items():
            if not isinstance(number, int) or number < 0:
                raise undeclarable(
                    f"{number!r} is not a partition of topic '{topic}'.",
                    "Partitions count from 0.",
                    "Name the partition by its number.",
                )
            found[topic, number] = value
    if not found:
        raise undeclarable("A start names no partition.", "Every partition needs one.", "Name each partition.")
    return found


def _frozen(by_topic: Mapping[str, Mapping[int, _Place]]) -> Mapping[str, Mapping[int, _Place]]:
    return MappingProxyType({topic: MappingProxyType(dict(of)) for topic, of in by_topic.items()})


def _ms(at: datetime) -> int:
    """Return a time in milliseconds since 1970, rounded up: a record before it is not meant."""
    return -((_EPOCH - at) // timedelta(milliseconds=1))


def _require_all(declared: Mapping[Partition, object], selection: Selection, target: Target) -> None:
    """Raise unless exactly the partitions that are read have a start. Spark would say so late and unclearly."""
    read = {(topic, number) for topic, numbers in selection.partitions(target).items() for number in numbers}
    missing, unknown = sorted(read - declared.keys()), sorted(declared.keys() - read)
    if missing or unknown:
        said = [f"No start for: {', '.join(map(_written, missing))}."] if missing else []
        said += [f"Not among those that are read: {', '.join(map(_written, unknown))}."] if unknown else []
        raise FlowError(
            f"The start of {selection.label} does not fit its partitions.",
            why=" ".join(said),
            state="Nothing was started.",
            remedy="Give every partition that is read a start, and no other.",
            code="HR-212",
        )


def _nothing_there(what: str, why: str, remedy: str) -> FlowError:
    return FlowError(what, why=why, state="Nothing was started.", remedy=remedy, code="HR-213")


def _written(place: Partition) -> str:
    return f"{place[0]}[{place[1]}]"
