"""The source of a rehearsal: a folder with one file per batch, which reads like the source that it stands for."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
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
from headrace.testing.script import Batch, Keyed, Value

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Later than any event: a row of this time closes every window. It is taken out behind the watermark.
END = datetime(9000, 1, 1, tzinfo=UTC)

# What records without an event time are stamped with, as long as the script says nothing.
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)

# The columns of Spark's Kafka source that the house uses.
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


# Values for the required fields of the row that ends the input; a decimal is a number, so it stands before them.
_ANY: tuple[tuple[type[DataType], object], ...] = (
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
class Scripted:
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
        """Nothing can be missing: the rehearsal made the folder."""

    def stream(self, spark: SparkSession, target: Target) -> DataFrame:
        """Return the frame of the batches that are staged."""
        reader = spark.readStream.format("parquet").schema(self.columns).option("maxFilesPerTrigger", "1")
        return reader.load(str(self.folder))

    def batch(self, spark: SparkSession, target: Target, start: str, end: str) -> DataFrame:
        """Return the records of the batches after `start`, up to `end`. Spark counts the files that it has read."""
        numbers = range(file_number(start) + 1, file_number(end) + 1)
        return spark.read.schema(self.columns).parquet(*(str(self._file(number)) for number in numbers))

    def stage(self, number: int, batch: Batch, given: Input) -> None:
        """Write the file of a batch, also when the input gets nothing: batches of all inputs go together."""
        records = batch.records.get(self.input, ())
        if batch.last:
            rows = [self._end(given)] if given.watermark is not None else []
        elif self.carries_payload:
            rows = [self._record(number, place, each, batch, given) for place, each in enumerate(records)]
        else:
            rows = [self._row(each) for each in records]
        schema = to_arrow_schema(self.columns, timezone="UTC")
        path = self._file(number)
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), path.with_suffix(".new"))
        path.with_suffix(".new").rename(path)
        # Spark takes the oldest file first, and files of one test are made within one tick of the clock.
        os.utime(path, (number, number))

    def _file(self, number: int) -> Path:
        return self.folder / f"{number:06}.parquet"

    def _record(self, number: int, place: int, record: Value | Keyed, batch: Batch, given: Input) -> dict[str, object]:
        key, value = (record.key, record.value) if isinstance(record, Keyed) else (None, record)
        return {
            "key": key.encode() if key is not None else None,
            "value": _encoded(value),
            "topic": self.input,
            "partition": 0,
            # Offsets tell records apart and grow; that they have gaps is so in Kafka, too.
            "offset": number * 1_000_000 + place,
            "timestamp": batch.clock or _event_time(value, given) or _EPOCH,
        }

    def _row(self, record: Value | Keyed) -> dict[str, object]:
        if not isinstance(record, Mapping):
            raise FlowError(
                f"The script sends {record!r} to the input '{self.input}'.",
                why="The input has columns of its own, so a record is a mapping of columns to values.",
                state="Nothing was run.",
                remedy="Write the record as a mapping.",
                code="HR-220",
            )
        return dict(record)

    def _end(self, given: Input) -> dict[str, object]:
        """Return a row that closes every window: good, and later than anything."""
        schema = given.schema or self.columns
        row = {field.name: _some(field.dataType) for field in schema if not field.nullable}
        row |= {given.watermark.column: END} if given.watermark is not None else {}
        if not self.carries_payload:
            return row
        key = b"end" if given.key_required else None
        last = {"topic": self.input, "partition": 0, "offset": 2**62, "timestamp": END}
        return {"key": key, "value": _encoded(row), **last}


def scripted(name: str, given: Input, folder: Path, columns: StructType | None) -> Scripted:
    """Return the stand-in for an input's source. `columns` are those of a source that has its own."""
    folder.mkdir(parents=True)
    if given.schema is not None:
        return Scripted(name, folder, carries_payload=True, columns=_RECORD)
    if columns is None:
        raise FlowError(
            f"The columns of the input '{name}' are not known.",
            why=f"{given.source.name} has columns of its own, which only the real source knows.",
            state="Nothing was run.",
            remedy=f"Say them: rehearse(..., columns={{'{name}': StructType([...])}}).",
            code="HR-221",
        )
    return Scripted(name, folder, carries_payload=False, columns=columns)


def file_number(offset: str | None) -> int:
    """Return the last file that an offset stands behind, -1 for none."""
    # Where the first batch began Spark does not say: it keeps the names of the files there.
    return int(json.loads(offset.partition("\n")[0]).get("logOffset", -1)) if offset else -1


def _encoded(value: Value) -> bytes | None:
    if isinstance(value, Mapping):
        return json.dumps(dict(value), default=_as_json).encode()
    return value.encode() if isinstance(value, str) else value


def _as_json(value: object) -> object:
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    raise TypeError(f"{value!r} cannot be sent as JSON")


def _event_time(value: Value, given: Input) -> datetime | None:
    if given.watermark is None or not isinstance(value, Mapping):
        return None
    at = value.get(given.watermark.column)
    try:
        read = datetime.fromisoformat(at) if isinstance(at, str) else at
    except ValueError:
        return None
    if not isinstance(read, datetime):
        return None
    return read if read.tzinfo is not None else read.replace(tzinfo=UTC)


def _some(kind: DataType) -> object:
    """Return any value of a type, for a required field of the row that ends the input."""
    if isinstance(kind, StructType):
        return {field.name: _some(field.dataType) for field in kind if not field.nullable}
    for known, value in _ANY:
        if isinstance(kind, known):
            return value
    raise FlowError(
        f"The end of the input cannot be played: a required field is of type {kind.simpleString()}.",
        why="The end is a row of its own, and it is not known how to make up a value of this type.",
        state="Nothing was run.",
        remedy="Leave EndOfInput out, and close the windows with a row of a later time.",
        code="HR-221",
    )


def ordered(script: Sequence[Batch], names: Sequence[str]) -> None:
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
