"""Collect the rows of each batch in the driver process, for tests."""

import threading
from dataclasses import dataclass, field
from typing import ClassVar

from pyspark.sql import DataFrame, Row

from headrace.errors import FlowError
from headrace.flow.guarantee import Guarantee
from headrace.flow.levers import OutputMode
from headrace.flow.sink import BaseSink, Batch


@dataclass(frozen=True, eq=False)
class Memory(BaseSink):
    """Collect rows in this process for tests. Thread-safe: any thread may read them while the flow runs.

    The only sink that stores rows in itself: that is its purpose. They are kept from one run to the next.

    | mode     | `rows()` returns                                                                                  |
    |----------|---------------------------------------------------------------------------------------------------|
    | append   | the rows of every batch, in the order of the batches                                              |
    | update   | the same: each change of a key is a row. `newest("city")` returns the last row of each key        |
    | complete | the rows of the last batch, which is the whole result                                             |

    Best effort: the rows are lost with the process. A retried batch replaces its earlier attempt, so a test sees each
    batch once. Batches of another checkpoint, flow or step are stored separately, in arrival order.

    `limit` is the maximum number of stored rows. A batch that exceeds it is rejected; earlier rows stay.
    """

    limit: int = 100_000
    guarantee: ClassVar[Guarantee] = Guarantee.BEST_EFFORT
    output_modes: ClassVar[frozenset[OutputMode]] = frozenset(OutputMode)
    _batches: dict[tuple[str, int], list[Row]] = field(default_factory=dict, init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    @property
    def name(self) -> str:
        """Return `memory`."""
        return "memory"

    def write(self, rows: DataFrame, batch: Batch) -> None:
        """Fetch the rows partition by partition, and store them when all have arrived."""
        identity = (batch.app_id, batch.id)
        with self._lock:
            others = {
                key: batch_rows
                for key, batch_rows in self._batches.items()
                if not _replaces_stored_batch(key, identity, batch.mode)
            }
        room = self.limit - sum(len(batch_rows) for batch_rows in others.values())
        collected: list[Row] = []
        for row in rows.toLocalIterator(prefetchPartitions=True):
            collected.append(row)
            if len(collected) > room:
                raise FlowError(
                    f"Batch {batch.id} of flow '{batch.flow}' does not fit into memory.",
                    why=f"The sink keeps {self.limit} rows at most, and had room for {room}.",
                    state="Nothing of the batch was stored; earlier batches are unchanged.",
                    remedy="Set a higher limit, Memory(limit=...), or take a sink that keeps its rows on a disk.",
                    code="HR-216",
                )
        with self._lock:
            # Replacing the value of an existing key keeps its position in the dict.
            for key in list(self._batches):
                if key != identity and _replaces_stored_batch(key, identity, batch.mode):
                    del self._batches[key]
            self._batches[identity] = collected

    def rows(self) -> list[Row]:
        """Return all stored rows, batch after batch."""
        return [row for batch_rows in self.batches() for row in batch_rows]

    def batches(self) -> list[list[Row]]:
        """Return all stored rows, one list per batch, including empty batches."""
        with self._lock:
            return [list(batch_rows) for batch_rows in self._batches.values()]

    def newest(self, *key: str) -> list[Row]:
        """Return the latest row of each key: the current state for a reader of updates."""
        return list({tuple(row[name] for name in key): row for row in self.rows()}.values())

    def clear(self) -> None:
        """Delete every stored row."""
        with self._lock:
            self._batches.clear()


def _replaces_stored_batch(stored: tuple[str, int], by: tuple[str, int], mode: OutputMode) -> bool:
    """Whether a batch replaces a stored one: its own earlier attempt, or in complete mode every earlier batch."""
    return stored == by or (mode is OutputMode.COMPLETE and stored[0] == by[0])
