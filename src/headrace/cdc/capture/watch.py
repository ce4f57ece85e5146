"""Monitor the captures that fill the topics of a flow, at its start and while it runs.

Topics without new records look the same whether the database is idle or the capture has failed. So the watch checks the
capture:

| condition                                        | the flow                                                  |
|--------------------------------------------------|-----------------------------------------------------------|
| changes are missing in the source's log (HR-522) | stops after the current batch and is not restarted        |
| anything else: Kafka Connect or the source does  | continues to read the topics. Reported                    |
| not answer, the connector failed or is missing   | (CaptureUnhealthy) once, until it recovers or changes     |
| the source retains more log than the capture     | continues. Reported (HR-616) once, until it is less,      |
| allows, or is about to remove it                 | whether the connector runs or not                         |

The check itself restarts a connector that failed for a transient cause. Captures of a target that does not
say where Kafka Connect is are not watched.
"""

import threading
from collections.abc import Callable, Sequence

from headrace.cdc.capture.declaration import Capture
from headrace.cdc.capture.health import check_capture, require_running, retained_log_error
from headrace.clients.kafka_connect import ConnectClient
from headrace.clients.postgres import database_of
from headrace.errors import CaptureGap, HeadraceError
from headrace.flow.duration import Duration
from headrace.flow.target import Target

# The interval of the heartbeat, within these bounds: a check is three small requests.
_OFTEN_SECONDS, _SELDOM_SECONDS = 1.0, 60.0


class CaptureMonitor:
    """The watch of one run of a flow. `check` before it, `start` when it runs, `stop` when it has ended."""

    def __init__(
        self, flow: str, captures: Sequence[Capture], target: Target, on_problem: Callable[[str, HeadraceError], None]
    ) -> None:
        self._flow, self._target, self._on_problem = flow, target, on_problem
        self._captures = tuple(captures) if target.connect is not None else ()
        self._unhealthy: dict[Capture, str] = {}
        self._log_warned: set[Capture] = set()
        self._stopped = threading.Event()

    def check(self) -> None:
        """Check once. Raises HR-522."""
        for capture in self._captures:
            self._check_capture(capture)

    def start(self, on_gap: Callable[[HeadraceError], None]) -> None:
        """Check periodically on a separate thread, which calls `on_gap` once with HR-522."""
        if self._captures:
            threading.Thread(target=self._watch, args=(on_gap,), name=f"capture-{self._flow}", daemon=True).start()

    def stop(self) -> None:
        """Stop the watch. Returns immediately; a check in progress has no effect."""
        self._stopped.set()

    def _watch(self, on_gap: Callable[[HeadraceError], None]) -> None:
        heartbeat = min(Duration.parse(capture.heartbeat).seconds for capture in self._captures)
        while not self._stopped.wait(min(max(heartbeat, _OFTEN_SECONDS), _SELDOM_SECONDS)):
            try:
                self.check()
            except HeadraceError as error:
                if not self._stopped.is_set():
                    on_gap(error)
                return

    def _check_capture(self, capture: Capture) -> None:
        try:
            try:
                self._check_capture_once(capture)
            except CaptureGap:
                # A capture that is being restarted has its new position before it has a slot.
                self._check_capture_once(capture)
        except CaptureGap as gap:
            what = f"Flow '{self._flow}' has stopped. {gap.what}"
            raise CaptureGap(what, why=gap.why, state=gap.state, remedy=gap.remedy) from gap
        except HeadraceError as error:
            if self._unhealthy.get(capture) != error.code and not self._stopped.is_set():
                self._unhealthy[capture] = error.code
                self._on_problem(capture.prefix, error)
        else:
            self._unhealthy.pop(capture, None)

    def _check_capture_once(self, capture: Capture) -> None:
        assert self._target.connect is not None  # noqa: S101 - without it there is no capture to watch
        client = ConnectClient(self._target.connect.url, quick=True)
        progress = check_capture(capture, database_of(self._target, capture.database), client, running=False)
        # Before the connector is checked: log is retained mostly while it does not run.
        if not progress.warning:
            self._log_warned.discard(capture)
        elif capture not in self._log_warned and not self._stopped.is_set():
            self._log_warned.add(capture)
            self._on_problem(capture.prefix, retained_log_error(capture, progress.warning))
        require_running(capture, client)
