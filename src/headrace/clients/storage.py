"""Small files on the local disk or on any Hadoop filesystem.

Used for checkpoints and their metadata. Never for tables.
"""

import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from headrace.clients.spark.jvm import hadoop_path, jvm_of

# Requests a conditional write from S3A. Other filesystems ignore the option.
_CONDITIONAL = "fs.option.create.conditional.overwrite"


class FileStore(Protocol):
    """The file operations that a checkpoint needs. Paths are full locations, as in the target."""

    def read(self, path: str) -> str | None:
        """Return the text of a file, or None when it does not exist."""
        content = self.read_bytes(path)
        return None if content is None else content.decode()

    def read_bytes(self, path: str) -> bytes | None:
        """Return the bytes of a file, or None if it does not exist: for checksums and possibly damaged files."""

    def write(self, path: str, text: str) -> None:
        """Replace a file atomically: a reader sees the old text or the new one, never a part."""

    def create(self, path: str, text: str) -> bool:
        """Create a file exclusively; False if it exists. Of concurrent callers on any machines one gets True."""

    def delete(self, path: str) -> None:
        """Delete a file, if it exists."""

    def names(self, path: str) -> list[str]:
        """Return the names in a folder, or none when it does not exist."""

    def sizes(self, path: str) -> dict[str, int]:
        """Return the size of every file below a folder by relative path. Ignores files that are being deleted."""


class LocalFileStore(FileStore):
    """Files on the local disk."""

    def read_bytes(self, path: str) -> bytes | None:
        """Return a file as it is, or None when it does not exist."""
        try:
            return local_path(path).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, path: str, text: str) -> None:
        """Write a temporary file, sync it to disk, and rename it."""
        final = local_path(path)
        self._write_temporary(final, text).replace(final)

    def _write_temporary(self, final: Path, text: str) -> Path:
        """Write a temporary file with a unique name in the same folder, and sync it to disk."""
        final.parent.mkdir(parents=True, exist_ok=True)
        temporary = final.with_name(f".{final.name}.{os.getpid()}.{threading.get_ident()}")
        with temporary.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        return temporary

    def create(self, path: str, text: str) -> bool:
        """Write a temporary file and link it: one of two callers succeeds, and a kill leaves no empty file.

        Hadoop's local filesystem checks first and creates the file then: two callers may succeed.
        """
        final = local_path(path)
        temporary = self._write_temporary(final, text)
        try:
            os.link(temporary, final)
        except FileExistsError:
            return False
        finally:
            temporary.unlink()
        return True

    def delete(self, path: str) -> None:
        """Delete a file, if it exists."""
        local_path(path).unlink(missing_ok=True)

    def names(self, path: str) -> list[str]:
        """Return the names in a folder, or none when it does not exist."""
        folder = local_path(path)
        return sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []

    def sizes(self, path: str) -> dict[str, int]:
        """Return the size of every file below a folder by relative path. Does not follow links."""
        root, sizes = local_path(path), {}
        for folder, _, names in os.walk(root):
            for name in names:
                with suppress(FileNotFoundError):
                    sizes[str((Path(folder) / name).relative_to(root))] = (Path(folder) / name).lstat().st_size
        return sizes


class HadoopFileStore(FileStore):
    """Files on any filesystem of the session's Hadoop configuration."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def read_bytes(self, path: str) -> bytes | None:
        """Return a file as it is, or None when it does not exist."""
        where, filesystem = self._open(path)
        if not filesystem.exists(where):
            return None
        stream = filesystem.open(where)
        try:
            return bytes(jvm_of(self._spark).org.apache.commons.io.IOUtils.toByteArray(stream))
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

    def create(self, path: str, text: str) -> bool:
        """Create a file exclusively. HDFS, ABFS and GCS do so by default; S3A with a conditional write."""
        where, filesystem = self._open(path)
        builder = filesystem.createFile(where).overwrite(False).recursive().opt(_CONDITIONAL, True)
        try:
            stream = builder.build()
            try:
                stream.write(bytearray(text.encode()))
            finally:
                # An object store creates the file here.
                stream.close()
        except Py4JJavaError as error:
            if filesystem.exists(where) and "Exist" in str(error.java_exception):
                return False
            raise
        return True

    def names(self, path: str) -> list[str]:
        """Return the names in a folder, or none when it does not exist."""
        where, filesystem = self._open(path)
        if not filesystem.exists(where):
            return []
        return sorted(status.getPath().getName() for status in filesystem.listStatus(where))

    def sizes(self, path: str) -> dict[str, int]:
        """Return the size of every file below a folder by relative path."""
        where, filesystem = self._open(path)
        if not filesystem.exists(where):
            return {}
        root, sizes = filesystem.makeQualified(where).toUri(), {}
        files = filesystem.listFiles(where, True)
        while files.hasNext():
            status = files.next()
            sizes[str(root.relativize(status.getPath().toUri()).getPath())] = int(status.getLen())
        return sizes

    def delete(self, path: str) -> None:
        """Delete a file, if it exists."""
        where, filesystem = self._open(path)
        filesystem.delete(where, False)

    def _open(self, path: str) -> tuple[JavaObject, JavaObject]:
        return hadoop_path(self._spark, path)


def is_local(location: str) -> bool:
    """Whether a location is on the local disk."""
    return urlsplit(location).scheme in ("", "file")


def local_path(location: str) -> Path:
    """Return the path of a location on the local disk."""
    return Path(urlsplit(location).path) if location.startswith("file:") else Path(location)


def file_store(location: str, spark: SparkSession | None = None) -> FileStore:
    """Return the file store of a location. Without a session only local files can be used."""
    if is_local(location) or spark is None:
        return LocalFileStore()
    return HadoopFileStore(spark)
