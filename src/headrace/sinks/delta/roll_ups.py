"""Windows and their roll-ups in one Delta table: minutes, hours and days that add up in every version of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import reduce
from itertools import pairwise
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from headrace.errors import FlowError
from headrace.flow.duration import Duration
from headrace.flow.sink import Batch
from headrace.sinks.batch.persist import kept
from headrace.sinks.delta.sql import settings
from headrace.sinks.delta.upsert import DeltaUpsert

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.group import GroupedData

GRAIN, START, END = "grain", "window_start", "window_end"
_FRESH, _INTO = "_headrace_fresh", "_headrace_into"
# Adaptive plans run a job per stage, to choose between plans that all take a moment here.
_SMALL = {"spark.sql.adaptive.enabled": "false"}


@dataclass(frozen=True)
class DeltaRollUps(DeltaUpsert):
    """Merge each micro-batch of windows into a Delta table, and with it every longer window that they are part of.

    Rows carry `grain`, `window_start` and `window_end`: the flow's own are those of the first grain, and the sink makes
    the others, aligned to midnight UTC. All of them go into the table in one commit. So in each of its versions a row
    of a longer grain is what `combine` makes of the rows of the grain below: after a crash, after an update of a window
    and after a repair of late rows, which writes through this sink as well.

    | field   | meaning                                                                                           |
    |---------|---------------------------------------------------------------------------------------------------|
    | key     | `grain`, `window_start` and what else tells rows apart                                            |
    | grains  | lengths of windows, shortest first; each a multiple of the one before                             |
    | combine | makes one row of several: given rows grouped by the key, returns the key and every other column   |

    A batch reads windows that go into the longer ones that it touches, of one grain each, and no others: what it costs
    does not grow with the age of the table, where files are clustered by `window_start`.

    Exactly once, on the conditions of `DeltaTableSink`.
    """

    grains: Sequence[str] = field(kw_only=True)
    combine: Callable[[GroupedData], DataFrame] = field(kw_only=True, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        lengths = [Duration.parse(grain).ms for grain in self.grains]
        if not lengths or any(not short or long % short or long == short for short, long in pairwise(lengths)):
            raise FlowError(
                f"Windows of {', '.join(self.grains) or 'no length'} cannot be rolled up.",
                why="A window goes into one longer one as a whole only if that one's length is a multiple of its own.",
                state="Nothing was started.",
                remedy="Name lengths from short to long that divide each other: '5 minutes', '1 hour', '1 day'.",
                code="HR-560",
            )
        if self.sequence is not None:
            raise FlowError(
                f"{self.name} has a sequence, '{self.sequence}', and rolls windows up.",
                why="A window that the table has newer is left as it is, and would be in its roll-ups all the same.",
                state="Nothing was started.",
                remedy="Leave `sequence` out: a flow tells its windows in their order.",
                code="HR-560",
            )
        if not {GRAIN, START} <= set(self.key):
            raise FlowError(
                f"The key of {self.name}, {', '.join(self.key)}, does not tell windows and their roll-ups apart.",
                why="An hour and its first five minutes begin at the same time.",
                state="Nothing was started.",
                remedy=f"Put '{GRAIN}' and '{START}' into the key.",
                code="HR-560",
            )

    def write(self, rows: DataFrame, batch: Batch) -> None:
        """Merge the rows and the longer windows above them in one Delta commit that also records the batch."""
        with kept(rows) as once, settings(once.sparkSession, _SMALL):
            table = self.made(once.sparkSession, once.schema, batch).toDF().alias("old")
            first, last = once.agg(F.min(START), F.max(START)).collect()[0]
            found, above = [once], once
            for short, long in pairwise(self.grains):
                parts = table.where(F.col(GRAIN) == short).where(_within(long, first, last))
                above = self._longer(parts, above, long)
                found.append(above)
            every = reduce(lambda one, other: one.unionByName(other), found)
            self.merge(every, batch, within=_within(self.grains[-1], first, last))

    def _longer(self, present: DataFrame, rows: DataFrame, grain: str) -> DataFrame:
        """Return the windows of a longer grain that rows are part of, made of these and of those that are present.

        Of a window that both have, the row replaces the present one. One shuffle: no join is needed.
        """
        length, columns = Duration.parse(grain), [_quoted(name) for name in rows.columns]
        others = [_quoted(name) for name in self.key if name not in (GRAIN, START)]
        both = present.select(*columns, F.lit(False).alias(_FRESH)).unionByName(rows.withColumn(_FRESH, F.lit(True)))
        group = Window.partitionBy(_INTO, *others)
        window = Window.partitionBy(_INTO, *others, START).orderBy(F.desc(_FRESH))
        parts = (
            both.withColumn(_INTO, F.window(START, length.spark()).getField("start"))
            .withColumn("_headrace_touched", F.max(_FRESH).over(group))
            .withColumn("_headrace_place", F.row_number().over(window))
            .where("_headrace_touched AND _headrace_place = 1")
        )
        combined = self.combine(parts.groupBy(F.col(_INTO).alias(START), *others))
        end = F.timestamp_millis(F.unix_millis(START) + length.ms)
        return combined.withColumn(GRAIN, F.lit(grain)).withColumn(END, end).select(*columns)


def _within(grain: str, first: datetime | None, last: datetime | None) -> str:
    """Return a condition on `old` that holds for all windows within those of a grain that rows of two times are in."""
    if first is None or last is None:
        return "false"
    length = Duration.parse(grain).ms
    # Spark hands times over without a zone, in that of the machine; `timestamp` reads them so.
    start, end = (int(each.timestamp() * 1000) // length * length for each in (first, last))
    return f"old.`{START}` >= {_literal(start)} AND old.`{START}` < {_literal(end + length)}"


def _quoted(name: str) -> Column:
    return F.col(f"`{name}`")


def _literal(ms: int) -> str:
    return f"TIMESTAMP '{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S.%f}+00:00'"
