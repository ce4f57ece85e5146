"""Watches the captures that fill the topics of a flow: at its start, and then for as long as it runs, quiet or not.

A flow reads topics, and topics that nothing is written to look as those of a database in which nothing happens. So the
capture is asked:

| what is seen                                     | the flow                                                  |
|--------------------------------------------------|-----------------------------------------------------------|
| changes are missing in the source's log (HR-522) | ends behind the batch under way, and is not started again |
| anything else: Kafka Connect or the source does  | goes on: what is in the topics can be read. It is told    |
| not answer, the connector failed or is not there | (CaptureUnhealthy), once until it is well or another thing |
| the source holds back more log than the capture  | goes on. It is told (HR-616), once until it is less:      |
| may keep, or is about to remove it               | whether the connector runs or not                         |

A connector that failed of something that passes is started again by the look itself. Captures of a target that does not
say where Kafka Connect is are not watched.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from headrace.cdc.capture.declaration import Capture
from headrace.cdc.capture.health import held_back, look, require_running
from headrace.clients.kafka_connect import ConnectClient
from headrace.clients.postgres import database_of
from headrace.errors import DataError, HeadraceError
from headrace.flow.duration import Duration
from headrace.flow.target import Target

# As often as the capture's position moves, within these bounds: a look is three small questions.
_OFTEN_SECONDS, _SELDOM_SECONDS = 1.0, 60.0

_GAP = "HR-522"


class CaptureWatch:
    """The watch of one run of a flow. `begin` before it, `start` when it runs, `close` when it has ended."""

    def __init__(
        self, flow: str, captures: Sequence[Capture], target: Target, hear: Callable[[str, HeadraceError], None]
    ) -> None:
        self._flow, self._target, self._hear = flow, target, hear
        self._captures = tuple(captures) if target.connect is not None else ()
        self._troubled: dict[Capture, str] = {}
        self._held_back: set[Capture] = set()
        self._closed = threading.Event()

    def begin(self) -> None:
        """Look once. Raises HR-522."""
        for capture in self._captures:
            self._look(capture)

    def start(self, end: Callable[[HeadraceError], None]) -> None:
        """Go on looking, on a thread of its own; `end` is called there, once, with HR-522."""
        if self._captures:
            threading.Thread(target=self._watch, args=(end,), name=f"capture-{self._flow}", daemon=True).start()

    def close(self) -> None:
        """Stop looking. Returns at once: a look under way has no effect any more."""
        self._closed.set()

    def _watch(self, end: Callable[[HeadraceError], None]) -> None:
        beat = min(Duration.parse(capture.heartbeat).seconds for capture in self._captures)
        while not self._closed.wait(min(max(beat, _OFTEN_SECONDS), _SELDOM_SECONDS)):
            try:
                self.begin()
            except HeadraceError as error:
                if not self._closed.is_set():
                    end(error)
                return

    def _look(self, capture: Capture) -> None:
        try:
            try:
                self._ask(capture)
            except DataError as error:
                if error.code != _GAP:
                    raise
                # A capture that is begun anew in this very moment shows its new position and no slot yet.
                self._ask(capture)
        except HeadraceError as error:
            if error.code == _GAP:
                raise self._ended(error) from error
            self._tell(capture, error)
        else:
            self._troubled.pop(capture, None)

    def _ask(self, capture: Capture) -> None:
        assert self._target.connect is not None  # noqa: S101 - without it there is no capture to watch
        client = ConnectClient(self._target.connect.url, quick=True)
        seen = look(capture, database_of(self._target, capture.database), client, running=False)
        # Before the connector: log is held back mostly while it does not run.
        if not seen.warning:
            self._held_back.discard(capture)
        elif capture not in self._held_back and not self._closed.is_set():
            self._held_back.add(capture)
            self._hear(capture.prefix, held_back(capture, seen.warning))
        require_running(capture, client)

    def _tell(self, capture: Capture, error: HeadraceError) -> None:
        if self._troubled.get(capture) != error.code and not self._closed.is_set():
            self._troubled[capture] = error.code
            self._hear(capture.prefix, error)

    def _ended(self, error: HeadraceError) -> DataError:
        return DataError(
            f"Flow '{self._flow}' has stopped. {error.what}",
            why=error.why,
            state=error.state,
            remedy=error.remedy,
            code=error.code,
        )
