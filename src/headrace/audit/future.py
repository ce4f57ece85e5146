"""Read again, for the quarantine, the rows without a payload schema that a rule or the clock rejected."""

from collections.abc import Callable, Sequence

from pyspark.sql import DataFrame, functions as F

from headrace.clients.sql import column_named
from headrace.errors import SourceNotReplayable
from headrace.flow.inputs import Input
from headrace.ingest.future_events import invalid_rows, validate_by_clock
from headrace.runtime.checkpoint.checkpoint import Checkpoint


def rejected_rows(
    name: str,
    input_: Input,
    batches: Sequence[int],
    checkpoint: Checkpoint,
    scan: Callable[[int, str], DataFrame | None],
) -> list[DataFrame]:
    """Return the rows of an input that were rejected as future events or by a rule, as rows of the quarantine.

    `scan` reads a batch of an input again. A batch that cannot be read again is skipped: the run still counts its rows,
    and they stay in their source.
    """
    if input_.watermark is None and not input_.rules:
        return []
    frames = []
    for number in batches:
        try:
            rows = scan(number, name)
        except SourceNotReplayable:
            continue
        if rows is None:
            continue
        columns = [column_named(column) for column in rows.columns if column != "batch_id"]
        clock = F.timestamp_millis(F.lit(checkpoint.offset_entry(number).timestamp_ms))
        rejected = invalid_rows(validate_by_clock(rows, input_, clock), input_)
        frames.append(
            rejected.select(
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
    return frames
