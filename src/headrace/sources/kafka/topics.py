"""Which partitions a Kafka source reads: of topics by name, of topics that match a pattern, or given ones."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from headrace.clients.kafka import list_topics, require_topics
from headrace.errors import FlowError
from headrace.flow.target import Target
from headrace.sources.bounds import undeclarable

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")

# What Python's and Java's regular expressions read alike, of all that can match the name of a topic.
_SHARED = re.compile(
    r"(?:[a-zA-Z0-9_.*+?|)^$-]|\\[.dDwW-]|\((?:\?(?::|<?[!=]))?|\{\d+(?:,\d*)?\}|\[\^?(?:[a-zA-Z0-9_.-]|\\[.dDwW-])+\])+"
)
# Kafka's own topics, and the records of exactly-once sinks, which a pattern such as `.*` is not meant to read.
_NEVER = "(?!__|headrace-ledger-)"


class Selection(Protocol):
    """What a source reads. A frozen value: making one asks nobody."""

    @property
    def label(self) -> str:
        """The short name in messages."""

    def reads(self, topic: str) -> bool:
        """Whether a topic of that name is read. Asks nobody."""

    def watched(self) -> Sequence[str] | Callable[[str], bool]:
        """Return the names of the topics, or the condition that tells them from others."""

    def option(self) -> tuple[str, str]:
        """Return the option of Spark's connector, its name and its value."""

    def partitions(self, target: Target) -> dict[str, tuple[int, ...]]:
        """Ask the broker and return the partitions that are read now, by topic; raise when something is not there."""


@dataclass(frozen=True)
class TopicNames:
    """Topics by name. In a declaration, a text or a list of texts stands for it."""

    names: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.names:
            raise undeclarable("A Kafka source names no topic.", "There is nothing to read.", "Name at least one.")
        for name in self.names:
            require_topic_name(name)
        if len(set(self.names)) < len(self.names):
            raise undeclarable(f"{self.label} names a topic twice.", "Each is read once.", "Name each topic once.")

    @property
    def label(self) -> str:
        """Return `kafka:TOPIC,TOPIC`."""
        return f"kafka:{','.join(self.names)}"

    def reads(self, topic: str) -> bool:
        """Whether it is among the names."""
        return topic in self.names

    def watched(self) -> Sequence[str]:
        """Return the names."""
        return self.names

    def option(self) -> tuple[str, str]:
        """Return the subscription to the names."""
        return "subscribe", ",".join(self.names)

    def partitions(self, target: Target) -> dict[str, tuple[int, ...]]:
        """Return all partitions of the topics, each of which has to be there."""
        return _all(require_topics(target, self.names))


@dataclass(frozen=True)
class TopicPattern:
    r"""Every topic whose whole name matches a regular expression, also one that is made while the flow runs.

    A topic that appears later is read from its start. Kafka's own topics and the ledgers of exactly-once sinks, those
    that are named `headrace-ledger-...`, are never read. The expression keeps to what Python and Java read alike:
    literals, `.`, classes, `\d`, `\w`, groups, `|`, repetition and lookaround.
    """

    regex: str

    def __post_init__(self) -> None:
        remedy = r"Write an expression for the whole name, such as TopicPattern(r'rides-\w+')."
        if not self.regex:
            raise undeclarable("An empty pattern matches no topic.", "There is nothing to read.", remedy)
        try:
            # First the syntax that both know, because Python warns of some of what only Java takes.
            if not _SHARED.fullmatch(self.regex):
                raise undeclarable(
                    f"{self.label} cannot be used as a pattern.",
                    "It holds something that Python and Java read differently, or that no name of a topic holds.",
                    remedy,
                )
            re.compile(self._whole)
        except re.error as error:
            raise undeclarable(
                f"{self.label} is not a regular expression.", f"{error}.".capitalize(), remedy
            ) from error

    @property
    def label(self) -> str:
        """Return `kafka:/REGEX/`."""
        return f"kafka:/{self.regex}/"

    def reads(self, topic: str) -> bool:
        """Whether the whole name matches."""
        return re.fullmatch(self._whole, topic) is not None

    def watched(self) -> Callable[[str], bool]:
        """Return the pattern as a condition."""
        return self.reads

    def option(self) -> tuple[str, str]:
        """Return the pattern from the first to the last letter: Spark would take any topic that contains a match."""
        return "subscribePattern", self._whole

    def partitions(self, target: Target) -> dict[str, tuple[int, ...]]:
        """Return all partitions of the topics that match, of which there has to be one at least."""
        present = list_topics(target)
        matching = {name: count for name, count in present.items() if self.reads(name)}
        if not matching:
            raise not_there(
                f"No topic at {target.kafka['bootstrap.servers']} matches {self.label}.",
                f"The topics there are: {', '.join(present) or 'none'}.",
                "Correct the pattern, or create a topic with `headrace topics create NAME`.",
            )
        return _all(matching)

    @property
    def _whole(self) -> str:
        return f"^{_NEVER}(?:{self.regex})$"


