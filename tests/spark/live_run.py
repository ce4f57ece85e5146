"""A flow that runs while a test hands it rows, sets its clock and waits for what comes of it."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from headrace import FileSource, Flow, Guarantee, Memory, OutputMode, Target
from headrace.flow.run_cache import RunCache
from headrace.flow.sink import Batch
from headrace.operate.run import Application, FlowMetrics
from headrace.runtime.events import BatchCommitted, FlowEvent

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
ROW = StructType([StructField("id", LongType()), StructField("shop", StringType()), StructField("at", TimestampType())])

# Longer than anything here takes on a machine that is busy with other tests.
PATIENCE = 240.0


@dataclass
class Hands:
    """A clock that does not advance until it is set. It shows minutes after noon."""

    minute: float

    def __call__(self) -> int:
        return round((NOON + timedelta(minutes=self.minute)).timestamp() * 1000)


@dataclass
class Folder:
    """A folder of JSON files as an input: each `put` is a file, and each file a batch."""

    path: Path
    count: int = 0

    def __post_init__(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)

    @property
    def source(self) -> FileSource:
        return FileSource(str(self.path), "json", ROW, max_files_per_trigger=1)

    def put(self, *rows: tuple[int, float]) -> None:
        """Add rows of an id and a minute after noon."""
        lines = [
            json.dumps({"id": key, "shop": "north", "at": (NOON + timedelta(minutes=minute)).isoformat()})
            for key, minute in rows
        ]
        beside = self.path / f".{self.count}.json"
        beside.write_text("\n".join(lines))
        os.utime(beside, (self.count, self.count))
        beside.rename(self.path / f"{self.count:04}.json")
        self.count += 1


class Broke(Exception):
    """Stands for the end of the driver."""


@dataclass
class Brittle:
    """Keeps rows in memory, breaks once at each of the given batches, and reports every write."""

    breaks: set[int] = field(default_factory=set)
    on_write: Callable[[], None] = lambda: None
    memory: Memory = field(default_factory=Memory)
    name: str = "brittle"
    guarantee: ClassVar[Guarantee] = Guarantee.EXACTLY_ONCE
    output_modes: ClassVar[frozenset[OutputMode]] = frozenset(OutputMode)

    def preflight(self, target: Target) -> None: ...

    def prepare(self, spark: SparkSession, target: Target, cache: RunCache) -> None: ...

    def write(self, rows: DataFrame, batch: Batch) -> None:
        self.on_write()
        if batch.id in self.breaks:
            self.breaks.remove(batch.id)
            raise Broke(f"in batch {batch.id}")
        self.memory.write(rows, batch)

    def rows(self) -> list[tuple[object, ...]]:
        return sorted((tuple(row) for row in self.memory.rows()), key=str)


class Running:
    """A flow under way, with the events so far."""

    def __init__(self, application: Application) -> None:
        self.application = application
        self.events: list[FlowEvent] = []
        self.figures: dict[str, FlowMetrics] = {}
        self._changed = threading.Condition()
        application.bus.subscribe(self._on_event)
        self.thread = threading.Thread(target=self._run, name="live-run")

    def _on_event(self, event: FlowEvent) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def _run(self) -> None:
        self.figures = dict(self.application.run())

    def of(self, kind: type[FlowEvent]) -> list[FlowEvent]:
        with self._changed:
            return [event for event in self.events if isinstance(event, kind)]

    def wait(self, met: Callable[[Sequence[FlowEvent]], bool]) -> None:
        """Return when the events so far meet a condition."""
        with self._changed:
            assert self._changed.wait_for(lambda: met(self.events), PATIENCE), self.events

    def wait_rows(self, *, read: int = 0, written: int = 0) -> None:
        """Return when so many rows were read and written since the start."""

        def met(events: Sequence[FlowEvent]) -> bool:
            batches = [event for event in events if isinstance(event, BatchCommitted)]
            return sum(e.rows_in for e in batches) >= read and sum(e.rows_out for e in batches) >= written

        self.wait(met)


def run(spark: SparkSession, target: Target, flow: Flow, clock: Hands) -> Running:
    """Run a flow to its end."""
    running = Running(Application(spark, target, [flow], clock=clock))
    running._run()
    return running


@contextmanager
def live(spark: SparkSession, target: Target, flow: Flow, clock: Hands) -> Iterator[Running]:
    """Run a flow while the block lasts, then drain it."""
    running = Running(Application(spark, target, [flow], clock=clock))
    running.thread.start()
    try:
        yield running
    finally:
        running.application.drain()
        running.thread.join(PATIENCE)
    assert not running.thread.is_alive()
