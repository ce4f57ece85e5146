"""A command of `headrace` as a process of its own that kills itself at a step that it is told."""

from __future__ import annotations

import os
import signal
import sys

from confluent_kafka import Producer

from headrace.cli.main import app
from headrace.operate.late_repair import Repair
from headrace.sinks import kafka_transaction


def die(*_given: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class DiesBeforeCommit(Producer):
    def commit_transaction(self, timeout: float = -1) -> None:
        die()


def main() -> None:
    moment, *words = sys.argv[1:]
    match moment:
        case "before the mark":
            Repair._mark = die  # type: ignore[method-assign]
        case "before the commit":
            kafka_transaction.Producer = DiesBeforeCommit  # type: ignore[misc]
    app(words)


if __name__ == "__main__":
    main()
