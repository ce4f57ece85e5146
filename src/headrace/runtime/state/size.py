"""The size of the state of a flow, from Spark's progress of each batch, and its record in the checkpoint's metadata.

    FLOW/headrace/state.json

| store    | rows                | bytes                                     | memory                                  |
|----------|---------------------|-------------------------------------------|-----------------------------------------|
| InMemory | in the stores after | the heap that they use, as Spark          | the same                                |
|          | the batch           | estimates it, with the previous version   |                                         |
| RocksDB  | the same, as Spark  | SST files on the executors' disks. New    | their share of the memory that all      |
|          | counts them         | rows are included after the next snapshot,| stores of all flows use together. It    |
|          |                     | which is taken every ten batches          | has its own limit                       |

A join stores rows and a counter for each key: Spark counts the rows only.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from pyspark.sql.streaming.listener import StateOperatorProgress

from headrace.runtime.checkpoint.checkpoint import Checkpoint

# SST files of RocksDB on the disks of the executors. Only RocksDB reports it.
_SST_BYTES = "rocksdbSstFileSize"
_JOIN = "symmetricHashJoin"


@dataclass(frozen=True)
class OperatorState:
    """The state of one stateful operator after a batch. `number` is its index in the plan and in the checkpoint."""

    number: int
    operator: str
    rows: int
    bytes: int
    removed: int
    """Rows that the batch removed as Spark counts them, for instance of closed windows: see `count_removed_rows`."""
    memory: int = 0
    """Memory of the stores. For RocksDB it is a share, which depends on other flows."""
    updated: int = 0
    """Rows that the batch added or changed. A join only adds rows."""

    def amount(self, measure: str) -> int:
        """Return the `rows` or the `bytes`."""
        return self.rows if measure == "rows" else self.bytes

    def __str__(self) -> str:
        return f"operator {self.number} ({self.operator})"


@dataclass(frozen=True)
class StateSize:
    """The recorded size of the state after a batch."""

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
            operator=operator.operatorName,
            rows=operator.numRowsTotal,
            bytes=int(operator.customMetrics.get(_SST_BYTES, operator.memoryUsedBytes)),
            removed=operator.numRowsRemoved,
            memory=operator.memoryUsedBytes,
            updated=operator.numRowsUpdated,
        )
        for number, operator in enumerate(operators)
    )


def count_removed_rows(before: Sequence[OperatorState], now: Sequence[OperatorState]) -> int:
    """Return how many rows left the state between two consecutive batches.

    Spark does not count the unmatched rows that an outer join emits. They are the rows before plus the added rows minus
    the rows after. Without a previous batch the result is Spark's count.
    """
    rows = {operator.number: operator.rows for operator in before}
    return sum(
        rows[operator.number] + operator.updated - operator.rows
        if operator.operator == _JOIN and operator.number in rows
        else operator.removed
        for operator in now
    )


def total_state(state: Sequence[OperatorState], measure: str) -> int:
    """Return the `rows` or the `bytes` of all operators together."""
    return sum(operator.amount(measure) for operator in state)


def write_state_size(checkpoint: Checkpoint, batch_id: int, state: Sequence[OperatorState]) -> None:
    """Record the size of the state. Called twice a minute and at the end of a run."""
    size = StateSize(checkpoint.query_id(), batch_id, total_state(state, "rows"), total_state(state, "bytes"))
    checkpoint.files.write(_path(checkpoint), json.dumps(asdict(size)))


def read_state_size(checkpoint: Checkpoint) -> StateSize | None:
    """Return the recorded size for the current checkpoint, or None. It is advisory, so a damaged record is no error."""
    try:
        text = checkpoint.files.read(_path(checkpoint))
        size = StateSize(**json.loads(text)) if text else None
    except (ValueError, TypeError):
        return None
    return size if size is not None and size.query_id == checkpoint.query_id() else None


def _path(checkpoint: Checkpoint) -> str:
    return f"{checkpoint.metadata_dir}/state.json"