@dataclass(frozen=True)
class TopicPartitions:
    """Given partitions of topics, and no others: `TopicPartitions({"rides": [0, 1]})`.

    A partition that is added to a topic later is not read: no rows of it arrive, and nothing is said about it.
    """

    assigned: Mapping[str, Sequence[int]]

    def __post_init__(self) -> None:
        if not self.assigned:
            raise undeclarable("A Kafka source names no partition.", "There is nothing to read.", "Name at least one.")
        for topic, numbers in self.assigned.items():
            require_topic_name(topic)
            counted = [number for number in numbers if isinstance(number, int) and number >= 0]
            if not counted or len(set(counted)) < len(numbers):
                raise undeclarable(
                    f"The partitions {list(numbers)} of topic '{topic}' cannot be read.",
                    "Partitions count from 0, each is read once, and there has to be one.",
                    "Name the partitions by their numbers, each once.",
                )
        frozen = {topic: tuple(sorted(numbers)) for topic, numbers in sorted(self.assigned.items())}
        object.__setattr__(self, "assigned", MappingProxyType(frozen))

    @property
    def label(self) -> str:
        """Return `kafka:TOPIC[0,1]`."""
        return "kafka:" + ",".join(f"{topic}[{','.join(map(str, each))}]" for topic, each in self.assigned.items())

    def reads(self, topic: str) -> bool:
        """Whether one of its partitions is given."""
        return topic in self.assigned

    def watched(self) -> Sequence[str]:
        """Return the topics that partitions are given of."""
        return list(self.assigned)

    def option(self) -> tuple[str, str]:
        """Return the assignment."""
        return "assign", json.dumps({topic: list(numbers) for topic, numbers in self.assigned.items()})

    def partitions(self, target: Target) -> dict[str, tuple[int, ...]]:
        """Return the partitions, each of which has to be there."""
        present = require_topics(target, list(self.assigned))
        for topic, numbers in self.assigned.items():
            missing = [number for number in numbers if number >= present[topic]]
            if missing:
                raise not_there(
                    f"Topic '{topic}' at {target.kafka['bootstrap.servers']} has no partition {missing[0]}.",
                    f"It has {present[topic]}, counted from 0.",
                    "Name partitions that are there.",
                )
        return {topic: tuple(numbers) for topic, numbers in self.assigned.items()}


def require_topic_name(name: str) -> None:
    """Raise unless a topic can have the name. Spark would take a comma for two topics."""
    if not _TOPIC.fullmatch(name) or name in (".", ".."):
        raise undeclarable(
            f"{name!r} is not the name of a topic.",
            "A name holds a-z, A-Z, 0-9, dot, _ and -, at most 249 of them.",
            "Correct the name; several topics are a list, and a pattern is a TopicPattern.",
        )


def not_there(what: str, why: str, remedy: str) -> FlowError:
    """Return the error for a declaration that asks for something which the broker does not have."""
    return FlowError(what, why=why, state="Nothing was started.", remedy=remedy, code="HR-211")


def _all(counts: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    return {topic: tuple(range(count)) for topic, count in counts.items()}
