"""A command of `headrace` as a process of its own that kills itself at a moment."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import NoReturn

from confluent_kafka import Producer

from headrace.cli.main import app
from headrace.operate.late.repair import Repair
from headrace.sinks.kafka import transaction


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def interruption(moment: str, end: Callable[[], BaseException]) -> Iterator[tuple[object, str, object]]:
    """Yield what to replace, its name and by what, so that `end` is called at the moment and its result raised."""

    class EndsBeforeCommit(Producer):
        def commit_transaction(self, timeout: float = -1) -> None:
            raise end()

    def mark(*_arguments: object) -> None:
        raise end()

    match moment:
        case "before the mark":
            yield Repair, "_mark", mark
        case "before the commit":
            yield transaction, "Producer", EndsBeforeCommit
        case _:
            raise ValueError(moment)


def main() -> None:
    moment, *words = sys.argv[1:]
    for owner, name, ending in interruption(moment, die):
        setattr(owner, name, ending)
    app(words)


if __name__ == "__main__":
    main()
