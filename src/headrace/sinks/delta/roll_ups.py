"""Windows and their roll-ups in one Delta table: minutes, hours and days that add up in every version."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import reduce
from itertools import pairwise

from pyspark.sql import DataFrame, Window, functions as F
from pyspark.sql.group import GroupedData

from headrace.clients.spark.settings import session_settings
from headrace.clients.sql import column_named, quote_name, timestamp_literal
from headrace.errors import FlowError
from headrace.flow.duration import Duration
from headrace.flow.sink import Batch
from headrace.sinks.batch.persist import persisted
from headrace.sinks.delta.upsert import DeltaUpsert

GRAIN, START, END = "grain", "window_start", "window_end"
_IS_NEW, _LONGER_START = "_headrace_fresh", "_headrace_into"
# Adaptive execution runs one job per stage, which costs more than it saves on rows this small.
_SMALL = {"spark.sql.adaptive.enabled": "false"}


@dataclass(frozen=True)
class DeltaRollUps(DeltaUpsert):
    """Merge each micro-batch of windows into a Delta table, together with every longer window that contains them.

    Rows have `grain`, `window_start` and `window_end`: the flow computes the first grain, and the sink computes the
    others, aligned to midnight UTC. All of them are merged in one commit. So in every version of the table, a row of a
    longer grain is what `combine` returns for the rows of the grain below: after a crash, after an update of a window
    and after a repair of late rows, which also writes through this sink.

    | field   | meaning                                                                                           |
    |---------|---------------------------------------------------------------------------------------------------|
    | key     | `grain`, `window_start` and the other columns that identify a row                                 |
    | grains  | lengths of windows, shortest first; each a multiple of the one before                             |
    | combine | aggregates rows grouped by the key to one row; returns the key and every other column             |

    A batch reads only the windows that are part of the longer windows it changes: if files are clustered by
    `window_start`, its cost does not grow with the age of the table.

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
                why="A window fits into a longer one only if the longer length is a multiple of its own.",
                remedy="Name lengths from short to long that divide each other: '5 minutes', '1 hour', '1 day'.",
                code="HR-560",
            )
        if self.sequence is not None:
            raise FlowError(
                f"{self.name} has a sequence, '{self.sequence}', and rolls windows up.",
                why="With a sequence the sink skips older windows, but the roll-ups would still count them.",
                remedy="Leave `sequence` out: a flow emits its windows in order.",
                code="HR-560",
            )
        if not {GRAIN, START} <= set(self.key):
            raise FlowError(
                f"The key of {self.name}, {', '.join(self.key)}, does not distinguish windows from their roll-ups.",
                why="An hour and its first five minutes begin at the same time.",
                remedy=f"Put '{GRAIN}' and '{START}' into the key.",
                code="HR-560",
            )

    def write(self, rows: DataFrame, batch: Batch) -> None:
        """Merge the rows and their roll-ups in one commit that also records the batch."""
        with persisted(rows) as cached, session_settings(cached.sparkSession, _SMALL):
            table = self.create_if_missing(cached.sparkSession, cached.schema, batch).toDF().alias("old")
            first, last = cached.agg(F.min(START), F.max(START)).collect()[0]
            levels, longer = [cached], cached
            for short, long in pairwise(self.grains):
                parts = table.where(F.col(GRAIN) == short).where(_within(long, first, last))
                longer = self._roll_up_to_grain(parts, longer, long)
                levels.append(longer)
            all_windows = reduce(lambda left, right: left.unionByName(right), levels)
            self.merge(all_windows, batch, within=_within(self.grains[-1], first, last))

    def _roll_up_to_grain(self, present: DataFrame, rows: DataFrame, grain: str) -> DataFrame:
        """Return the windows of a longer grain that contain the rows, from these rows and those in the table.

        A new row replaces the row of its window in the table. Needs one shuffle and no join.
        """
        length, columns = Duration.parse(grain), [column_named(name) for name in rows.columns]
        others = [column_named(name) for name in self.key if name not in (GRAIN, START)]
        candidates = present.select(*columns, F.lit(False).alias(_IS_NEW)).unionByName(
            rows.withColumn(_IS_NEW, F.lit(True))
        )
        by_window = Window.partitionBy(_LONGER_START, *others)
        by_part = Window.partitionBy(_LONGER_START, *others, START).orderBy(F.desc(_IS_NEW))
        parts = (
            candidates.withColumn(_LONGER_START, F.window(START, length.as_interval()).getField("start"))
            .withColumn("_headrace_touched", F.max(_IS_NEW).over(by_window))
            .withColumn("_headrace_position", F.row_number().over(by_part))
            .where("_headrace_touched AND _headrace_position = 1")
        )
        combined = self.combine(parts.groupBy(F.col(_LONGER_START).alias(START), *others))
        end = F.timestamp_millis(F.unix_millis(START) + length.ms)
        return combined.withColumn(GRAIN, F.lit(grain)).withColumn(END, end).select(*columns)


def _within(grain: str, first: datetime | None, last: datetime | None) -> str:
    """Return the condition on `old` that selects all windows of a grain between two start times."""
    if first is None or last is None:
        return "false"
    length = Duration.parse(grain).ms
    # Spark returns naive datetimes in the local time zone, which `timestamp` expects.
    start, end = (int(time.timestamp() * 1000) // length * length for time in (first, last))
    old = f"old.{quote_name(START)}"
    return f"{old} >= {_literal(start)} AND {old} < {_literal(end + length)}"


def _literal(ms: int) -> str:
    return timestamp_literal(datetime.fromtimestamp(ms / 1000, UTC))
