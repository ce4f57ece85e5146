"""Lines of text from a TCP port, for demonstrations."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.errors import PartUnavailable
from headrace.flow.target import Target
from headrace.sources.bounds import undeclarable
from headrace.sources.errors import not_again

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# A port of this machine or its network answers in milliseconds.
_ANSWER_WITHIN_SECONDS = 5.0


@dataclass(frozen=True)
class SocketSource:
    """Read lines of text from a TCP port. Best effort, for demonstrations only.

    Nothing is kept: a line that was sent and not yet committed when the flow stops is lost, a line that is sent while
    the flow is down is lost, and a batch has no bound. A flow that has read lines cannot go on under its checkpoint:
    Spark counts lines anew with each connection, and refuses.

    Rows carry `value`, the line, and `timestamp`, when it came.

    Each start opens a connection to see whether somebody listens, closes it, and opens another one for the lines: the
    listener has to accept more than one (`nc -lk`).

    | field | meaning                   |
    |-------|---------------------------|
    | host  | the machine that is asked |
    | port  | the port there            |
    """

    host: str
    port: int

    def __post_init__(self) -> None:
        if not 0 < self.port < 65536:
            raise undeclarable(f"{self.name} is not an address.", "A port is a number from 1 to 65535.", "Set port.")

    @property
    def name(self) -> str:
        """Return `socket:HOST:PORT`."""
        return f"socket:{self.host}:{self.port}"

    @property
    def carries_payload(self) -> bool:
        """Lines come as text, without what a payload's record has around it."""
        return False

    @property
    def read_once(self) -> str:
        """Why an old batch cannot be read again."""
        return "Lines are gone once they were sent."

    def preflight(self, target: Target) -> None:
        """Connect once and hang up."""
        try:
            socket.create_connection((self.host, self.port), timeout=_ANSWER_WITHIN_SECONDS).close()
        except OSError as error:
            raise PartUnavailable(
                f"Nobody answers at {self.host}:{self.port}.",
                why=f"The connection failed: {error}.",
                state="Nothing was started. Lines that were sent meanwhile are lost.",
                remedy=f"Start what sends the lines, for instance `nc -lk {self.port}`, or correct the address.",
                code="HR-611",
            ) from error

    def stream(self, spark: SparkSession, target: Target) -> DataFrame:
        """Return the endless frame of the lines. A port that does not answer now is no error of the flow."""
        self.preflight(target)
        return (
            spark.readStream.format("socket")
            .option("host", self.host)
            .option("port", str(self.port))
            .option("includeTimestamp", "true")
            .load()
        )

    def batch(self, spark: SparkSession, target: Target, start: str, end: str) -> DataFrame:
        """Raise: nothing is kept."""
        raise not_again(self.name, self.read_once)
