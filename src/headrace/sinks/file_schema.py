"""Check that a file format preserves every column type that is written to it."""

from collections.abc import Iterator, Sequence

from pyspark.sql import DataFrame, functions as F, types as T

from headrace.clients.file_sink_log import FileFormat
from headrace.clients.sql import column_named
from headrace.errors import FlowError

HOUR_PARTITIONS = ("date", "hour")

# In microseconds.
_DAY, _HOUR = 86_400_000_000, 3_600_000_000

# Types whose text is lossless in every session. A timestamp depends on the time zone; a double may be rounded.
_FOLDERS = (T.StringType, T.BooleanType, T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.DecimalType, T.DateType)
_FLAT = (*_FOLDERS, T.FloatType, T.DoubleType, T.TimestampType, T.TimestampNTZType)


def with_hour_partitions(rows: DataFrame, column: str, sink: str) -> DataFrame:
    """Add the columns `date` and `hour` of a timestamp, in UTC. A null timestamp gives null in both."""
    taken = [name for name in rows.columns if name.lower() in HOUR_PARTITIONS]
    if taken:
        raise unwritable_rows(
            sink,
            f"The rows have a column {taken[0]}, and hourly adds one of this name.",
            f"Rename {taken[0]} in the transform.",
        )
    types = [field.dataType for field in rows.schema.fields if field.name == column]
    if not types or not isinstance(types[0], T.TimestampType):
        actual = types[0].simpleString() if types else "not among the columns"
        raise unwritable_rows(
            sink,
            f"hourly names {column}, which is {actual}; it has to be a timestamp.",
            "Name a column of type timestamp.",
        )
    # Computed from epoch microseconds, because every other function uses the session time zone.
    micros = F.unix_micros(column_named(column))
    of_day = F.pmod(micros, F.lit(_DAY))
    days, hours = F.round((micros - of_day) / _DAY).cast("int"), F.floor(of_day / _HOUR)
    date, hour = HOUR_PARTITIONS
    return rows.withColumns(
        {date: F.date_add(F.lit("1970-01-01").cast("date"), days), hour: F.lpad(hours.cast("string"), 2, "0")}
    )


def require_writable_columns(
    schema: T.StructType, file_format: FileFormat, partitions: Sequence[str], sink: str
) -> None:
    """Raise unless the format preserves every column. Called before the first file of a batch."""
    missing = [name for name in partitions if name not in schema.names]
    if missing:
        raise unwritable_rows(sink, f"The rows have no column {missing[0]}.", "Correct partition_by.")
    for field in schema.fields:
        if field.name in partitions and not isinstance(field.dataType, _FOLDERS):
            raise unwritable_rows(
                sink,
                f"{field.name} is {field.dataType.simpleString()}, which cannot be the name of a folder.",
                "Partition by a text, a whole number or a date; for a timestamp take hourly.",
            )
    in_files = [field for field in schema.fields if field.name not in partitions]
    if not in_files:
        raise unwritable_rows(
            sink, "Every column is a partition, and none is left for the files.", "Partition by fewer columns."
        )
    if file_format == "csv" and len(in_files) == 1:
        raise unwritable_rows(
            sink,
            f"{in_files[0].name} is the only column: a row of null would be an empty line, which readers pass over.",
            "Take json, or add a column.",
        )
    for field in in_files:
        for path, data_type in _parts(field.name, field.dataType):
            if not _fits(data_type, file_format):
                raise unwritable_rows(
                    sink,
                    f"{path} is {data_type.simpleString()}, which {file_format} cannot hold so that it is read again.",
                    "Take parquet or another format, or turn the column into a text in the transform.",
                )


def unwritable_rows(sink: str, why: str, remedy: str) -> FlowError:
    """Return HR-215: the rows do not match the file sink."""
    return FlowError(
        f"The rows of the flow do not fit {sink}.",
        why=why,
        state="Nothing of the batch was written; it is run again when the flow is started again.",
        remedy=remedy,
        code="HR-215",
    )


def _parts(path: str, data_type: T.DataType) -> Iterator[tuple[str, T.DataType]]:
    """Yield a column and every nested field, each with its path."""
    yield path, data_type
    match data_type:
        case T.StructType():
            for field in data_type.fields:
                yield from _parts(f"{path}.{field.name}", field.dataType)
        case T.ArrayType():
            yield from _parts(f"{path}[]", data_type.elementType)
        case T.MapType():
            yield from _parts(f"{path}{{}}", data_type.valueType)


def _fits(data_type: T.DataType, file_format: FileFormat) -> bool:
    match file_format, data_type:
        case "csv", _:
            return isinstance(data_type, _FLAT)
        case "json", T.MapType():
            # JSON keys are always strings.
            return isinstance(data_type.keyType, T.StringType)
        case "json" | "orc", _:
            return isinstance(data_type, (*_FLAT, T.BinaryType, T.ArrayType, T.MapType, T.StructType))
        case _:
            return True
