"""Rehearse a flow: run it over scripted input on real Spark with the real runtime, without a broker.

`local_session` opens a Spark session for the tests of a project's transforms.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from pyspark.sql import DataFrame, Row, SparkSession, functions as F
from pyspark.sql.types import StructType

from headrace.audit.flow_audit import late_table, quarantine_table
from headrace.clients.spark.delta_log import is_table
from headrace.errors import FlowError
from headrace.flow.flow import SINGLE_INPUT, Flow
from headrace.flow.inputs import Input
from headrace.flow.levers import AvailableNow
from headrace.flow.sink import Batch, ForwardingSink, Sink
from headrace.flow.target import Target
from headrace.operate.run import Application
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.session import open_session
from headrace.sinks.memory import Memory
from headrace.stack.jars import JarCache
from headrace.testing import script as scripts
from headrace.testing.script import Point, ScriptItem
from headrace.testing.source import END, ScriptedSource, file_number, require_known_inputs, scripted_source

# Ten thousand years: more than from any clock to the row that ends an input.
_UNLIMITED_FUTURE = "3650000 days"


@dataclass(frozen=True)
class Rehearsal:
    """The results of a rehearsal.

    | attribute    | contains                                                                                      |
    |--------------|-----------------------------------------------------------------------------------------------|
    | rows         | the rows that the flow wrote, in batch order, if it wrote to memory                            |
    | batches      | the same, as a list per batch, including batches that only close windows                      |
    | late         | the late rows, as in the late ledger                                                           |
    | quarantine   | the invalid rows, as in the quarantine table, with their `reason`                             |
    | restarts     | how often the flow was restarted                                                              |
    | target       | the target with the tables and checkpoints of the rehearsal                                   |
    """

    flow: Flow
    target: Target
    memory: Memory | None
    restarts: int
    _spark: SparkSession = field(repr=False)

    @property
    def rows(self) -> list[Row]:
        """The rows that the flow wrote."""
        return self._memory_sink().rows()

    @property
    def batches(self) -> list[list[Row]]:
        """The rows that the flow wrote, per batch."""
        return self._memory_sink().batches()

    def newest(self, *key: str) -> list[Row]:
        """Return, per key, the row that was written last, as a reader of updates sees it."""
        return self._memory_sink().newest(*key)

    @property
    def late(self) -> list[Row]:
        """The late rows."""
        return self.table(late_table(self.target, self.flow.name))

    @property
    def quarantine(self) -> list[Row]:
        """The invalid rows."""
        return self.table(quarantine_table(self.target, self.flow.name))

    def table(self, path: str) -> list[Row]:
        """Return the rows of a Delta table below the rehearsal's lake, or none when there is no such table."""
        location = self.target.table(path)
        if not is_table(location):
            return []
        return self._spark.read.format("delta").load(location).collect()

    def state(self, operator: int = 0) -> list[Row]:
        """Return the state of a stateful operator after the last batch: rows with `key` and `value`."""
        location = f"{self.target.flow_folder(self.flow.name)}/spark"
        reader = self._spark.read.format("statestore").option("operatorId", str(operator))
        return reader.load(location).select("key", "value").collect()

    def _memory_sink(self) -> Memory:
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
    script: Sequence[ScriptItem],
    *,
    spark: SparkSession,
    folder: Path,
    sink: Sink | None = None,
    columns: Mapping[str, StructType] | None = None,
) -> Rehearsal:
    """Run a flow over a script and return the results.

    The flow keeps its schema, watermark, transform, output mode and state. Only sources and sink are replaced: each
    `Arrive` is one batch of its inputs, and rows are written to memory unless `sink` is set (`flow.sink` for its own).
    It runs under the real supervisor, with checkpoint, lease and audit, below `folder`, which must be a new one.

    `columns` declares the columns of inputs without a `schema`, since only their real source knows them.
    """
    script_batches = scripts.parse_script(script)
    require_known_inputs(script_batches, list(flow.named_inputs))
    sources = {
        name: scripted_source(name, spec, folder / "script" / name, (columns or {}).get(name))
        for name, spec in flow.named_inputs.items()
    }
    target = Target("rehearsal", lake=str(folder / "lake"), checkpoints=str(folder / "checkpoints"))
    memory = Memory() if sink is None else None
    breaking = CrashingSink(sink or memory or flow.sink, Checkpoint.of(flow.name, target))
    stand_in = replace(
        flow,
        inputs={name: _scripted_input(spec, sources[name]) for name, spec in flow.named_inputs.items()},
        transform=_drop_end_of_input(flow),
        sink=breaking,
        trigger=AvailableNow(),
    )
    runs = _run_script(stand_in, script_batches, sources, Application, spark, target)
    return Rehearsal(replace(flow, sink=breaking.sink), target, memory, runs - 1, spark)


