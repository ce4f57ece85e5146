"""A folder that another flow writes with a Files sink, as the place that a source reads.

Spark's source reads the log of such a folder, and with it committed files only, when it is given the folder itself. It
does not when it is given a pattern or a folder below: there it would read the files of attempts that never committed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError

from headrace.clients.file_folder import LOG, READING, FileFormat, committed_files, is_pattern, owner_of
from headrace.clients.storage import files_for
from headrace.errors import DataError
from headrace.sources.bounds import undeclarable

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject
    from pyspark.sql import SparkSession


def require_log_honoured(spark: SparkSession, source: str, location: str) -> None:
    """Raise when a location names files of a Files sink's folder, and not the folder. Looks at what is there now."""
    assert spark._jvm is not None  # noqa: S101 - a classic session always has its JVM
    path = spark._jvm.org.apache.hadoop.fs.Path(location)
    filesystem = path.getFileSystem(spark._jsc.hadoopConfiguration())
    looked_at: set[str] = set()
    for folder in _not_read_by_log(filesystem, path):
        if str(folder) in looked_at:
            continue
        looked_at.add(str(folder))
        if _is_there(filesystem, spark._jvm.org.apache.hadoop.fs.Path(folder, LOG)):
            raise undeclarable(
                f"{source} reads files of {folder}, which a sink writes.",
                f"Only who reads that folder as a whole is told by its log ({LOG}) which files are committed.",
                f"Set path to {folder}, and choose rows in the transform.",
            )


def written_options(spark: SparkSession, source: str, location: str, file_format: FileFormat) -> Mapping[str, str]:
    """Return the options by which the rows of a Files sink come back as they were; none for any other folder."""
    owner = owner_of(files_for(location, spark), location)
    if owner is None:
        return {}
    if owner.format != file_format:
        raise undeclarable(
            f"{source} does not hold what is declared.",
            f"A Files sink writes {owner.format} to it.",
            f"Set format to {owner.format}.",
        )
    if owner.partitions and not committed_files(location, spark):
        # Spark learns from the folders, once, which columns they are. Of none it learns none: they would be null.
        raise DataError(
            f"{source} cannot be read yet.",
            why=f"It is partitioned by {', '.join(owner.partitions)}, and no file of it is committed.",
            state="Nothing was started and nothing was written.",
            remedy="Start the flow when the one that writes the folder has committed a batch with rows.",
            code="HR-510",
        )
    return READING[owner.format]


def _is_there(filesystem: JavaObject, path: JavaObject) -> bool:
    try:
        return bool(filesystem.exists(path))
    except Py4JJavaError:
        # A folder above may be closed to this user, who can read what lies below it all the same.
        return False


def _not_read_by_log(filesystem: JavaObject, path: JavaObject) -> Iterator[JavaObject]:
    """Yield the folders whose log Spark would pass over: those above a folder, and of a pattern all that it meets."""
    meets = filesystem.globStatus(path) if is_pattern(str(path)) else None
    for status in meets or ():
        yield status.getPath()
        yield from _above(status.getPath())
    yield from (each for each in _above(path) if not is_pattern(str(each)))


def _above(path: JavaObject) -> Iterator[JavaObject]:
    while (path := path.getParent()) is not None:
        yield path
