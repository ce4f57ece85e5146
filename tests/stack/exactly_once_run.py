"""One slot of a batch through a transaction, as a process of its own that kills itself at a step of the commit.

No JVM: the rows come ready-made, since only the transaction is looked at.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable

import pyarrow as pa
from confluent_kafka import Producer

from headrace.flow.sink import Batch
from headrace.flow.target import Target
from headrace.sinks.kafka import transaction
from headrace.sinks.kafka.transaction import TransactionSlot, publish


def chunk(ids: Iterable[int]) -> pa.RecordBatch:
    """Return the records of some rows as a task gets them."""
    created = [(f"city {item % 2}".encode(), f'{{"id":{item}}}'.encode()) for item in ids]
    return pa.RecordBatch.from_pydict({"key": [key for key, _ in created], "value": [value for _, value in created]})


class DiesBeforeCommit(Producer):
    def commit_transaction(self, timeout: float = -1) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class DiesAfterCommit(Producer):
    def commit_transaction(self, timeout: float = -1) -> None:
        super().commit_transaction(timeout)
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    moment, topic, flow, bootstrap = sys.argv[1:]
    transaction.Producer = {"before": DiesBeforeCommit, "after": DiesAfterCommit}[moment]  # type: ignore[misc]
    target = Target("test", lake="unused", checkpoints="unused", kafka={"bootstrap.servers": bootstrap})
    publish(TransactionSlot(Batch(flow, "q1", 0, target), topic, f"headrace-ledger-{flow}"), [chunk([1, 2, 3])])


if __name__ == "__main__":
    main()
