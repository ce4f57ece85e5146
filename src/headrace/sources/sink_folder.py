"""Checks for a source that reads a folder which another flow writes with a FileSink.

Spark's file source reads the log of such a folder, and so only committed files, if it reads the folder itself. With a
glob or a subfolder it ignores the log and would read the files of attempts that never committed.
"""

from collections.abc import Iterator, Mapping

from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from headrace.clients.file_sink_log import LOG, READ_OPTIONS, FileFormat, committed_files, folder_metadata, is_glob
from headrace.clients.spark.jvm import hadoop_path, jvm_of
from headrace.clients.storage import file_store
from headrace.errors import DataError
from headrace.sources.validation import invalid_source


def require_readable_by_log(spark: SparkSession, source: str, location: str) -> None:
    """Raise if a location is a glob or a subfolder of a FileSink's folder. Checks the files that exist now."""
    path, filesystem = hadoop_path(spark, location)
    checked: set[str] = set()
    for folder in _folders_without_log(filesystem, path):
        if str(folder) in checked:
            continue
        checked.add(str(folder))
        if _exists(filesystem, jvm_of(spark).org.apache.hadoop.fs.Path(folder, LOG)):
            raise invalid_source(
                f"{source} reads files of {folder}, which a sink writes.",
                f"Only a reader of the folder itself uses its log ({LOG}), which lists the committed files.",
                f"Set path to {folder}, and choose rows in the transform.",
            )


def sink_read_options(spark: SparkSession, source: str, location: str, file_format: FileFormat) -> Mapping[str, str]:
    """Return the options that read the rows of a FileSink unchanged; none for any other folder."""
    owner = folder_metadata(file_store(location, spark), location)
    if owner is None:
        return {}
    if owner.format != file_format:
        raise invalid_source(
            f"{source} does not hold what is declared.",
            f"A FileSink writes {owner.format} to it.",
            f"Set format to {owner.format}.",
        )
    if owner.partitions and not committed_files(location, spark):
        # Spark infers partition columns from the folders once, at the start. Without folders they would be null.
        raise DataError(
            f"{source} cannot be read yet.",
            why=f"It is partitioned by {', '.join(owner.partitions)}, and no file of it is committed.",
            state="Nothing was started and nothing was written.",
            remedy="Start the flow when the one that writes the folder has committed a batch with rows.",
            code="HR-516",
        )
    return READ_OPTIONS[owner.format]


def _exists(filesystem: JavaObject, path: JavaObject) -> bool:
    try:
        return bool(filesystem.exists(path))
    except Py4JJavaError:
        # A parent folder may be unreadable for this user although the folder itself is readable.
        return False


def _folders_without_log(filesystem: JavaObject, path: JavaObject) -> Iterator[JavaObject]:
    """Yield the folders whose log Spark would ignore: the parents of a folder, and all matches of a glob."""
    matches = filesystem.globStatus(path) if is_glob(str(path)) else None
    for status in matches or ():
        yield status.getPath()
        yield from _parents(status.getPath())
    yield from (folder for folder in _parents(path) if not is_glob(str(folder)))


def _parents(path: JavaObject) -> Iterator[JavaObject]:
    while (path := path.getParent()) is not None:
        yield path
