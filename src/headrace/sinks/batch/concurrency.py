"""Work of one batch that is done at the same time: most of a small write is waiting for the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark.util import inheritable_thread_target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Task = Callable[[], object]


@contextmanager
def meanwhile(session: SparkSession, wanted: object, task: Task) -> Iterator[None]:
    """Run a task beside the block, where it is wanted. Ends when both have, and raises what either has raised."""
    if not wanted:
        yield
        return
    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(inheritable_thread_target(session)(task))
        yield
        beside.result()


def at_once(session: SparkSession, tasks: Sequence[Task], most: int) -> None:
    """Run tasks, so many at a time. Ends when all have, and raises what the first of them has raised."""
    if len(tasks) == 1:
        tasks[0]()
        return
    with ThreadPoolExecutor(most) as pool:
        under_way = [pool.submit(inheritable_thread_target(session)(task)) for task in tasks]
    for each in under_way:
        each.result()
