"""What a flow reads: a source, the schema of its payload, and what makes a row bad."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.flow.levers import Watermark
from headrace.flow.source import Source

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

# A JSON event is rarely over a few kilobytes. A record past this is parsed on one core while the rest of the
# batch waits, so it is set aside; raise the limit where large records are the rule.
MAX_RECORD_BYTES = 1024 * 1024


@dataclass(frozen=True)
class Input:
    """One source as a flow sees it: parsed, judged, watermarked.

    | field        | meaning                                                                                   |
    |--------------|-------------------------------------------------------------------------------------------|
    | source       | where rows come from                                                                      |
    | schema       | fields of the JSON payload; a field that is not nullable is required                       |
    | watermark    | how late a row may be                                                                     |
    | key_required | whether a record without a key is bad                                                     |
    | max_bytes    | records larger than this are bad                                                          |

    A bad row never reaches the transform and never moves the watermark. It is counted, and filed with topic,
    partition, offset and reason in the flow's quarantine table.
    """

    source: Source
    schema: StructType | None = None
    watermark: Watermark | None = None
    key_required: bool = False
    max_bytes: int = MAX_RECORD_BYTES
