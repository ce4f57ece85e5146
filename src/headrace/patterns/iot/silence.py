"""Detect silent devices with custom state: one status row per silence, and one when the device is back.

The state of a device is a list of active periods: readings that follow each other without a silence. Nearly always
there is one. A status is emitted after the watermark has passed it: a delayed reading may still close a gap between two
readings. So the result does not depend on how rows are spread over batches: after an outage of the flow, hours of
readings may come in one call.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from pyspark.sql import Row

from headrace.transforms.keyed.keyed_state import EventTime, KeyedState
from headrace.transforms.keyed.state import Timers, ValueState

SILENT, BACK = "SILENT", "BACK"


@dataclass
class ActivePeriod:
    """Readings without a silence between them."""

    first: datetime
    last: datetime


@dataclass
class DeviceHistory:
    """The state of a device: its active periods in order, and the last reading before a silence that was reported."""

    active_periods: list[ActivePeriod] = field(default_factory=list)
    silent_since: datetime | None = None


@dataclass
class DeviceStatus:
    """A status row. `at` is when the silence had lasted too long, or when the first reading after it was taken."""

    device_id: str
    status: str
    last_seen: datetime
    at: datetime
    silent_seconds: int


class Silence(KeyedState[DeviceHistory, DeviceStatus]):
    """Report a device that sends nothing for longer than `silence`.

    The state of a device without a reading for longer than `forget` is removed, and its return is not reported.
    """

    clock = EventTime("ts")

    def __init__(self, silence: timedelta, forget: timedelta) -> None:
        self.silence, self.forget = silence, forget

    def handle_rows(
        self, key: Row, rows: list[Row], state: ValueState[DeviceHistory], timers: Timers
    ) -> Iterator[DeviceStatus]:
        """Add readings to the active periods, and set the timer of the next status. Emits nothing."""
        history = state.value or DeviceHistory()
        history.active_periods = self._merge_periods(
            [*history.active_periods, *(ActivePeriod(row.ts, row.ts) for row in rows)]
        )
        state.value = history
        timers.register_only(self._next(history))
        return iter(())

    def handle_timer(
        self, key: Row, at: datetime, state: ValueState[DeviceHistory], timers: Timers
    ) -> Iterator[DeviceStatus]:
        """Emit the statuses that are certain: no later reading can be before the watermark."""
        history = state.value
        if history is None:
            return
        while history.active_periods and (moment := self._next(history)) <= timers.now:
            if history.silent_since is None:
                history.silent_since = history.active_periods.pop(0).last
                yield self._status(key, SILENT, history.silent_since, moment)
            else:
                if moment - history.silent_since <= self.forget:
                    yield self._status(key, BACK, history.silent_since, moment)
                history.silent_since = None
        if history.active_periods:
            timers.register(self._next(history))
        elif history.silent_since is not None and history.silent_since + self.forget > timers.now:
            timers.register(history.silent_since + self.forget)
        else:
            state.value = None

    def _next(self, history: DeviceHistory) -> datetime:
        """Return when the first active period changes the status: at its end, or at its start after a silence."""
        period = history.active_periods[0]
        return period.last + self.silence if history.silent_since is None else period.first

    def _merge_periods(self, periods: list[ActivePeriod]) -> list[ActivePeriod]:
        merged: list[ActivePeriod] = []
        for period in sorted(periods, key=lambda period: period.first):
            if merged and period.first - merged[-1].last <= self.silence:
                merged[-1].last = max(merged[-1].last, period.last)
            else:
                merged.append(period)
        return merged

    def _status(self, key: Row, status: str, last_seen: datetime, at: datetime) -> DeviceStatus:
        return DeviceStatus(key.device_id, status, last_seen, at, (at - last_seen) // timedelta(seconds=1))
