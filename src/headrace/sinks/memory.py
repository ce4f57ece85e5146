"""Keep the rows of each batch in the driver's process, for tests."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from headrace.errors import FlowError
from headrace.flow.guarantee import Guarantee
from headrace.flow.levers import OutputMode
from headrace.flow.sink import Batch
from headrace.flow.target import Target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession


@dataclass(frozen=True, eq=False)
class Memory:
    """Keep the rows in this process, where a test asks for them. Any thread may ask, while the flow runs too.

    | mode     | `rows()` returns                                                                                  |
    |----------|---------------------------------------------------------------------------------------------------|
    | append   | the rows of every batch, in the order of the batches                                              |
    | update   | the same: each change of a key is a row. `newest("city")` returns the last row of each key        |
    | complete | the rows of the last batch, which is the whole result                                             |

    Best effort: the rows end with the process. Within it a batch that is run again takes its own place, so that a test
    sees each batch once. Batches of another checkpoint, flow or step are kept beside them, in the order they came in.

    `limit` is how many rows are kept. A batch that brings more is refused, and what was kept stays.
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

    def preflight(self, target: Target) -> None:
        """Nothing can be missing."""

    def prepare(self, spark: SparkSession, target: Target) -> None:
        """Nothing to make: what an earlier start kept stays."""

    def write(self, rows: DataFrame, batch: Batch) -> None:
        """Fetch the rows, partition by partition, and keep them once all are here."""
        place = (batch.app_id, batch.id)
        with self._lock:
            others = {key: kept for key, kept in self._batches.items() if not _is_replaced(key, place, batch.mode)}
        room = self.limit - sum(len(kept) for kept in others.values())
        found: list[Row] = []
        for row in rows.toLocalIterator(prefetchPartitions=True):
            found.append(row)
            if len(found) > room:
                raise FlowError(
                    f"Batch {batch.id} of flow '{batch.flow}' does not fit into memory.",
                    why=f"The sink keeps {self.limit} rows at most, and had room for {room}.",
                    state="Nothing of the batch was kept; the batches before it are as they were.",
                    remedy="Set a higher limit, Memory(limit=...), or take a sink that keeps its rows on a disk.",
                    code="HR-216",
                )
        with self._lock:
            # An entry that is there keeps its position.
            for key in list(self._batches):
                if key != place and _is_replaced(key, place, batch.mode):
                    del self._batches[key]
            self._batches[place] = found

    def rows(self) -> list[Row]:
        """Return the rows that are kept, batch after batch."""
        return [row for kept in self.batches() for row in kept]

    def batches(self) -> list[list[Row]]:
        """Return the rows that are kept, one list per batch. Batches without rows are among them."""
        with self._lock:
            return [list(kept) for kept in self._batches.values()]

    def newest(self, *key: str) -> list[Row]:
        """Return, per key, the row that came last: what a reader of updates holds."""
        return list({tuple(row[name] for name in key): row for row in self.rows()}.values())

    def clear(self) -> None:
        """Forget every row."""
        with self._lock:
            self._batches.clear()


def _is_replaced(kept: tuple[str, int], by: tuple[str, int], mode: OutputMode) -> bool:
    """Whether a batch takes the place of one that is kept: its own earlier attempt, or in complete mode all before."""
    return kept == by or (mode is OutputMode.COMPLETE and kept[0] == by[0])
