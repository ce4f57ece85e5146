"""Writes the batches of a query into its sink."""

from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql.streaming.listener import StreamingQueryProgress

from headrace.flow.run_cache import RunCache
from headrace.flow.sink import Batch
from headrace.runtime.events import RowsQuarantined
from headrace.runtime.guards.guard import Attempt, Guard
from headrace.runtime.run import Run


class BatchWriter:
    """Writes each attempt of a batch, in the context of the guards.

    `error` is what the last attempt raised. Spark passes on a text without the cause; the supervisor needs the error
    itself.
    """

    def __init__(
        self, run: Run, guards: Guard, cache: RunCache, last_progress: Callable[[], StreamingQueryProgress | None]
    ) -> None:
        self._run, self._guards, self._cache, self._last_progress = run, guards, cache, last_progress
        self.error: Exception | None = None

    def write(self, rows: DataFrame, batch_id: int) -> None:
        """Write one attempt of a batch. Spark calls this on a separate thread."""
        run = self._run
        query_id = run.checkpoint.query_id()
        assert query_id is not None  # noqa: S101 - Spark writes the metadata before the first batch
        batch = Batch(
            run.flow.name,
            query_id,
            batch_id,
            run.target,
            offsets=run.checkpoint.digest(batch_id),
            mode=run.flow.mode,
            fence=run.lease.token,
            on_dead_letters=lambda letters: run.publish(RowsQuarantined(run.flow.name, batch_id, letters)),
            cache=self._cache,
        )
        try:
            with self._guards.around_batch(Attempt(batch, rows, self._last_progress)):
                run.flow.sink.write(rows, batch)
        except Exception as error:
            self.error = error
            raise
