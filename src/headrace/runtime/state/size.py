"""How much state a flow keeps, from what Spark tells of each batch, and the note of it beside the checkpoint.

    FLOW/headrace/state.json

| store    | rows                | bytes                                     | memory                                  |
|----------|---------------------|-------------------------------------------|-----------------------------------------|
| InMemory | in the stores after | the heap that they take, as Spark         | the same                                |
|          | the batch           | estimates it, with the version before     |                                         |
| RocksDB  | the same, as Spark  | their tables on the executors' disks. New | their share of what all stores of all   |
|          | counts them         | rows are there after the next snapshot,   | flows use together: Spark cannot tell   |
|          |                     | which is made every ten batches           | whose it is. It is bounded on its own   |

A join keeps a row and a counter for each key: Spark counts the rows alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from headrace.runtime.checkpoint.checkpoint import Checkpoint

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StateOperatorProgress

# Tables of RocksDB on the disks of the executors. Only its stores report it.
_TABLES = "rocksdbSstFileSize"
_JOIN = "symmetricHashJoin"


@dataclass(frozen=True)
class OperatorState:
    """What one stateful operator keeps after a batch. `number` is its place in the plan, as in the checkpoint."""

    number: int
    operator: str
    rows: int
    bytes: int
    removed: int
    """Rows that the batch took out as Spark counts them, for instance of windows that closed: see `gone`."""
    memory: int = 0
    """What the stores take in memory. Of RocksDB it is a share, which other flows raise and lower."""
    updated: int = 0
    """Rows that the batch put in or changed. A join only puts rows in."""

    def amount(self, measure: str) -> int:
        """Return the `rows` or the `bytes`."""
        return self.rows if measure == "rows" else self.bytes

    def __str__(self) -> str:
        return f"operator {self.number} ({self.operator})"

    def as_dict(self) -> dict[str, object]:
        """The operator as `--json` prints it."""
        return asdict(self)


@dataclass(frozen=True)
class StateNote:
    """The size of the state after a batch, as the last run left it."""

    query_id: str | None
    batch: int
    rows: int
    bytes: int

    def amount(self, measure: str) -> int:
        """Return the `rows` or the `bytes`."""
        return self.rows if measure == "rows" else self.bytes


def operator_states(operators: Sequence[StateOperatorProgress]) -> tuple[OperatorState, ...]:
    """Return the state per operator, as a batch reports it."""
    return tuple(
        OperatorState(
            number=number,
            operator=each.operatorName,
            rows=each.numRowsTotal,
            bytes=int(each.customMetrics.get(_TABLES, each.memoryUsedBytes)),
            removed=each.numRowsRemoved,
            memory=each.memoryUsedBytes,
            updated=each.numRowsUpdated,
        )
        for number, each in enumerate(operators)
    )


def gone(before: Sequence[OperatorState], now: Sequence[OperatorState]) -> int:
    """Return how many rows left the state between two batches that follow each other.

    Spark does not count the rows of an outer join that it hands on without their partner. They are what was there or
    came, and is not there any more. With nothing known from before it is what Spark counts.
    """
    rows = {each.number: each.rows for each in before}
    return sum(
        rows[each.number] + each.updated - each.rows if each.operator == _JOIN and each.number in rows else each.removed
        for each in now
    )


def total(state: Sequence[OperatorState], measure: str) -> int:
    """Return the `rows` or the `bytes` of all operators together."""
    return sum(each.amount(measure) for each in state)


def write_note(checkpoint: Checkpoint, batch_id: int, state: Sequence[OperatorState]) -> None:
    """Note the size of the state. Called twice a minute and at the end of a run."""
    note = StateNote(checkpoint.query_id(), batch_id, total(state, "rows"), total(state, "bytes"))
    checkpoint.files.write(_path(checkpoint), json.dumps(asdict(note)))


def read_note(checkpoint: Checkpoint) -> StateNote | None:
    """Return the size that is noted of the present checkpoint, or None. It is advice, so damage is no error."""
    try:
        text = checkpoint.files.read(_path(checkpoint))
        note = StateNote(**json.loads(text)) if text else None
    except (ValueError, TypeError):
        return None
    return note if note is not None and note.query_id == checkpoint.query_id() else None


def _path(checkpoint: Checkpoint) -> str:
    return f"{checkpoint.house}/state.json"
