"""Small files on whatever storage the roots are on: this machine's disk, or any filesystem that Hadoop knows.

Used for checkpoints and what Headrace keeps beside them. Never for tables.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject
    from pyspark.sql import SparkSession


class Files(Protocol):
    """The few operations a checkpoint needs. Paths are full locations, as the target gives them."""

    def read(self, path: str) -> str | None:
        """Return the text of a file, or None when it is not there."""
        ...

    def write(self, path: str, text: str) -> None:
        """Replace a file in one step: a reader sees the old text or the new one, never a part."""
        ...

    def names(self, path: str) -> list[str]:
        """Return the names in a folder, or none when it is not there."""
        ...


class LocalFiles:
    """Files on this machine."""

    def read(self, path: str) -> str | None:
        """Return the text of a file, or None when it is not there."""
        try:
            return local_path(path).read_text()
        except FileNotFoundError:
            return None

    def write(self, path: str, text: str) -> None:
        """Write beside, flush to the disk, rename over."""
        final = local_path(path)
        final.parent.mkdir(parents=True, exist_ok=True)
        beside = final.with_name(f".{final.name}.{os.getpid()}")
        with beside.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(final)

    def names(self, path: str) -> list[str]:
        """Return the names in a folder, or none when it is not there."""
        folder = local_path(path)
        return sorted(each.name for each in folder.iterdir()) if folder.is_dir() else []


class HadoopFiles:
    """Files on any filesystem that the session's Hadoop configuration knows."""

    def __init__(self, spark: SparkSession) -> None:
        assert spark._jvm is not None  # noqa: S101 - a classic session always has its JVM
        self._jvm = spark._jvm
        self._settings = spark._jsc.hadoopConfiguration()

    def read(self, path: str) -> str | None:
        """Return the text of a file, or None when it is not there."""
        where, filesystem = self._open(path)
        if not filesystem.exists(where):
            return None
        stream = filesystem.open(where)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, path: str, text: str) -> None:
        """Write the file. Object stores replace it in one step; others see it appear when it is closed."""
        where, filesystem = self._open(path)
        stream = filesystem.create(where, True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()

    def names(self, path: str) -> list[str]:
        """Return the names in a folder, or none when it is not there."""
        where, filesystem = self._open(path)
        if not filesystem.exists(where):
            return []
        return sorted(status.getPath().getName() for status in filesystem.listStatus(where))

    def _open(self, path: str) -> tuple[JavaObject, JavaObject]:
        where = self._jvm.org.apache.hadoop.fs.Path(path)
        return where, where.getFileSystem(self._settings)


def is_local(location: str) -> bool:
    """Whether a location is on this machine's own disk."""
    return urlsplit(location).scheme in ("", "file")


def local_path(location: str) -> Path:
    """Return a location on this machine's disk as a path."""
    return Path(urlsplit(location).path) if location.startswith("file:") else Path(location)


def files_for(location: str, spark: SparkSession | None = None) -> Files:
    """Return the way to the files of a location. Without a session only this machine's disk can be reached."""
    if is_local(location) or spark is None:
        return LocalFiles()
    return HadoopFiles(spark)
