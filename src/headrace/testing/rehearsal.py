"""Play a script to a flow: on real Spark, with the runtime that flows run under, and without a broker."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from headrace.audit.flow_audit import late_table, quarantine_table
from headrace.clients.storage import LocalFileStore
from headrace.errors import FlowError
from headrace.flow.flow import SINGLE_INPUT, Flow
from headrace.flow.guarantee import Guarantee
from headrace.flow.inputs import Input
from headrace.flow.levers import AvailableNow, OutputMode
from headrace.flow.sink import Batch, Sink
from headrace.flow.target import Target
from headrace.operate.run import Application
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.sinks.memory import Memory
from headrace.testing import script as scripts
from headrace.testing.script import Item, Point
from headrace.testing.source import END, Scripted, file_number, ordered, scripted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.types import StructType


# Ten thousand years: longer than from any clock to the row that ends an input.
_NEVER_AHEAD = "3650000 days"


@dataclass(frozen=True)
class Rehearsal:
    """What came of a script.

    | attribute    | holds                                                                                         |
    |--------------|-----------------------------------------------------------------------------------------------|
    | rows         | what the flow wrote, batch after batch, when it wrote to memory                                |
    | batches      | the same, a list per batch; batches that only close windows are among them                    |
    | late         | the rows that came too late, as the late ledger holds them                                    |
    | quarantine   | the rows that were bad, as the quarantine holds them, `reason` and all                        |
    | restarts     | how often the flow was started again                                                          |
    | target       | where tables and checkpoints of the rehearsal are                                             |
    """

    flow: Flow
    target: Target
    memory: Memory | None
    restarts: int
    _spark: SparkSession = field(repr=False)

    @property
    def rows(self) -> list[Row]:
        """The rows that the flow wrote."""
        return self._kept().rows()

    @property
    def batches(self) -> list[list[Row]]:
        """The rows that the flow wrote, per batch."""
        return self._kept().batches()

    def newest(self, *key: str) -> list[Row]:
        """Return, per key, the row that was written last: what a reader of updates holds."""
        return self._kept().newest(*key)

    @property
    def late(self) -> list[Row]:
        """The rows that came too late."""
        return self.table(late_table(self.target, self.flow.name))

    @property
    def quarantine(self) -> list[Row]:
        """The rows that were bad."""
        return self.table(quarantine_table(self.target, self.flow.name))

    def table(self, path: str) -> list[Row]:
        """Return the rows of a Delta table below the rehearsal's lake, or none when there is no such table."""
        location = self.target.table(path)
        if not Path(location, "_delta_log").is_dir():
            return []
        return self._spark.read.format("delta").load(location).collect()

    def state(self, operator: int = 0) -> list[Row]:
        """Return what a stateful operator of the flow keeps: rows with `key` and `value`, of the last batch."""
        location = f"{self.target.flow_folder(self.flow.name)}/spark"
        reader = self._spark.read.format("statestore").option("operatorId", str(operator))
        return reader.load(location).select("key", "value").collect()

    def _kept(self) -> Memory:
        if self.memory is None:
            raise FlowError(
                "The rehearsal kept no rows in memory.",
                why=f"The flow wrote to {self.flow.sink.name}.",
                state="The rows are there.",
                remedy="Read them from the sink: `table(PATH)` for a Delta table.",
                code="HR-221",
            )
        return self.memory


def rehearse(
    flow: Flow,
    script: Sequence[Item],
    *,
    spark: SparkSession,
    folder: Path,
    sink: Sink | None = None,
    columns: Mapping[str, StructType] | None = None,
) -> Rehearsal:
    """Play a script to a flow and return what came of it.

    The flow is the declared one: its schema, watermark, transform, output mode and state. Only its ends are others:
    each `Arrive` is one batch of its inputs, and rows are kept in memory unless `sink` is given (`flow.sink` for its
    own).
    It runs under the real supervisor, with checkpoint, lease and audit, below `folder`, which has to be a new one.

    `columns` names the columns of inputs that have no `schema`, since only their real source knows them.
    """
    played = scripts.batches(script)
    ordered(played, list(flow.named_inputs))
    sources = {
        name: scripted(name, given, folder / "script" / name, (columns or {}).get(name))
        for name, given in flow.named_inputs.items()
    }
    target = Target("rehearsal", lake=str(folder / "lake"), checkpoints=str(folder / "checkpoints"))
    memory = Memory() if sink is None else None
    breaking = Breaking(sink or memory or flow.sink, Checkpoint.of(flow.name, target, LocalFileStore()))
    stand_in = replace(
        flow,
        inputs={name: _played(given, sources[name]) for name, given in flow.named_inputs.items()},
        transform=_without_end(flow),
        sink=breaking,
        trigger=AvailableNow(),
    )
    runs = _play(stand_in, played, sources, Application, spark, target)
    return Rehearsal(replace(flow, sink=breaking.inner), target, memory, runs - 1, spark)


