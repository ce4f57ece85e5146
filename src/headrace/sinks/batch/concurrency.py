"""Run parts of one batch concurrently: a small write mostly waits for the driver."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from pyspark.sql import SparkSession
from pyspark.util import inheritable_thread_target

Task = Callable[[], object]


@contextmanager
def in_background(session: SparkSession, enabled: object, task: Task) -> Iterator[None]:
    """Run a task in a thread while the block runs, if `enabled`. Waits for both and raises the first error."""
    if not enabled:
        yield
        return
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(inheritable_thread_target(session)(task))
        yield
        future.result()


def run_concurrently(session: SparkSession, tasks: Sequence[Task], max_workers: int) -> None:
    """Run tasks, at most `max_workers` at a time. Waits for all and raises the first error."""
    if len(tasks) == 1:
        tasks[0]()
        return
    with ThreadPoolExecutor(max_workers) as pool:
        futures = [pool.submit(inheritable_thread_target(session)(task)) for task in tasks]
    for future in futures:
        future.result()
