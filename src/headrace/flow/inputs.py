"""The inputs of a flow: a source, the schema of its payload, and the checks that make a row invalid."""

from dataclasses import dataclass
from functools import reduce
from typing import Literal

from pyspark.sql.types import StructType

from headrace.flow.levers import Watermark
from headrace.flow.rules import Rule, require_unique_names
from headrace.flow.source import Source

# The metadata columns of a source of bytes, with their Spark types.
_METADATA_TYPES = {
    "key": "binary",
    "topic": "string",
    "partition": "integer",
    "offset": "long",
    "timestamp": "timestamp",
}
METADATA_COLUMNS = tuple(_METADATA_TYPES)
# The metadata column that may have a watermark: when the broker received the record.
BROKER_TIMESTAMP = "timestamp"

# A JSON event is rarely over a few kilobytes. A record past this is parsed on one core while the rest of the
# batch waits, so it is quarantined. Raise the limit where large records are normal.
MAX_RECORD_BYTES = 1024 * 1024


@dataclass(frozen=True)
class Input:
    """One input of a flow: a source with its schema, watermark and data quality rules.

    | field        | meaning                                                                                   |
    |--------------|-------------------------------------------------------------------------------------------|
    | source       | where rows come from                                                                      |
    | schema       | fields of the JSON payload; a field that is not nullable is required                       |
    | watermark    | how late a row may be                                                                     |
    | key_required | whether a record without a key is invalid                                                     |
    | max_bytes    | records larger than this are invalid                                                          |
    | metadata_columns | columns of the source to pass on with the payload fields: topic, offset ...      |
    | null_values  | how to treat a record without a value (a tombstone): `invalid` or `skip`                |
    | rules        | data quality rules that each row must meet: see `Rule`                                     |

    An invalid row never reaches the transform and never advances the watermark. It is counted, and written with topic,
    partition, offset and reason to the quarantine table of the flow.
    """

    source: Source
    schema: StructType | None = None
    watermark: Watermark | None = None
    key_required: bool = False
    max_bytes: int = MAX_RECORD_BYTES
    metadata_columns: tuple[str, ...] = ()
    null_values: Literal["invalid", "skip"] = "invalid"
    rules: tuple[Rule, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "rules", tuple(self.rules))
        require_unique_names(self.rules)

    @property
    def columns(self) -> StructType | None:
        """The columns that the transform receives, or None if only the source knows them."""
        if self.schema is None or not self.metadata_columns:
            return self.schema
        return reduce(
            lambda schema, name: schema.add(name, _METADATA_TYPES[name]),
            self.metadata_columns,
            type(self.schema)([*self.schema]),
        )
