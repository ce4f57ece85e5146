"""Kafka records as pieces of Arrow data that tasks on the executors read. No row passes through the driver."""

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark import RDD
from pyspark.serializers import NoOpSerializer
from pyspark.sql import DataFrame

from headrace.clients.spark.jvm import java_dataset

# A record may be as large as a broker takes, 1 MB by default, and a piece has to stay below 2 GB.
_RECORDS_PER_PIECE = 1_000
_SCHEMA = pa.schema([("key", pa.binary()), ("value", pa.binary())])


def single_partition_pieces(records: DataFrame) -> tuple[RDD[bytes], int]:
    """Compute the records in parallel and return them as one partition of pieces, with the number of pieces.

    The partition is read from shuffle files, so nothing is computed twice. Records of one partition of the DataFrame
    keep their order.
    """
    pieces = _pieces(records).coalesce(1, True)
    return RDD(pieces, records.sparkSession.sparkContext, NoOpSerializer()), int(pieces.count())


def arrow_pieces(records: DataFrame) -> RDD[bytes]:
    """Return the records as pieces, in the partitions of the DataFrame. They are computed while a task reads them."""
    return RDD(_pieces(records), records.sparkSession.sparkContext, NoOpSerializer())


def decode_pieces(pieces: Iterable[bytes]) -> Iterator[pa.RecordBatch]:
    """Decode pieces to record batches with the columns `key` and `value`. Called in the task that reads them."""
    return (pa.ipc.read_record_batch(pa.py_buffer(piece), _SCHEMA) for piece in pieces)


def _pieces(records: DataFrame):  # type: ignore[no-untyped-def]  # an object of the JVM
    both = records.selectExpr("cast(key as binary) as key", "cast(value as binary) as value")
    return java_dataset(both).toArrowBatchRdd(_RECORDS_PER_PIECE, "UTC", True, False).toJavaRDD()
