"""The source of a rehearsal: a folder with one file per batch, which replaces the real source."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    MapType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headrace.errors import FlowError
from headrace.flow.inputs import Input
from headrace.flow.target import Target
from headrace.testing.script import Keyed, ScriptedBatch, Value

# Later than any event: a row with this time closes every window. It is removed after the watermark.
END = datetime(9000, 1, 1, tzinfo=UTC)

# The timestamp of records without an event time, unless the script sets the clock.
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)

# The columns of Spark's Kafka source that Headrace uses.
_RECORD = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
    ]
)


# Values for the required fields of the row that ends the input. DecimalType comes before its base class NumericType.
_ANY_VALUES: tuple[tuple[type[DataType], object], ...] = (
    (StringType, "end"),
    (BooleanType, False),
    (DecimalType, Decimal(0)),
    (NumericType, 0),
    (TimestampType, END),
    (DateType, END.date()),
    (BinaryType, b""),
    (ArrayType, []),
    (MapType, {}),
)


@dataclass(frozen=True)
class ScriptedSource:
    """One input of a rehearsal. Each batch of the script is one file, read in order, one per batch of the flow."""

    input: str
    folder: Path
    carries_payload: bool
    columns: StructType

    @property
    def name(self) -> str:
        """Return `script:INPUT`."""
        return f"script:{self.input}"

    def preflight(self, target: Target) -> None:
        """Do nothing: the rehearsal created the folder."""

    def stream(self, spark: SparkSession, target: Target) -> DataFrame:
        """Return the frame of the batches that are staged."""
        reader = spark.readStream.format("parquet").schema(self.columns).option("maxFilesPerTrigger", "1")
        return reader.load(str(self.folder))

    def batch(self, spark: SparkSession, target: Target, start: str, end: str) -> DataFrame:
        """Return the records of the batches after `start`, up to `end`. Spark counts the files that it has read."""
        numbers = range(file_number(start) + 1, file_number(end) + 1)
        return spark.read.schema(self.columns).parquet(*(str(self._file(number)) for number in numbers))

    def stage(self, number: int, batch: ScriptedBatch, spec: Input) -> None:
        """Write the file of a batch, even without records: the batches of all inputs must stay aligned."""
        records = batch.records.get(self.input, ())
        if batch.last:
            rows = [self._end(spec)] if spec.watermark is not None else []
        elif self.carries_payload:
            rows = [self._record(number, position, record, batch, spec) for position, record in enumerate(records)]
        else:
            rows = [self._row(record) for record in records]
        schema = to_arrow_schema(self.columns, timezone="UTC")
        path = self._file(number)
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), path.with_suffix(".new"))
        path.with_suffix(".new").rename(path)
        # Spark reads the oldest file first, and files of one test are created within one tick of the clock.
        os.utime(path, (number, number))

    def _file(self, number: int) -> Path:
        return self.folder / f"{number:06}.parquet"

    def _record(
        self, number: int, position: int, record: Value | Keyed, batch: ScriptedBatch, spec: Input
    ) -> dict[str, object]:
        key, value = (record.key, record.value) if isinstance(record, Keyed) else (None, record)
        return {
            "key": key.encode() if key is not None else None,
            "value": _encode(value),
            "topic": self.input,
            "partition": 0,
            # Offsets are unique and increasing; gaps occur in Kafka, too.
            "offset": number * 1_000_000 + position,
            "timestamp": batch.clock or _event_time(value, spec) or _EPOCH,
        }

    def _row(self, record: Value | Keyed) -> dict[str, object]:
        if not isinstance(record, Mapping):
            raise FlowError(
                f"The script sends {record!r} to the input '{self.input}'.",
                why="The input has its own columns, so a record is a mapping of columns to values.",
                state="Nothing was run.",
                remedy="Write the record as a mapping.",
                code="HR-220",
            )
        return dict(record)

    def _end(self, spec: Input) -> dict[str, object]:
        """Return a valid row that closes every window: later than any event."""
        schema = spec.schema or self.columns
        row = {field.name: _any_value(field.dataType) for field in schema if not field.nullable}
        row |= {spec.watermark.column: END} if spec.watermark is not None else {}
        if not self.carries_payload:
            return row
        key = b"end" if spec.key_required else None
        last = {"topic": self.input, "partition": 0, "offset": 2**62, "timestamp": END}
        return {"key": key, "value": _encode(row), **last}


def scripted_source(name: str, spec: Input, folder: Path, columns: StructType | None) -> ScriptedSource:
    """Create the scripted source of an input. `columns` are the columns of an input without a schema."""
    folder.mkdir(parents=True)
    if spec.schema is not None:
        return ScriptedSource(name, folder, carries_payload=True, columns=_RECORD)
    if columns is None:
        raise FlowError(
            f"The columns of the input '{name}' are not known.",
            why=f"{spec.source.name} has its own columns, which only the real source knows.",
            state="Nothing was run.",
            remedy=f"Declare them: rehearse(..., columns={{'{name}': StructType([...])}}).",
            code="HR-221",
        )
    return ScriptedSource(name, folder, carries_payload=False, columns=columns)


def file_number(offset: str | None) -> int:
    """Return the number of the last file before an offset, or -1."""
    # Spark records no start offset for the first batch, only the names of its files.
    return int(json.loads(offset.partition("\n")[0]).get("logOffset", -1)) if offset else -1


def _encode(value: Value) -> bytes | None:
    if isinstance(value, Mapping):
        return json.dumps(dict(value), default=_to_json).encode()
    return value.encode() if isinstance(value, str) else value


def _to_json(value: object) -> object:
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    raise TypeError(f"{value!r} cannot be sent as JSON")


def _event_time(value: Value, spec: Input) -> datetime | None:
    if spec.watermark is None or not isinstance(value, Mapping):
        return None
    at = value.get(spec.watermark.column)
    try:
        event_time = datetime.fromisoformat(at) if isinstance(at, str) else at
    except ValueError:
        return None
    if not isinstance(event_time, datetime):
        return None
    return event_time if event_time.tzinfo is not None else event_time.replace(tzinfo=UTC)


def _any_value(kind: DataType) -> object:
    """Return any value of a type, for a required field of the row that ends the input."""
    if isinstance(kind, StructType):
        return {field.name: _any_value(field.dataType) for field in kind if not field.nullable}
    for spark_type, value in _ANY_VALUES:
        if isinstance(kind, spark_type):
            return value
    raise FlowError(
        f"The end of the input cannot be simulated: a required field is of type {kind.simpleString()}.",
        why="The end is a separate row, and no value of this type can be generated.",
        state="Nothing was run.",
        remedy="Leave EndOfInput out, and close the windows with a row of a later time.",
        code="HR-221",
    )


def require_known_inputs(script: Sequence[ScriptedBatch], names: Sequence[str]) -> None:
    """Raise HR-220 when a batch names an input that the flow does not have."""
    for number, batch in enumerate(script):
        unknown = [name for name in batch.records if name not in names]
        if unknown:
            raise FlowError(
                f"Batch {number} of the script is for the input '{unknown[0]}'.",
                why=f"The flow has the inputs {', '.join(names)}.",
                state="Nothing was run.",
                remedy="Name one of them: Arrive(NAME=[...]).",
                code="HR-220",
            )