def _played(given: Input, source: Scripted) -> Input:
    """Return an input as it is rehearsed.

    Without a schema event times are compared with the clock of the batch, which a script does not set: nothing is ahead
    of it here, and least of all the row that ends the input.
    """
    if given.watermark is None or given.schema is not None:
        return replace(given, source=source)
    return replace(given, source=source, watermark=replace(given.watermark, max_future=_NEVER_AHEAD))


def _play(
    flow: Flow,
    played: Sequence[scripts.Batch],
    sources: Mapping[str, Scripted],
    application: Callable[[SparkSession, Target, Sequence[Flow]], Application],
    spark: SparkSession,
    target: Target,
) -> int:
    """Stage the batches and run the flow over them, again after every crash; return how often it ran."""
    breaking = flow.sink
    assert isinstance(breaking, Breaking)  # noqa: S101 - made by `rehearse`
    runs = 0
    for number, batch in enumerate(played):
        for name, source in sources.items():
            source.stage(number, batch, flow.named_inputs[name])
        breaking.crashes[number] = [point for point in batch.crashes if point is not Point.AFTER_COMMIT]
        # A run goes on to the last batch that is staged, so it ends where the driver dies between two batches.
        if Point.AFTER_COMMIT not in batch.crashes and number + 1 < len(played):
            continue
        died = True
        while died:
            breaking.died = False
            runs += 1
            error = application(spark, target, [flow]).run()[flow.name].error
            died = breaking.died
            if error is not None and not died:
                raise error
    return runs


class _Died(Exception):
    """Stands for the end of the driver."""


@dataclass
class Breaking:
    """Hands each batch to the sink behind it, and dies where the script says so. Not frozen: it counts its deaths."""

    inner: Sink
    checkpoint: Checkpoint
    crashes: dict[int, list[Point]] = field(default_factory=dict)
    died: bool = False

    @property
    def name(self) -> str:
        """Return the name of the sink behind it."""
        return self.inner.name

    @property
    def guarantee(self) -> Guarantee:
        """The promise of the sink behind it."""
        return self.inner.guarantee

    @property
    def output_modes(self) -> frozenset[OutputMode]:
        """The modes of the sink behind it."""
        return self.inner.output_modes

    def preflight(self, target: Target) -> None:
        """Ask the sink behind it."""
        self.inner.preflight(target)

    def prepare(self, spark: SparkSession, target: Target) -> None:
        """Prepare the sink behind it."""
        self.inner.prepare(spark, target)

    def write(self, rows: DataFrame, batch: Batch) -> None:
        """Write the batch, or a part of it, and die if it is time to."""
        # Batches that close windows have numbers of their own, so a batch of the script is known by what it reads.
        step = file_number(self.checkpoint.offset_entry(batch.id).offsets[0])
        waiting = self.crashes.get(step, [])
        if not waiting:
            self.inner.write(rows, batch)
            return
        self.died, point = True, waiting.pop(0)
        if point is Point.IN_SINK:
            self.inner.write(rows.where(F.raise_error(F.lit("the driver dies")).isNull()), batch)
        if point is Point.AFTER_SINK:
            self.inner.write(rows, batch)
        raise _Died(point.value)


def _without_end(flow: Flow) -> Callable[..., DataFrame]:
    """Return the transform without the row that ends the input.

    The row has to pass the watermark to move it. Spark moves filters below a watermark, unless they read its column.
    """

    def before_the_end(name: str, rows: DataFrame) -> DataFrame:
        watermark = flow.named_inputs[name].watermark
        return rows if watermark is None else rows.where(F.col(watermark.column) < F.lit(END))

    @functools.wraps(flow.transform)
    def transform(*one: DataFrame, **named: DataFrame) -> DataFrame:
        if one:
            return flow.transform(before_the_end(SINGLE_INPUT, one[0]))
        return flow.transform(**{name: before_the_end(name, rows) for name, rows in named.items()})

    return transform
