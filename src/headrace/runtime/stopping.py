"""Stops a running query: after its in-flight batch, or immediately."""

import threading

from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from headrace.errors import HeadraceError
from headrace.runtime.guards.guard import Guard, Progress

# How long the in-flight batch of a query that a guard stops has to commit before it is cancelled.
_DRAIN_SECONDS = 60.0

# How often a drain checks the in-flight batch. A batch takes at least 100 ms.
_POLL_SECONDS = 0.05


class Stopper(Guard):
    """Stops one query. Every method may be called from any thread, also before the query has started.

    It is the first guard, because a drain waits for the commit of the in-flight batch. `error` is the first error that
    another guard stopped the query with.
    """

    def __init__(self) -> None:
        self.error: HeadraceError | None = None
        self._query: StreamingQuery | None = None
        self._started, self._committed = threading.Event(), threading.Event()
        self._lock, self._stopping = threading.Lock(), threading.Lock()

    def set_started(self, query: StreamingQuery | None) -> None:
        """Release the threads that wait for the start: `query` is None if it has failed. Called once."""
        self._query = query
        self._started.set()

    def last_progress(self) -> StreamingQueryProgress | None:
        """Return Spark's newest progress. The first batch may commit before the query counts as started."""
        self._started.wait()
        return None if self._query is None else self._query.lastProgress

    def stop(self, error: HeadraceError | None, *, immediately: bool = False) -> None:
        """Stop the query, as `Stop` says."""
        query = self._query
        if immediately and query is not None and not query.isActive:
            return
        with self._lock:
            self.error = self.error or error
        # Not on this thread: Spark reports the in-flight batch only after it returns.
        timeout = 0.0 if immediately else _DRAIN_SECONDS
        threading.Thread(target=self.drain, args=(timeout,), daemon=True).start()

    def drain(self, timeout: float) -> None:
        """Wait at most `timeout` seconds for the in-flight batch to commit, then stop."""
        self._started.wait()
        query = self._query
        if query is None:
            return
        self._committed.clear()
        waited = 0.0
        while waited < timeout and query.isActive and query.status["isTriggerActive"]:
            if self._committed.wait(_POLL_SECONDS):
                break
            waited += _POLL_SECONDS
        with self._stopping:
            query.stop()

    def on_progress(self, progress: Progress) -> None:
        """Release a drain that waits for the commit."""
        self._committed.set()

    def on_end(self, error: HeadraceError | None) -> HeadraceError | None:
        """Wait for a stop in progress: it needs Spark, which an application may end with its last flow."""
        with self._stopping:
            return error
