"""One batch through the exactly-once sink, as a process of its own that kills itself at a step of the commit.

No JVM: the rows come ready-made, since only the transaction is looked at.
"""

from __future__ import annotations

import os
import signal
import sys

from confluent_kafka import Producer

from headrace.flow.sink import Batch
from headrace.flow.target import Target
from headrace.sinks import kafka_exactly_once
from headrace.sinks.kafka_exactly_once import KafkaExactlyOnce


class Ready:
    """Stands for the records of a batch."""

    def toLocalIterator(self, prefetchPartitions: bool = False):
        return iter([("k", f'{{"id":{number}}}') for number in range(1, 4)])


class DiesBeforeCommit(Producer):
    def commit_transaction(self, timeout: float = -1) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class DiesAfterCommit(Producer):
    def commit_transaction(self, timeout: float = -1) -> None:
        super().commit_transaction(timeout)
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    moment, topic, flow, bootstrap = sys.argv[1:]
    kafka_exactly_once.Producer = {"before": DiesBeforeCommit, "after": DiesAfterCommit}[moment]  # type: ignore[misc]
    kafka_exactly_once.as_records = lambda _rows, _key: Ready()  # type: ignore[assignment]
    target = Target("test", lake="unused", checkpoints="unused", kafka={"bootstrap.servers": bootstrap})
    KafkaExactlyOnce(topic).write(None, Batch(flow, "q1", 0, target))  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
