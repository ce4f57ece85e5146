"""Bad rows of inputs with columns of their own, found again for the quarantine: from the future, or against a rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from headrace.errors import DataError
from headrace.flow.inputs import Input
from headrace.ingest.future_events import invalid_rows, validate_by_clock
from headrace.runtime.checkpoint.checkpoint import Checkpoint

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# What a source says of rows that it cannot give once more.
_NOT_AGAIN = "HR-511"


def ahead_rows(
    name: str,
    given: Input,
    batches: Sequence[int],
    checkpoint: Checkpoint,
    scan: Callable[[int, str], DataFrame | None],
) -> list[DataFrame]:
    """Return the rows of an input that the clock of their batch or a rule left out, as the quarantine keeps them.

    `scan` reads a batch of an input again. A batch that cannot be read again is passed over: its rows are in the counts
    of the run, and stay in their source.
    """
    if given.watermark is None and not given.rules:
        return []
    parts = []
    for number in batches:
        try:
            rows = scan(number, name)
        except DataError as error:
            if error.code != _NOT_AGAIN:
                raise
            continue
        if rows is None:
            continue
        columns = [F.col(f"`{each}`") for each in rows.columns if each != "batch_id"]
        clock = F.timestamp_millis(F.lit(checkpoint.offset_entry(number).timestamp_ms))
        ahead = invalid_rows(validate_by_clock(rows, given, clock), given)
        parts.append(
            ahead.select(
                F.lit(name).alias("input"),
                F.lit(None).cast("string").alias("topic"),
                F.lit(None).cast("int").alias("partition"),
                F.lit(None).cast("long").alias("offset"),
                F.lit(None).cast("timestamp").alias("kafka_time"),
                "reason",
                F.lit(None).cast("binary").alias("key"),
                F.to_json(F.struct(*columns)).cast("binary").alias("value"),
                F.lit(number).cast("long").alias("batch_id"),
            )
        )
    return parts
