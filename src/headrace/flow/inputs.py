"""What a flow reads: a source, the schema of its payload, and what makes a row bad."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Literal

from headrace.flow.levers import Watermark
from headrace.flow.rules import Rule, require_own_names
from headrace.flow.source import Source

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

# What a source of bytes has beside the value, as Spark types it.
_RECORD = {
    "key": "binary",
    "topic": "string",
    "partition": "integer",
    "offset": "long",
    "timestamp": "timestamp",
}
KEPT = tuple(_RECORD)
# Which of them may be under a watermark: when the broker got the record.
BROKER_TIME = "timestamp"

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
    | keep         | columns of the source that go on beside the fields of the payload: topic, offset ...      |
    | null_values  | what a record without a value is: `bad`, or `skip` for one that says nothing (a tombstone) |
    | rules        | what else has to be true of a row, and what happens to one of which it is not: see `Rule`   |

    A bad row never reaches the transform and never moves the watermark. It is counted, and filed with topic,
    partition, offset and reason in the flow's quarantine table.
    """

    source: Source
    schema: StructType | None = None
    watermark: Watermark | None = None
    key_required: bool = False
    max_bytes: int = MAX_RECORD_BYTES
    keep: tuple[str, ...] = ()
    null_values: Literal["bad", "skip"] = "bad"
    rules: tuple[Rule, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "rules", tuple(self.rules))
        require_own_names(self.rules)

    @property
    def columns(self) -> StructType | None:
        """The columns that a transform is given, or None where only the source knows them."""
        if self.schema is None or not self.keep:
            return self.schema
        return reduce(
            lambda schema, name: schema.add(name, _RECORD[name]), self.keep, type(self.schema)([*self.schema])
        )
