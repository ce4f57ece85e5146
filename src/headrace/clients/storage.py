"""Small files on whatever storage the roots are on: this machine's disk, or any filesystem that Hadoop knows.

Used for checkpoints and what Headrace keeps beside them. Never for tables.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from py4j.protocol import Py4JJavaError

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject
    from pyspark.sql import SparkSession

# Asks S3A for a conditional write. Filesystems that do not know the option pass over it.
_CONDITIONAL = "fs.option.create.conditional.overwrite"


class Files(Protocol):
    """The few operations a checkpoint needs. Paths are full locations, as the target gives them."""

    def read(self, path: str) -> str | None:
        """Return the text of a file, or None when it is not there."""
        ...

    def read_bytes(self, path: str) -> bytes | None:
        """Return a file as it is, or None when it is not there: for checksums, and for files that may be damaged."""
        ...

    def write(self, path: str, text: str) -> None:
        """Replace a file in one step: a reader sees the old text or the new one, never a part."""
        ...

    def create(self, path: str, text: str) -> bool:
        """Make a file that is not there yet; False when it is. Of two callers on any machines one gets True."""
        ...

    def delete(self, path: str) -> None:
        """Delete a file, if it is there."""
        ...

    def names(self, path: str) -> list[str]:
        """Return the names in a folder, or none when it is not there."""
        ...

    def sizes(self, path: str) -> dict[str, int]:
        """Return the bytes of every file below a folder, by its path from there. What goes meanwhile is left out."""
        ...


class LocalFiles:
    """Files on this machine."""

    def read(self, path: str) -> str | None:
        """Return the text of a file, or None when it is not there."""
        try:
            return local_path(path).read_text()
        except FileNotFoundError:
            return None

    def read_bytes(self, path: str) -> bytes | None:
        """Return a file as it is, or None when it is not there."""
        try:
            return local_path(path).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, path: str, text: str) -> None:
        """Write beside, flush to the disk, rename over."""
        final = local_path(path)
        self._beside(final, text).replace(final)

    def _beside(self, final: Path, text: str) -> Path:
        """Write a file that no other writer uses, into the same folder and down to the disk."""
        final.parent.mkdir(parents=True, exist_ok=True)
        beside = final.with_name(f".{final.name}.{os.getpid()}.{threading.get_ident()}")
        with beside.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        return beside

    def create(self, path: str, text: str) -> bool:
        """Write beside and link: of two callers one makes the link, and a kill leaves no file that is there and empty.

        Hadoop's own local filesystem looks first and makes the file then: two may succeed.
        """
        final = local_path(path)
        beside = self._beside(final, text)
        try:
            os.link(beside, final)
        except FileExistsError:
            return False
        finally:
            beside.unlink()
        return True

    def delete(self, path: str) -> None:
        """Delete a file, if it is there."""
        local_path(path).unlink(missing_ok=True)

    def names(self, path: str) -> list[str]:
        """Return the names in a folder, or none when it is not there."""
        folder = local_path(path)
        return sorted(each.name for each in folder.iterdir()) if folder.is_dir() else []

    def sizes(self, path: str) -> dict[str, int]:
        """Return the bytes of every file below a folder. Links are not followed: they may lead out of it."""
        root, found = local_path(path), {}
        for folder, _, names in os.walk(root):
            for name in names:
                with suppress(FileNotFoundError):
                    found[str((Path(folder) / name).relative_to(root))] = (Path(folder) / name).lstat().st_size
        return found


class HadoopFiles:
    """Files on any filesystem that the session's Hadoop configuration knows."""

    def __init__(self, spark: SparkSession) -> None:
        assert spark._jvm is not None  # noqa: S101 - a classic session always has its JVM
        self._jvm = spark._jvm
        self._settings = spark._jsc.hadoopConfiguration()

    def read(self, path: str) -> str | None:
        """Return the text of a file, or None when it is not there."""
        found = self.read_bytes(path)
        return None if found is None else found.decode()

    def read_bytes(self, path: str) -> bytes | None:
        """Return a file as it is, or None when it is not there."""
        where, filesystem = self._open(path)
        if not filesystem.exists(where):
            return None
        stream = filesystem.open(where)
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
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
        """Make the file. HDFS, ABFS and GCS make it exclusively by themselves; S3A does when it is asked to."""
        where, filesystem = self._open(path)
        making = filesystem.createFile(where).overwrite(False).recursive().opt(_CONDITIONAL, True)
        try:
            stream = making.build()
            try:
                stream.write(bytearray(text.encode()))
            finally:
                # An object store answers here.
                stream.close()
        except Py4JJavaError as error:
            if filesystem.exists(where) and "Exist" in str(error.java_exception):
                return False
            raise
        return True

    def names(self, path: str) -> list[str]:
        """Return the names in a folder, or none when it is not there."""
        where, filesystem = self._open(path)
        if not filesystem.exists(where):
            return []
        return sorted(status.getPath().getName() for status in filesystem.listStatus(where))

    def sizes(self, path: str) -> dict[str, int]:
        """Return the bytes of every file below a folder, by its path from there."""
        where, filesystem = self._open(path)
        if not filesystem.exists(where):
            return {}
        root, found = filesystem.makeQualified(where).toUri(), {}
        files = filesystem.listFiles(where, True)
        while files.hasNext():
            status = files.next()
            found[str(root.relativize(status.getPath().toUri()).getPath())] = int(status.getLen())
        return found

    def delete(self, path: str) -> None:
        """Delete a file, if it is there."""
        where, filesystem = self._open(path)
        filesystem.delete(where, False)

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
