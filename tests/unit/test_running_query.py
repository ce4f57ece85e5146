"""What surrounds a running query: each batch is reported once, and every way to stop leads to one end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from headrace.errors import DataError
from headrace.runtime.events import BatchCommitted
from headrace.runtime.guards.guard import Progress
from headrace.runtime.progress import CommittedBatchReporter
from headrace.runtime.stopping import Stopper
from headrace.spark_plan.source_order import PlannedSource

PATIENCE = 30.0
ORDER = (PlannedSource("rows", "kafka:t"), PlannedSource("rows", "kafka:t", "idle ticks"))


class Query:
    """A query of Spark with a batch that never ends."""

    def __init__(self) -> None:
        self.stopped = threading.Event()
        self.status = {"isTriggerActive": True}
        self.lastProgress = None

    @property
    def isActive(self) -> bool:
        return not self.stopped.is_set()

    def stop(self) -> None:
        self.stopped.set()


def error(code: str) -> DataError:
    return DataError("It is wrong.", why="w", state="s", remedy="r", code=code)


def progress(batch: int, *, rows: int = 1, phase: str = "addBatch") -> SimpleNamespace:
    """Return what Spark reports of a trigger: a source with a backlog, and one of idle ticks."""
    source = SimpleNamespace(numInputRows=rows, startOffset="1", endOffset="2", latestOffset="2")
    return SimpleNamespace(
        batchId=batch,
        durationMs={phase: 1, "triggerExecution": 2},
        sources=[source, source],
        observedMetrics={},
        stateOperators=[],
        eventTime={},
        json="{}",
    )


def reports(on_progress: Callable[[Progress], None]) -> CommittedBatchReporter:
    return CommittedBatchReporter("rides", ORDER, on_progress)


def test_a_batch_that_spark_reports_late_or_twice_is_reported_once_and_in_order():
    batches: list[int] = []
    reported = reports(lambda report: batches.append(report.event.batch_id))

    for batch in (0, 1, 0, 1, 2, 2):
        reported.report(progress(batch))

    assert batches == [0, 1, 2]


def test_a_trigger_without_new_data_is_no_batch():
    batches: list[int] = []
    reported = reports(lambda report: batches.append(report.event.batch_id))

    reported.report(progress(0, phase="latestOffset"))
    reported.report(progress(0))

    assert batches == [0]


def test_the_rows_of_an_input_are_those_of_its_source_and_not_its_idle_ticks():
    reported_batches: list[Progress] = []

    reports(reported_batches.append).report(progress(0, rows=7))

    assert [
        (report.event.rows_in, report.inputs["rows"].rows, report.inputs["rows"].rest) for report in reported_batches
    ] == [(7, 7, True)]


def test_two_threads_report_a_batch_once_and_the_second_waits_for_the_first():
    entered, release, batches = threading.Event(), threading.Event(), list[int]()

    def slow(report: Progress) -> None:
        entered.set()
        assert release.wait(PATIENCE)
        batches.append(report.event.batch_id)

    reported = reports(slow)
    listener = threading.Thread(target=reported.report, args=(progress(0),))
    listener.start()
    assert entered.wait(PATIENCE)
    ended = threading.Thread(target=reported.report, args=(progress(0),))
    ended.start()
    assert ended.is_alive()
    release.set()
    listener.join(PATIENCE)
    ended.join(PATIENCE)
    assert batches == [0]


def test_the_first_error_ends_the_flow():
    stopper, query = Stopper(), Query()
    stopper.set_started(query)

    stopper.stop(error("HR-330"), immediately=True)
    stopper.stop(error("HR-228"))

    assert query.stopped.wait(PATIENCE)
    assert stopper.error is not None
    assert stopper.error.code == "HR-330"


def test_an_error_of_a_query_that_has_ended_by_itself_does_not_count_if_it_would_have_cancelled_it():
    stopper, query = Stopper(), Query()
    stopper.set_started(query)
    query.stop()

    stopper.stop(error("HR-311"), immediately=True)
    assert stopper.error is None

    # A batch that exceeds its budget may be the last one.
    stopper.stop(error("HR-228"))
    assert stopper.error is not None


def test_a_query_is_stopped_before_its_start_has_returned():
    stopper, query = Stopper(), Query()

    stopper.stop(error("HR-522"), immediately=True)
    assert query.isActive
    stopper.set_started(query)

    assert query.stopped.wait(PATIENCE)


@pytest.mark.parametrize("use", [lambda stopper: stopper.drain(PATIENCE), lambda stopper: stopper.last_progress()])
def test_nobody_waits_for_ever_for_a_query_that_could_not_start(use: Callable[[Stopper], object]):
    stopper = Stopper()
    waiting = threading.Thread(target=use, args=(stopper,))
    waiting.start()

    stopper.set_started(None)

    waiting.join(PATIENCE)
    assert not waiting.is_alive()


def test_a_drain_ends_with_the_commit_of_the_batch_in_flight():
    stopper, query = Stopper(), Query()
    stopper.set_started(query)
    committed = Progress(BatchCommitted("rides", 0, 0, 0, {}, 0, 0, None))
    draining = threading.Thread(target=stopper.drain, args=(10 * PATIENCE,))
    draining.start()

    while draining.is_alive():
        stopper.on_progress(committed)
        draining.join(0.01)

    assert query.stopped.is_set()


def test_a_query_has_ended_when_the_call_that_stops_it_has_returned():
    entered, release = threading.Event(), threading.Event()

    class Slow(Query):
        def stop(self) -> None:
            super().stop()
            entered.set()
            assert release.wait(PATIENCE)

    stopper = Stopper()
    stopper.set_started(Slow())
    threading.Thread(target=stopper.drain, args=(0.0,)).start()
    assert entered.wait(PATIENCE)
    ending = threading.Thread(target=stopper.on_end, args=(None,))
    ending.start()
    ending.join(0.1)
    assert ending.is_alive()

    release.set()

    ending.join(PATIENCE)
    assert not ending.is_alive()
