"""Lines of text from a TCP port, for demos."""

import socket
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from headrace.errors import ServiceUnavailable
from headrace.flow.source import NotReplayable
from headrace.flow.target import Target
from headrace.sources.errors import source_not_replayable
from headrace.sources.validation import invalid_source

# A port of this machine or its network answers in milliseconds.
_ANSWER_WITHIN_SECONDS = 5.0


@dataclass(frozen=True)
class SocketSource(NotReplayable):
    """Read lines of text from a TCP port. Best effort, for demos only.

    Nothing is stored: lines that are not committed when the flow stops are lost, lines that are sent while the flow is
    down are lost, and batches are unbounded. A flow that has read lines cannot resume from its checkpoint: Spark counts
    lines from 0 for each connection, and fails.

    Rows have `value`, the line, and `timestamp`, its arrival time.

    Each start opens one connection to check the port, closes it, and opens another one for the lines: the listener has
    to accept more than one (`nc -lk`).

    | field | meaning                |
    |-------|------------------------|
    | host  | the host to connect to |
    | port  | the port to connect to |
    """

    host: str
    port: int

    def __post_init__(self) -> None:
        if not 0 < self.port < 65536:
            raise invalid_source(f"{self.name} is not an address.", "A port is a number from 1 to 65535.", "Set port.")

    @property
    def name(self) -> str:
        """Return `socket:HOST:PORT`."""
        return f"socket:{self.host}:{self.port}"

    @property
    def carries_payload(self) -> bool:
        """False: lines are text columns, not records with a payload."""
        return False

    @property
    def not_replayable_reason(self) -> str:
        """Why an old batch cannot be read again."""
        return "Lines are not stored after they were sent."

    def preflight(self, target: Target) -> None:
        """Check that the port accepts a connection."""
        try:
            socket.create_connection((self.host, self.port), timeout=_ANSWER_WITHIN_SECONDS).close()
        except OSError as error:
            raise ServiceUnavailable(
                f"Nobody answers at {self.host}:{self.port}.",
                why=f"The connection failed: {error}.",
                state="Nothing was started. Lines that were sent in the meantime are lost.",
                remedy=f"Start what sends the lines, for instance `nc -lk {self.port}`, or correct the address.",
                code="HR-611",
            ) from error

    def stream(self, spark: SparkSession, target: Target) -> DataFrame:
        """Return the streaming DataFrame of the lines. A port that does not answer is transient (HR-611)."""
        self.preflight(target)
        return (
            spark.readStream.format("socket")
            .option("host", self.host)
            .option("port", str(self.port))
            .option("includeTimestamp", "true")
            .load()
        )

    def batch(self, spark: SparkSession, target: Target, start: str, end: str) -> DataFrame:
        """Raise HR-511: lines are not stored."""
        raise source_not_replayable(self.name, self.not_replayable_reason)
