"""What a flow does about its captures: it ends at a gap of the source's log, and reports everything else."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from headrace.cdc.capture import watch as capture_watch
from headrace.cdc.capture.declaration import Capture
from headrace.cdc.capture.health import CaptureProgress, log_gap_error
from headrace.cdc.flows import CdcSettings, mirror
from headrace.cli.flow_events import print_event
from headrace.errors import DataError, HeadraceError, ServiceUnavailable
from headrace.flow.target import Database, KafkaConnect, Target
from headrace.runtime.events import CaptureUnhealthy
from headrace.runtime.guards.guard import Stop
from headrace.runtime.guards.sources import CaptureGuard

SHOP = Capture("shop", ("public.orders",), heartbeat="1 second")
FLOW = mirror(CdcSettings(SHOP))
TARGET = Target(
    "t", lake="", checkpoints="", databases={"shop": Database("jdbc:postgresql://h/shop", "u")}, connect=None
)
WELL = CaptureProgress("00000000000000000001", in_snapshot=False)
SILENT = ServiceUnavailable("Connect is silent.", why="w.", state="s.", remedy="r.", code="HR-613")
BROKEN = DataError("It failed.", why="w.", state="s.", remedy="r.", code="HR-523")
LOST = log_gap_error(SHOP, "The slot is gone")


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Set what the looks find, one after the other; the last one forever."""

    def declared(*actual: CaptureProgress | HeadraceError, down: bool = False) -> None:
        rest = list(actual)

        def look(*_words: object, **_named: object) -> CaptureProgress:
            answer = rest.pop(0) if len(rest) > 1 else rest[0]
            if isinstance(answer, HeadraceError):
                raise answer
            return answer

        def require_running(*_words: object) -> None:
            if down:
                raise BROKEN

        monkeypatch.setattr(capture_watch, "check_capture", look)
        monkeypatch.setattr(capture_watch, "require_running", require_running)

    return declared


def not_stopped(error: HeadraceError | None, *, immediately: bool = False) -> None:
    pytest.fail(f"stopped by {error}")


def watch(received: list[CaptureUnhealthy], stop: Stop = not_stopped) -> CaptureGuard:
    connected = Target("t", "", "", databases=TARGET.databases, connect=KafkaConnect("http://127.0.0.1:1"))
    return CaptureGuard(FLOW, connected, received.append, stop)


def test_a_problem_that_loses_nothing_is_reported_once_until_it_changes(answers: Callable[..., None]) -> None:
    answers(SILENT, SILENT, BROKEN, WELL, WELL, BROKEN)
    received: list[CaptureUnhealthy] = []
    watching = watch(received)
    for _ in range(6):
        watching.check()
    assert [item.error.code for item in received] == ["HR-613", "HR-523", "HR-523"]
    assert {(item.flow, item.capture) for item in received} == {("cdc_shop", "shop")}


@pytest.mark.parametrize("down", [False, True])
def test_retained_log_is_reported_once_until_it_shrinks_whether_the_connector_runs_or_not(
    answers: Callable[..., None], down: bool
) -> None:
    pressed = CaptureProgress(
        WELL.position, in_snapshot=False, retained_bytes=6, warning="The source keeps 6 GB of log."
    )
    answers(WELL, pressed, pressed, WELL, pressed, down=down)
    received: list[CaptureUnhealthy] = []
    watching = watch(received)
    for _ in range(5):
        watching.check()
    assert [item.error.code for item in received if item.error.code != BROKEN.code] == ["HR-616", "HR-616"]
    assert [item.error.code for item in received if item.error.code == BROKEN.code] == ["HR-523"] * down
    assert {item.error.why for item in received if item.error.code == "HR-616"} == {pressed.warning}


def test_a_gap_is_raised_when_it_is_seen_twice(answers: Callable[..., None]) -> None:
    answers(LOST, WELL, LOST)
    watching = watch([])
    watching.check()
    with pytest.raises(DataError, match="Flow 'cdc_shop' has stopped") as ended:
        watching.check()
    assert ended.value.code == "HR-522"
    assert "snapshot again" in ended.value.remedy


def test_a_gap_that_comes_later_ends_the_flow_once_and_a_closed_watch_does_not(answers: Callable[..., None]) -> None:
    # Each guard checks once before the start.
    answers(WELL, WELL, WELL, LOST)
    ends: list[str] = []
    called = threading.Event()

    def end(error: HeadraceError) -> None:
        ends.append(error.code)
        called.set()

    closed, watching = watch([], lambda error: ends.append(f"closed {error.code}")), watch([], end)
    closed.on_end(None)
    closed.before_start(None)
    watching.before_start(None)
    assert called.wait(30)
    assert ends == ["HR-522"]


def test_a_target_without_connect_is_not_watched(answers: Callable[..., None]) -> None:
    answers(LOST)
    CaptureGuard(FLOW, TARGET, lambda event: pytest.fail(str(event)), not_stopped).before_start(None)


def test_an_unhealthy_capture_is_described_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    print_event(CaptureUnhealthy("cdc_shop", "shop", SILENT))
    message = " ".join(capsys.readouterr().err.split())
    assert message == "cdc_shop HR-613 Connect is silent. Rows already in the topics are still read. why w. fix r."
