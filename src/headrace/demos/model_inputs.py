"""What a model needs of a run, and what it is compared with: records, boundaries of batches, bad and late rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from headrace.audit.flow_audit import late_table, quarantine_table
from headrace.clients.kafka import newest_timestamp, read_topic
from headrace.clients.storage import file_store
from headrace.demos.compare import Comparison, Row, table_rows
from headrace.demos.protocol import DemoSettings
from headrace.flow.flow import Flow
from headrace.flow.target import Target
from headrace.patterns.records import ConsumedRecord, InvalidRecord
from headrace.patterns.window_model import BatchOffsets
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.checkpoint.source_order import source_index

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The most differences that are printed.
_FEW = 20


def consumed(target: Target, topic: str) -> list[ConsumedRecord]:
    """Return every record of a topic, as it was committed."""
    return [
        ConsumedRecord(
            message.partition() or 0,
            message.offset() or 0,
            message.timestamp()[1],
            message.key(),
            message.value(),
        )
        for message in read_topic(target, topic)
    ]


def boundaries(spark: SparkSession | None, target: Target, flow: Flow) -> list[dict[str, BatchOffsets]]:
    """Return the batches that a flow has committed: by input, the ranges of offsets that each one read."""
    checkpoint = Checkpoint.of(flow.name, target, file_store(target.checkpoints, spark))
    places = {name: source_index(checkpoint, flow, name) for name in flow.named_inputs}
    return [
        {
            name: {} if place is None else _span(checkpoint.offset_range(batch_id, place))
            for name, place in places.items()
        }
        for batch_id in checkpoint.committed_batches()
    ]


def _span(offsets: tuple[str, str] | None) -> BatchOffsets:
    if offsets is None:
        return {}
    (start,), (end,) = (json.loads(each).values() for each in offsets)
    return {int(partition): (start.get(partition, 0), last) for partition, last in end.items()}


@dataclass(frozen=True)
class Filed:
    """What a flow must have filed.

    | field | meaning                                                                        |
    |-------|--------------------------------------------------------------------------------|
    | bad   | every bad record                                                               |
    | late  | how many rows each batch dropped as late                                       |
    """

    bad: Sequence[InvalidRecord]
    late: Sequence[int]

    @property
    def bad_rows(self) -> list[Row]:
        """The bad records as the quarantine has them."""
        return [asdict(bad) for bad in self.bad]

    @property
    def late_rows(self) -> list[Row]:
        """The late rows, as far as the ledger is looked at: by their batch."""
        return [{"batch_id": number} for number, late in enumerate(self.late) for _ in range(late)]


@dataclass(frozen=True)
class FiledByInput:
    """What a flow of several inputs must have filed, record by record.

    | field | meaning                                                                        |
    |-------|--------------------------------------------------------------------------------|
    | bad   | every bad record, by input                                                     |
    | late  | `batch_id`, `input`, `partition` and `offset` of every row that was dropped     |
    """

    bad: Mapping[str, Sequence[InvalidRecord]]
    late: Sequence[Row]

    @property
    def bad_rows(self) -> list[Row]:
        """The bad records as the quarantine has them."""
        return [{"input": name, **asdict(bad)} for name, rows in self.bad.items() for bad in rows]

    @property
    def late_rows(self) -> list[Row]:
        """The late rows as the ledger has them."""
        return list(self.late)


def compare_filed(
    found: Comparison, spark: SparkSession, target: Target, flow: str, filed: Filed | FiledByInput
) -> None:
    """Compare the quarantine and the late ledger of a flow with what should be in them."""
    by_input = ("input",) if isinstance(filed, FiledByInput) else ()
    places = ("input", "partition", "offset") if by_input else ()
    quarantined = table_rows(spark, "delta", quarantine_table(target, flow))
    found.add(f"quarantine of {flow}", filed.bad_rows, only(quarantined, *by_input, "partition", "offset", "reason"))
    dropped = table_rows(spark, "delta", late_table(target, flow))
    found.add(f"late rows of {flow}", filed.late_rows, only(dropped, "batch_id", *places))


def only(rows: Iterable[Row], *names: str) -> list[Row]:
    """Return rows with these columns."""
    return [{name: row[name] for name in names} for row in rows]


def past(target: Target, topic: str, wanted: DemoSettings) -> timedelta:
    """Return the history that a feed begins with: what is lacking since an earlier run, or all that is wanted.

    The same hour sent twice would only be late.
    """
    newest = newest_timestamp(target, topic)
    gap = datetime.now(UTC) - newest if newest else wanted.backfill
    return max(timedelta(0), min(gap, wanted.backfill))


@dataclass(frozen=True)
class ModelVerdict:
    """Every sink beside the model, and what else a demo has to say."""

    comparison: Comparison
    figures: Mapping[str, object] = field(default_factory=dict)
    told: Sequence[str] = ()

    @property
    def equal(self) -> bool:
        """Whether no row differs."""
        return self.comparison.equal

    def as_dict(self) -> Mapping[str, object]:
        """Return `rows_out`, `model`, and the demo's own figures."""
        return {"rows_out": self.comparison.rows_of_sinks(), "model": self.comparison.as_dict(), **self.figures}

    def lines(self) -> Sequence[str]:
        """Return the demo's own lines, then how many rows were compared, or the first differences."""
        if self.equal:
            rows = sum(self.comparison.rows.values())
            return [*self.told, f"Equal to the model: {rows:,} rows of every sink, late and bad ones included."]
        first = [f"  {difference}" for difference in self.comparison.differences[:_FEW]]
        return [*self.told, f"{len(self.comparison.differences)} differences from the model:", *first]
