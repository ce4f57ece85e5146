"""Declare a capture: which tables of a database, and the names of their topics."""

import re
import zlib
from abc import ABC, abstractmethod
from dataclasses import dataclass

from headrace.cdc.capture.source_table import SourceTable
from headrace.errors import FlowError
from headrace.flow.duration import Duration
from headrace.flow.sink import Sink, leaf_sinks

# The allowed prefixes of a capture: they become part of the names of topics, the connector and the replication slot.
_PREFIX = re.compile(r"[a-z][a-z0-9_]{0,39}")

# Characters that the name of a topic may not contain. Debezium replaces them with an underscore.
_NOT_IN_TOPICS = re.compile(r"[^a-zA-Z0-9._-]")


@dataclass(frozen=True)
class TableSelection:
    """A selection of tables, by full names (`public.orders`) or by a pattern that must match a full name completely."""

    names: tuple[str, ...] = ()
    pattern: str | None = None

    def includes(self, schema: str, name: str) -> bool:
        """Whether a table is selected."""
        full = f"{schema}.{name}"
        return full in self.names if self.pattern is None else re.fullmatch(self.pattern, full) is not None

    @property
    def expression(self) -> str:
        """The selection as one regular expression, in the syntax that Python and Java share."""
        return self.pattern if self.pattern is not None else "|".join(re.escape(name) for name in self.names)


@dataclass(frozen=True)
class Capture:
    r"""The changes of a database, from the tables to one topic each.

    | field        | example              | meaning                                                                |
    |--------------|----------------------|------------------------------------------------------------------------|
    | database     | `"shop"`             | a database of the target, by name                                      |
    | tables       | `("public.orders",)` | full names; or a pattern as one text, `r"public\..*"`: tables that are |
    |              |                      | made later and match it are captured from their first row              |
    | prefix       | `"shop"`             | prefix of topic names; also names the connector and, in Postgres,      |
    |              |                      | the slot and the publication. Default: the name of the database        |
    | heartbeat    | `"10 seconds"`       | how often the position moves while nothing changes: a slot that does   |
    |              |                      | not move retains the log of every other database of the server         |
    | retained_max | 5 GB                 | bytes of log that a slot may retain before a warning is reported       |
    """

    database: str
    tables: tuple[str, ...] | str
    prefix: str = ""
    heartbeat: str = "10 seconds"
    retained_max: int = 5 * 10**9

    def __post_init__(self) -> None:
        if not self.prefix:
            object.__setattr__(self, "prefix", self.database)
        Duration.parse(self.heartbeat)
        if not _PREFIX.fullmatch(self.prefix):
            raise _invalid_capture(
                f"Its prefix '{self.prefix}' is not a name.",
                "Use at most 40 lower-case letters, digits and underscores, starting with a letter: "
                "`Capture(..., prefix='shop')`.",
            )
        if isinstance(self.tables, str):
            try:
                re.compile(self.tables)
            except re.error as error:
                raise _invalid_capture(
                    f"Its pattern cannot be read: {error}.", "Correct `tables` of the capture."
                ) from error
        for name in () if isinstance(self.tables, str) else self.tables:
            if not re.fullmatch(r"[^.]+\.[^.]+", name):
                raise _invalid_capture(
                    f"'{name}' is not the full name of a table.", "Write schema and table: `public.orders`."
                )
        if not self.tables:
            raise _invalid_capture("It names no table.", r"Name tables, or all of a schema: `tables=r'public\..*'`.")

    @property
    def selection(self) -> TableSelection:
        """The selected tables."""
        return TableSelection(pattern=self.tables) if isinstance(self.tables, str) else TableSelection(self.tables)

    @property
    def connector(self) -> str:
        """The name of the connector; topics begin with it."""
        return self.prefix

    @property
    def slot(self) -> str:
        """The name of the replication slot and of the publication, in Postgres."""
        return f"headrace_{self.prefix}"

    @property
    def server_id(self) -> int:
        """The server id of the connector for a binlog, the same at every start. No replica may use the same id."""
        return 1_000_000 + zlib.crc32(self.prefix.encode()) % 2_000_000_000

    def topic(self, table: SourceTable) -> str:
        """Return the topic of a table."""
        return _NOT_IN_TOPICS.sub("_", f"{self.prefix}.{table}")

    @property
    def transactions(self) -> str:
        """The transaction metadata topic of the connector."""
        return f"{self.prefix}.transaction"

    @property
    def messages(self) -> str:
        """The topic of log messages that are not changes. No flow reads it."""
        return f"{self.prefix}.message"

    @property
    def schema_history(self) -> str:
        """The topic in which the connector of a binlog stores the columns of the tables for its own use."""
        return f"{self.prefix}.schema-history"

    @property
    def internal_topics(self) -> tuple[str, ...]:
        """The topics of the capture that belong to no table."""
        heartbeats = f"__debezium-heartbeat.{self.prefix}"
        return self.transactions, self.messages, self.schema_history, heartbeats

    @property
    def topics(self) -> str:
        """A pattern for the topics of all tables, including tables that are created later.

        Topics of tables have two parts after the prefix; internal topics of the capture have one.
        """
        if isinstance(self.tables, str):
            return rf"{re.escape(self.prefix)}\.[^.]+\.[^.]+"
        names = (re.escape(_NOT_IN_TOPICS.sub("_", name)) for name in self.tables)
        return rf"{re.escape(self.prefix)}\.(?:{'|'.join(names)})"


class HasCapture(ABC):
    """A sink for the changes of a captured database."""

    @property
    @abstractmethod
    def capture(self) -> Capture | None:
        """The capture that fills the topics, if it is declared: `headrace capture` starts it."""


def captures(sink: Sink) -> tuple[Capture, ...]:
    """Return the declared captures whose changes a sink applies, each once."""
    declared = (leaf.capture for _, leaf in leaf_sinks(sink) if isinstance(leaf, HasCapture))
    return tuple(dict.fromkeys(capture for capture in declared if capture is not None))


def _invalid_capture(why: str, remedy: str) -> FlowError:
    return FlowError("A capture is declared in a way that cannot run.", why=why, remedy=remedy, code="HR-260")
