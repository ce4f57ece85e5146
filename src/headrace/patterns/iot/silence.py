"""Which devices have fallen silent, as custom state: told once per silence, and once when the device is back.

What has been heard of a device is kept as stretches: readings that follow each other without a silence. Nearly always
there is one of them. Nothing is told before the watermark has passed it. A reading that was delayed may still close a
gap, so a gap between two readings is no silence yet. Told in this way the answer does not depend on how rows are spread
over batches: after an outage of the flow itself, hours of readings may come in one call.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from headrace.transforms.keyed.keyed_state import EventTime, KeyedState
from headrace.transforms.keyed.state import Timers, ValueState

if TYPE_CHECKING:
    from pyspark.sql import Row

SILENT, BACK = "SILENT", "BACK"


@dataclass
class Stretch:
    """Readings without a silence between them."""

    first: datetime
    last: datetime


@dataclass
class Heard:
    """What is known of a device: its stretches in order, and the last reading before a silence that was told."""

    stretches: list[Stretch] = field(default_factory=list)
    silent_since: datetime | None = None


@dataclass
class DeviceStatus:
    """What is told. `at` is when the silence had lasted too long, or when the first reading after it was taken."""

    device_id: str
    status: str
    last_seen: datetime
    at: datetime
    silent_seconds: int


class Silence(KeyedState[Heard, DeviceStatus]):
    """Tells of a device that said nothing for longer than `silence`.

    One that said nothing for longer than `forget` is forgotten: nothing of it is kept, and it is not told when it is
    heard again.
    """

    clock = EventTime("ts")

    def __init__(self, silence: timedelta, forget: timedelta) -> None:
        self.silence, self.forget = silence, forget

    def handle(self, key: Row, rows: list[Row], state: ValueState[Heard], timers: Timers) -> Iterator[DeviceStatus]:
        """Add readings to the stretches, and ask for the moment at which something is to be told. Tells nothing."""
        heard = state.value or Heard()
        heard.stretches = self._joined([*heard.stretches, *(Stretch(row.ts, row.ts) for row in rows)])
        state.value = heard
        timers.only(self._next(heard))
        return iter(())

    def on_timer(self, key: Row, at: datetime, state: ValueState[Heard], timers: Timers) -> Iterator[DeviceStatus]:
        """Tell all that is certain by now: no reading that is still to come can be before the watermark."""
        heard = state.value
        if heard is None:
            return
        while heard.stretches and (moment := self._next(heard)) <= timers.now:
            if heard.silent_since is None:
                heard.silent_since = heard.stretches.pop(0).last
                yield self._told(key, SILENT, heard.silent_since, moment)
            else:
                if moment - heard.silent_since <= self.forget:
                    yield self._told(key, BACK, heard.silent_since, moment)
                heard.silent_since = None
        if heard.stretches:
            timers.at(self._next(heard))
        elif heard.silent_since is not None and heard.silent_since + self.forget > timers.now:
            timers.at(heard.silent_since + self.forget)
        else:
            state.value = None

    def _next(self, heard: Heard) -> datetime:
        """Return when the first stretch has to be told of: of its end, or of its beginning after a silence."""
        stretch = heard.stretches[0]
        return stretch.last + self.silence if heard.silent_since is None else stretch.first

    def _joined(self, stretches: list[Stretch]) -> list[Stretch]:
        joined: list[Stretch] = []
        for each in sorted(stretches, key=lambda stretch: stretch.first):
            if joined and each.first - joined[-1].last <= self.silence:
                joined[-1].last = max(joined[-1].last, each.last)
            else:
                joined.append(each)
        return joined

    def _told(self, key: Row, status: str, last_seen: datetime, at: datetime) -> DeviceStatus:
        return DeviceStatus(key.device_id, status, last_seen, at, (at - last_seen) // timedelta(seconds=1))
