"""The error tree: every error that Headrace raises on purpose.

    HeadraceError                what failed, why, the state of the data, what to run
    ├── Terminal                 a retry cannot help: a person has to act
    │   ├── ConfigError          HR-1xx  headrace.yml, the command line, the machine
    │   ├── FlowError            HR-2xx  a flow that is declared wrongly
    │   ├── RecoveryError        HR-3xx  a checkpoint, a lease or an identity that is not valid
    │   │   └── ProducerFenced       HR-309  another driver has fenced the producer of a transaction
    │   ├── StackError           HR-4xx  a local part (broker, jars) that does not work
    │   └── DataError            HR-5xx  rows, offsets or topics that are missing or not as declared
    │       ├── TopicNotFound        HR-501  a topic that does not exist
    │       ├── KafkaDataLoss        HR-502  offsets that Kafka no longer has and the flow has not read
    │       ├── SourceNotReplayable  HR-511  a source that cannot read the rows of an old batch again
    │       ├── CaptureGap           HR-522  changes of a database that were removed before they were captured
    │       └── UnreadableChange     HR-540  a captured value that does not fit the type of its column
    └── Transient                a retry may help: the supervisor restarts the flow with back-off
        └── ServiceUnavailable   HR-6xx  a broker, a database or a filesystem that does not answer
            └── TableNotCreated      HR-572  a Delta table that another flow has not created yet

The supervisor reads only Terminal or Transient. Users and tests read `code`, which never changes
its meaning. Exceptions of Spark, Kafka and Delta are mapped into this tree at the boundary.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from functools import partial


class HeadraceError(Exception):
    """The root. Catch this to catch everything Headrace raises on purpose.

    The four parts of a message, each one or two sentences:

    | part   | says                                            |
    |--------|-------------------------------------------------|
    | what   | what failed, and where                          |
    | why    | the cause, if Headrace can tell                 |
    | state  | what happened to the data: written, safe, lost  |
    | remedy | the command or the edit that fixes it           |
    """

    code: str = "HR-000"
    state: str
    """A class whose errors are mostly raised before anything happens has a default."""

    def __init__(self, what: str, *, why: str, remedy: str, state: str | None = None, code: str | None = None) -> None:
        self.what, self.why, self.remedy = what, why, remedy
        self.state = self.state if state is None else state
        self.code = self.code if code is None else code
        super().__init__(f"[{self.code}] {what} {why} {self.state} {remedy}")

    def __reduce__(self) -> tuple[Callable[[str], HeadraceError], tuple[str]]:
        # A task on an executor sends its error to the driver as a value.
        parts = partial(type(self), why=self.why, state=self.state, remedy=self.remedy, code=self.code)
        return parts, (self.what,)

    def as_dict(self) -> dict[str, str]:
        """The error as `--json` prints it."""
        return {
            "code": self.code,
            "error": type(self).__name__,
            "what": self.what,
            "why": self.why,
            "state": self.state,
            "remedy": self.remedy,
        }


class Terminal(HeadraceError):
    """An error that a retry cannot fix: a person has to act."""


class Transient(HeadraceError):
    """An error that a later retry may not meet again."""


class ConfigError(Terminal):
    """The configuration, the command line or the machine cannot do what a command needs."""

    code = "HR-100"
    state = "Nothing was started."


class FlowError(Terminal):
    """A flow is declared in a way that cannot run."""

    code = "HR-200"
    state = "Nothing was started."


class RecoveryError(Terminal):
    """A checkpoint, a lease or an identity is not valid."""

    code = "HR-300"


class StackError(Terminal):
    """A local part does not work."""

    code = "HR-400"


class DataError(Terminal):
    """Rows, offsets or topics are missing or not as declared."""

    code = "HR-500"


class TopicNotFound(DataError):
    """A topic does not exist."""

    code = "HR-501"


class KafkaDataLoss(DataError):
    """Kafka no longer has offsets that the flow has not read."""

    code = "HR-502"


class SourceNotReplayable(DataError):
    """A source cannot read the rows of an old batch again."""

    code = "HR-511"


class ServiceUnavailable(Transient):
    """A broker, a database or a filesystem does not answer."""

    code = "HR-600"


class TableNotCreated(ServiceUnavailable):
    """A Delta table does not exist yet: another flow creates it."""

    code = "HR-572"


class ProducerFenced(RecoveryError):
    """Another driver has fenced the producer of a transaction."""

    code = "HR-309"


class CaptureGap(DataError):
    """The source has removed changes that were not captured yet."""

    code = "HR-522"


class UnreadableChange(DataError):
    """A captured value does not fit the type that the source's catalogue says."""

    code = "HR-540"


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return ` Did you mean 'x'?` for the closest choice, or an empty string."""
    close = difflib.get_close_matches(word, list(choices), n=1, cutoff=0.6)
    return f" Did you mean '{close[0]}'?" if close else ""
