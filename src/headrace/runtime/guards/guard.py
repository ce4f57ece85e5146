"""The protocol of everything that watches a running query."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress

from headrace.errors import HeadraceError
from headrace.flow.sink import Batch
from headrace.runtime.events import BatchCommitted


class Stop(Protocol):
    """Stops the query of a guard. May be called from any thread, also before the query has started.

    Returns before the query has stopped. The flow ends with the first error of a guard.
    """

    def __call__(self, error: HeadraceError | None, *, immediately: bool = False) -> None:
        """Stop after the in-flight batch has committed; with `immediately` cancel it, unless the query has ended."""


@dataclass(frozen=True)
class Attempt:
    """One attempt to write a batch.

    `last_progress` returns Spark's newest progress, which the listener may not have reported yet. It waits until the
    query has started.
    """

    batch: Batch
    rows: DataFrame
    last_progress: Callable[[], StreamingQueryProgress | None]


@dataclass(frozen=True)
class InputProgress:
    """The progress of one input in one trigger. `rest` is True if it has more rows than the batch read."""

    rows: int
    rest: bool = False


@dataclass(frozen=True)
class Progress:
    """The progress of a committed batch or epoch. `inputs` is what each input read, if Spark reports it."""

    event: BatchCommitted
    inputs: Mapping[str, InputProgress] = field(default_factory=dict)


class Guard:
    """Watches one run of a query. The base class does nothing: a guard overrides what it needs.

    The order of the guards is in `guards/order.py`.
    """

    def before_start(self, session: SparkSession) -> None:
        """Check that the query may start. Called once, on the starting thread; raises if it must not."""

    def around_batch(self, attempt: Attempt) -> AbstractContextManager[None]:
        """Return the context in which one attempt of a batch is written, on Spark's thread. Raises to refuse it."""
        return nullcontext()

    def on_progress(self, progress: Progress) -> None:
        """Process the progress of a committed batch. Called once per batch, in order, by one thread at a time.

        The next batch may run already. The first batch may commit before the query counts as started.
        """

    def on_end(self, error: HeadraceError | None) -> HeadraceError | None:
        """Release what the guard holds, and return the error that the flow ends with: `error`, or one that explains it.

        Called once: when the query has ended, or when it could not start. Then `error` is None and the result is
        ignored.
        """
        return error