def _scripted_input(spec: Input, source: ScriptedSource) -> Input:
    """Return an input with its scripted source.

    Without a schema, event times are compared with the clock of the batch, which a script does not set. So no row
    counts as a future event, not even the row that ends the input.
    """
    if spec.watermark is None or spec.schema is not None:
        return replace(spec, source=source)
    return replace(spec, source=source, watermark=replace(spec.watermark, max_future=_UNLIMITED_FUTURE))


def _run_script(
    flow: Flow,
    script_batches: Sequence[scripts.ScriptedBatch],
    sources: Mapping[str, ScriptedSource],
    application: Callable[[SparkSession, Target, Sequence[Flow]], Application],
    spark: SparkSession,
    target: Target,
) -> int:
    """Stage the batches and run the flow over them, with a restart after every crash; return the number of runs."""
    breaking = flow.sink
    assert isinstance(breaking, CrashingSink)  # noqa: S101 - made by `rehearse`
    runs = 0
    for number, batch in enumerate(script_batches):
        for name, source in sources.items():
            source.stage(number, batch, flow.named_inputs[name])
        breaking.crashes[number] = [point for point in batch.crashes if point is not Point.AFTER_COMMIT]
        # A run processes all staged batches, so a crash between two batches needs a separate run.
        if Point.AFTER_COMMIT not in batch.crashes and number + 1 < len(script_batches):
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


class _SimulatedCrash(Exception):
    """Simulates a crash of the driver."""


@dataclass
class CrashingSink(ForwardingSink):
    """A sink that delegates to another one, and crashes where the script says so. Not frozen: it tracks its crashes."""

    sink: Sink
    checkpoint: Checkpoint
    crashes: dict[int, list[Point]] = field(default_factory=dict)
    died: bool = False

    def write(self, rows: DataFrame, batch: Batch) -> None:
        """Write the batch, or a part of it, and crash if the script says so."""
        # Batches that close windows have their own numbers, so a batch of the script is identified by its offsets.
        step = file_number(self.checkpoint.offset_entry(batch.id).offsets[0])
        pending = self.crashes.get(step, [])
        if not pending:
            self.sink.write(rows, batch)
            return
        self.died, point = True, pending.pop(0)
        if point is Point.IN_SINK:
            self.sink.write(rows.where(F.raise_error(F.lit("the driver dies")).isNull()), batch)
        if point is Point.AFTER_SINK:
            self.sink.write(rows, batch)
        raise _SimulatedCrash(point.value)


def _drop_end_of_input(flow: Flow) -> Callable[..., DataFrame]:
    """Return the transform without the row that ends the input.

    The row must pass the watermark to move it. Spark pushes filters below a watermark, unless they read its column.
    """

    def without_end_row(name: str, rows: DataFrame) -> DataFrame:
        watermark = flow.named_inputs[name].watermark
        return rows if watermark is None else rows.where(F.col(watermark.column) < F.lit(END))

    @functools.wraps(flow.transform)
    def transform(*positional: DataFrame, **named: DataFrame) -> DataFrame:
        if positional:
            return flow.transform(without_end_row(SINGLE_INPUT, positional[0]))
        return flow.transform(**{name: without_end_row(name, rows) for name, rows in named.items()})

    return transform


@contextmanager
def local_session(folder: Path, *, cores: int = 2) -> Iterator[SparkSession]:
    """Open a session with the settings that flows run under, tables below `folder`, and stop it afterwards.

    Starting one takes seconds: share it among all tests of a run. The jars are fetched if the machine has none yet.
    """
    jars = JarCache()
    jars.sync(("spark",))
    target = Target(
        "test", lake=str(folder / "lake"), checkpoints=str(folder / "checkpoints"), master=f"local[{cores}]"
    )
    spark = open_session(target, jars.verify("spark"), app_name="headrace-tests", log=folder / "spark.log")
    try:
        yield spark
    finally:
        spark.stop()
