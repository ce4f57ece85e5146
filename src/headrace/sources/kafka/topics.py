"""Which partitions a Kafka source reads: topics by name, topics by pattern, or explicit partitions."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from headrace.clients.kafka import list_topics, require_topics
from headrace.errors import FlowError
from headrace.flow.target import Target
from headrace.sources.validation import invalid_source

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")

# The regular expression syntax with the same meaning in Python and Java, as far as it can match topic names.
_SHARED = re.compile(
    r"(?:[a-zA-Z0-9_.*+?|)^$-]|\\[.dDwW-]|\((?:\?(?::|<?[!=]))?|\{\d+(?:,\d*)?\}|\[\^?(?:[a-zA-Z0-9_.-]|\\[.dDwW-])+\])+"
)
# Excludes internal topics and the ledgers of exactly-once sinks from patterns such as `.*`.
_EXCLUDED = "(?!__|headrace-ledger-)"


class TopicSelection(Protocol):
    """The topics and partitions of a source. A frozen value: creating one does not contact the broker."""

    @property
    def label(self) -> str:
        """The short name for messages."""

    def reads(self, topic: str) -> bool:
        """Whether a topic of this name is read. Does not contact the broker."""

    def watched_topics(self) -> Sequence[str] | Callable[[str], bool]:
        """Return the names of the topics, or a predicate on topic names."""

    def option(self) -> tuple[str, str]:
        """Return the name and value of the option of Spark's Kafka connector."""

    def partitions(self, target: Target) -> dict[str, tuple[int, ...]]:
        """Return the partitions to read by topic, from the broker; raise if a topic or partition does not exist."""


@dataclass(frozen=True)
class TopicNames:
    """Topics by name. Declared as a string or a list of strings."""

    names: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.names:
            raise invalid_source("A Kafka source names no topic.", "There is nothing to read.", "Name at least one.")
        for name in self.names:
            require_topic_name(name)
        if len(set(self.names)) < len(self.names):
            raise invalid_source(f"{self.label} names a topic twice.", "Each is read once.", "Name each topic once.")

    @property
    def label(self) -> str:
        """Return `kafka:TOPIC,TOPIC`."""
        return f"kafka:{','.join(self.names)}"

    def reads(self, topic: str) -> bool:
        """Whether it is among the names."""
        return topic in self.names

    def watched_topics(self) -> Sequence[str]:
        """Return the names."""
        return self.names

    def option(self) -> tuple[str, str]:
        """Return the subscription to the names."""
        return "subscribe", ",".join(self.names)

    def partitions(self, target: Target) -> dict[str, tuple[int, ...]]:
        """Return all partitions of the topics; raise if a topic does not exist."""
        return _all_partitions(require_topics(target, self.names))


@dataclass(frozen=True)
class TopicPattern:
    r"""Every topic whose full name matches a regular expression, including topics that are created while the flow runs.

    A topic that is created later is read from its start. Internal topics and the ledgers of exactly-once sinks, named
    `headrace-ledger-...`, are never read. The expression may use syntax that Python and Java share: literals, `.`,
    classes, `\d`, `\w`, groups, `|`, repetition and lookaround.
    """

    regex: str

    def __post_init__(self) -> None:
        remedy = r"Write an expression for the complete name, such as TopicPattern(r'rides-\w+')."
        if not self.regex:
            raise invalid_source("An empty pattern matches no topic.", "There is nothing to read.", remedy)
        try:
            # Check the shared syntax first, because Python warns about some of Java's syntax.
            if not _SHARED.fullmatch(self.regex):
                raise invalid_source(
                    f"{self.label} cannot be used as a pattern.",
                    "It contains something that Python and Java read differently, or that no topic name can contain.",
                    remedy,
                )
            re.compile(self._full_regex)
        except re.error as error:
            raise invalid_source(
                f"{self.label} is not a regular expression.", f"{error}.".capitalize(), remedy
            ) from error

    @property
    def label(self) -> str:
        """Return `kafka:/REGEX/`."""
        return f"kafka:/{self.regex}/"

    def reads(self, topic: str) -> bool:
        """Whether the full name matches."""
        return re.fullmatch(self._full_regex, topic) is not None

    def watched_topics(self) -> Callable[[str], bool]:
        """Return the pattern as a predicate."""
        return self.reads

    def option(self) -> tuple[str, str]:
        """Return the anchored pattern: Spark would subscribe to every topic that contains a match."""
        return "subscribePattern", self._full_regex

    def partitions(self, target: Target) -> dict[str, tuple[int, ...]]:
        """Return all partitions of the matching topics; raise if no topic matches."""
        present = list_topics(target)
        matching = {name: count for name, count in present.items() if self.reads(name)}
        if not matching:
            raise missing_on_broker(
                f"No topic at {target.kafka['bootstrap.servers']} matches {self.label}.",
                f"The topics there are: {', '.join(present) or 'none'}.",
                "Correct the pattern, or create a topic with `headrace topics create NAME`.",
            )
        return _all_partitions(matching)

    @property
    def _full_regex(self) -> str:
        return f"^{_EXCLUDED}(?:{self.regex})$"


