"""The log of a FileSink folder: its owner, its committed files, and the options to read them.

Spark's file sink writes the files of a batch first, and then atomically adds their names to the folder's log:

    FOLDER/_headrace                   metadata: the checkpoint that owns the folder, its format and columns
    FOLDER/_spark_metadata/N           the files of batch N
    FOLDER/_spark_metadata/N.compact   the files of every batch up to N

A file that the log does not list belongs to an attempt that never committed. This module writes no data files.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal
from urllib.parse import unquote, urlsplit

from pyspark.sql import SparkSession

from headrace.clients.storage import FileStore, file_store, is_local, local_path
from headrace.errors import DataError

FileFormat = Literal["csv", "json", "parquet", "orc"]

LOG = "_spark_metadata"
# Readers ignore names that begin with an underscore.
_OWNER = "_headrace"
_COMPACT = ".compact"
_PATTERN = re.compile(r"[*?\[\]{}\\]")
# A listed entry may be deleted before it is read, by a compaction. Compacted entries are kept for minutes, so one retry
# is enough.
_ATTEMPTS = 2

_TIMES = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    # Timestamps are written and read in UTC, whatever the session time zone.
    "timeZone": "UTC",
    "lineSep": "\n",
}
_CSV = {
    **_TIMES,
    "header": "true",
    # RFC 4180 doubles a quote within quotes. Spark's default is a backslash.
    "escape": '"',
    "ignoreLeadingWhiteSpace": "false",
    "ignoreTrailingWhiteSpace": "false",
}
# The options with which a format preserves every value.
WRITE_OPTIONS: Mapping[FileFormat, Mapping[str, str]] = {
    "parquet": {},
    "orc": {},
    "json": {**_TIMES, "ignoreNullFields": "false"},
    "csv": _CSV,
}
_STRICT = {
    "mode": "FAILFAST",
    # With Spark's default name, a data column of that name would be read as null.
    "columnNameOfCorruptRecord": "_headrace_corrupt_record",
}
READ_OPTIONS: Mapping[FileFormat, Mapping[str, str]] = {
    "parquet": {},
    "orc": {},
    "json": {**_TIMES, **_STRICT},
    "csv": {
        **_CSV,
        **_STRICT,
        "multiLine": "true",
        # The header of each file is compared with the columns.
        "enforceSchema": "false",
        # In a file null is empty and an empty string is "". Spark reads both as null unless null has its own text.
        "nullValue": "\u0001headrace null\u0001",
    },
}


def is_glob(location: str) -> bool:
    """Whether Hadoop treats a location as a glob. Spark ignores the log of a folder that a glob matches."""
    return _PATTERN.search(location) is not None


@dataclass(frozen=True)
class FolderMetadata:
    """The metadata file of a FileSink folder.

    | field      | meaning                                                                             |
    |------------|-------------------------------------------------------------------------------------|
    | identity   | random id; a folder that was deleted and recreated has another one                  |
    | query_id   | the checkpoint whose batches the log counts                                         |
    | format     | the format of all files                                                             |
    | partitions | the partition columns                                                               |
    | schema     | the columns as Spark DDL                                                            |
    | offsets    | the digest of the last attempted batch; the log says whether it is committed        |
    | fence      | the lease token of the last attempt                                                 |
    """

    identity: str
    query_id: str
    format: FileFormat
    partitions: tuple[str, ...]
    schema: str
    offsets: str
    fence: int

    def record(self, files: FileStore, folder: str) -> None:
        """Write it to the folder, replacing the earlier metadata."""
        files.write(f"{folder}/{_OWNER}", json.dumps(asdict(self)))


def folder_metadata(files: FileStore, folder: str) -> FolderMetadata | None:
    """Return the metadata of a folder, or None if no FileSink has written to it. Raises DataError if it is damaged."""
    text = files.read(f"{folder}/{_OWNER}")
    if text is None:
        return None
    try:
        fields = json.loads(text)
        return FolderMetadata(**{**fields, "partitions": tuple(fields["partitions"])})
    except (ValueError, KeyError, TypeError) as error:
        raise _unreadable(folder, f"What it says about itself, in {_OWNER}, is damaged: {error}.") from error


def last_batch(files: FileStore, folder: str) -> int | None:
    """Return the last batch in the folder's log, or None."""
    return max(_entries(files, folder), default=None)


def committed_files(location: str, spark: SparkSession | None = None) -> list[str]:
    """Return the committed files of a FileSink folder as sorted full paths.

    For readers without Spark: Spark's own readers use the log if they read the folder itself, and not a glob or a
    subfolder. Without a session only local folders can be read.

    Raises DataError if the folder has no log, the log lacks an entry, or it lists files outside of the folder: the
    folder was copied or moved, and the log lists the files of the original.
    """
    files = file_store(location, spark)
    if LOG not in files.names(location):
        raise _unreadable(location, f"It has no log of committed files ({LOG}).")
    for left in reversed(range(_ATTEMPTS)):
        try:
            paths = sorted(_committed(files, location))
            break
        except ValueError as error:
            if left == 0:
                raise _unreadable(location, f"Its log, {LOG}, is damaged: {error}.") from error
    within = _canonical_path(location).rstrip("/") + "/"
    for path in paths:
        if not _canonical_path(path).startswith(within):
            raise _unreadable(location, f"Its log names a file that lies elsewhere: {path}.")
    return paths


def _committed(files: FileStore, folder: str) -> set[str]:
    entries = _entries(files, folder)
    if not entries:
        return set()
    last = max(entries)
    first = max((number for number, name in entries.items() if name.endswith(_COMPACT)), default=0)
    paths: set[str] = set()
    for number in range(first, last + 1):
        text = files.read(f"{folder}/{LOG}/{entries[number]}") if number in entries else None
        if text is None:
            raise ValueError(f"the entry of batch {number} does not exist")
        version, *lines = text.splitlines()
        if version != "v1":
            raise ValueError(f"the entry of batch {number} is of version {version}")
        for line in lines:
            paths.add(_path(number, line))
    return paths


def _entries(files: FileStore, folder: str) -> dict[int, str]:
    """Return the entries of the log by batch. An entry that is being written has a name that begins with a dot."""
    names = files.names(f"{folder}/{LOG}")
    return {int(number): name for name in names if (number := name.removesuffix(_COMPACT)).isdigit()}


def _path(number: int, line: str) -> str:
    try:
        entry = json.loads(line)
        action, uri = entry["action"], urlsplit(entry["path"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"the entry of batch {number} contains {line!r}") from error
    if action != "add":
        raise ValueError(f"the entry of batch {number} has the action {action!r}")
    # The log contains URIs: a space is %20.
    path = unquote(uri.path)
    return path if uri.scheme in ("", "file") else f"{uri.scheme}://{uri.netloc}{path}"


def _canonical_path(location: str) -> str:
    """Return the canonical path: links resolved, without the host of a filesystem."""
    return os.path.realpath(local_path(location)) if is_local(location) else urlsplit(location).path


def _unreadable(location: str, why: str) -> DataError:
    return DataError(
        f"Which files of {location} are committed cannot be known.",
        why=why,
        state="Nothing was read and nothing was changed.",
        remedy="Name the original folder that a FileSink writes. To copy it, read its rows and write them elsewhere.",
        code="HR-517",
    )