@dataclass(frozen=True)
class TopicPartitions:
    """Explicit partitions of topics: `TopicPartitions({"rides": [0, 1]})`.

    A partition that is added to a topic later is not read, without a warning.
    """

    assigned: Mapping[str, Sequence[int]]

    def __post_init__(self) -> None:
        if not self.assigned:
            raise invalid_source(
                "A Kafka source names no partition.", "There is nothing to read.", "Name at least one."
            )
        for topic, numbers in self.assigned.items():
            require_topic_name(topic)
            valid = [number for number in numbers if isinstance(number, int) and number >= 0]
            if not valid or len(set(valid)) < len(numbers):
                raise invalid_source(
                    f"The partitions {list(numbers)} of topic '{topic}' cannot be read.",
                    "Partitions count from 0, each is read once, and there has to be one.",
                    "Name the partitions by their numbers, each once.",
                )
        frozen = {topic: tuple(sorted(numbers)) for topic, numbers in sorted(self.assigned.items())}
        object.__setattr__(self, "assigned", MappingProxyType(frozen))

    @property
    def label(self) -> str:
        """Return `kafka:TOPIC[0,1]`."""
        return "kafka:" + ",".join(
            f"{topic}[{','.join(map(str, numbers))}]" for topic, numbers in self.assigned.items()
        )

    def reads(self, topic: str) -> bool:
        """Whether at least one partition of the topic is declared."""
        return topic in self.assigned

    def watched_topics(self) -> Sequence[str]:
        """Return the topics of the declared partitions."""
        return list(self.assigned)

    def option(self) -> tuple[str, str]:
        """Return the assignment."""
        return "assign", json.dumps({topic: list(numbers) for topic, numbers in self.assigned.items()})

    def partitions(self, target: Target) -> dict[str, tuple[int, ...]]:
        """Return the partitions; raise if one does not exist."""
        present = require_topics(target, list(self.assigned))
        for topic, numbers in self.assigned.items():
            missing = [number for number in numbers if number >= present[topic]]
            if missing:
                raise missing_on_broker(
                    f"Topic '{topic}' at {target.kafka['bootstrap.servers']} has no partition {missing[0]}.",
                    f"It has {present[topic]}, counted from 0.",
                    "Name partitions that exist.",
                )
        return {topic: tuple(numbers) for topic, numbers in self.assigned.items()}


def require_topic_name(name: str) -> None:
    """Raise unless the topic name is valid. Spark would split a name at a comma."""
    if not _TOPIC.fullmatch(name) or name in (".", ".."):
        raise invalid_source(
            f"{name!r} is not the name of a topic.",
            "A name contains a-z, A-Z, 0-9, dot, _ and -, at most 249 of them.",
            "Correct the name; several topics are a list, and a pattern is a TopicPattern.",
        )


def missing_on_broker(what: str, why: str, remedy: str) -> FlowError:
    """Return HR-211: a declared topic or partition does not exist on the broker."""
    return FlowError(what, why=why, remedy=remedy, code="HR-211")


def _all_partitions(counts: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    return {topic: tuple(range(count)) for topic, count in counts.items()}
