"""A folder of files behind a log: whose batches it holds, which of its files are committed, and how they are read.

Spark's file sink writes the files of a batch first and then their names, in one step, into the folder's log:

    FOLDER/_headrace                   whose batches these are, their format and their columns
    FOLDER/_spark_metadata/N           the files of batch N
    FOLDER/_spark_metadata/N.compact   the files of every batch up to N

A file that the log does not name belongs to an attempt that never committed. Nothing here writes a file of data.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal
from urllib.parse import unquote, urlsplit

from headrace.clients.storage import Files, files_for, is_local, local_path
from headrace.errors import DataError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FileFormat = Literal["csv", "json", "parquet", "orc"]

LOG = "_spark_metadata"
# Readers pass over names that begin like this.
_OWNER = "_headrace"
_COMPACT = ".compact"
_PATTERN = re.compile(r"[*?\[\]{}\\]")
# An entry that was listed may be gone when it is read: a compaction came between. It keeps its entries for minutes, so
# that one more look is enough.
_LOOKS = 2

_TIMES = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    # Times are written and read in UTC, whatever the zone of the session.
    "timeZone": "UTC",
    "lineSep": "\n",
}
_CSV = {
    **_TIMES,
    "header": "true",
    # As RFC 4180 has it: a quote within quotes is doubled. Spark's own default is a backslash.
    "escape": '"',
    "ignoreLeadingWhiteSpace": "false",
    "ignoreTrailingWhiteSpace": "false",
}
# What the options of a format have to be for rows to come back as they were.
WRITING: Mapping[FileFormat, Mapping[str, str]] = {
    "parquet": {},
    "orc": {},
    "json": {**_TIMES, "ignoreNullFields": "false"},
    "csv": _CSV,
}
_STRICT = {
    "mode": "FAILFAST",
    # Under Spark's own name, a column of that name would be read as null.
    "columnNameOfCorruptRecord": "_headrace_corrupt_record",
}
READING: Mapping[FileFormat, Mapping[str, str]] = {
    "parquet": {},
    "orc": {},
    "json": {**_TIMES, **_STRICT},
    "csv": {
        **_CSV,
        **_STRICT,
        "multiLine": "true",
        # The header of each file is compared with the columns.
        "enforceSchema": "false",
        # In a file null is nothing and an empty text is "". Spark takes both for null, unless null has a name here.
        "nullValue": "\u0001headrace null\u0001",
    },
}


def is_pattern(location: str) -> bool:
    """Whether Hadoop takes a location for a pattern of names. Of such a one no log is read."""
    return _PATTERN.search(location) is not None


@dataclass(frozen=True)
class Owner:
    """What a folder says about itself.

    | field      | meaning                                                                             |
    |------------|-------------------------------------------------------------------------------------|
    | identity   | told apart from a folder of the same name that was deleted and made again           |
    | query_id   | the checkpoint whose batches the log counts                                         |
    | format     | of every file                                                                       |
    | partitions | the columns that are folders                                                        |
    | schema     | the columns, as Spark's DDL                                                         |
    | offsets    | the digest of the batch that was attempted last; whether it is in, the log says     |
    | fence      | the token of the lease under which it was attempted                                 |
    """

    identity: str
    query_id: str
    format: FileFormat
    partitions: tuple[str, ...]
    schema: str
    offsets: str
    fence: int

    def record(self, files: Files, folder: str) -> None:
        """Write it into the folder, in place of what was there."""
        files.write(f"{folder}/{_OWNER}", json.dumps(asdict(self)))


def owner_of(files: Files, folder: str) -> Owner | None:
    """Return what the folder says about itself, or None when no sink has written to it. Raises a DataError."""
    text = files.read(f"{folder}/{_OWNER}")
    if text is None:
        return None
    try:
        fields = json.loads(text)
        return Owner(**{**fields, "partitions": tuple(fields["partitions"])})
    except (ValueError, KeyError, TypeError) as error:
        raise _unreadable(folder, f"What it says about itself, in {_OWNER}, is damaged: {error}.") from error


def last_batch(files: Files, folder: str) -> int | None:
    """Return the last batch in the folder's log, or None when it holds none."""
    return max(_entries(files, folder), default=None)


def committed_files(location: str, spark: SparkSession | None = None) -> list[str]:
    """Return the files of a folder whose batches are committed, as full paths, sorted.

    For readers that are not Spark: Spark's own readers honour the log by themselves when they are given the folder, and
    neither a pattern nor a folder below it. Without a session only this machine's disk can be reached.

    Raises a DataError when the folder has no log, or the log lacks an entry or names files that lie elsewhere: it was
    copied or moved, and what it names are the files of the other folder.
    """
    files = files_for(location, spark)
    if LOG not in files.names(location):
        raise _unreadable(location, f"It has no log of committed files ({LOG}).")
    for left in reversed(range(_LOOKS)):
        try:
            paths = sorted(_committed(files, location))
            break
        except ValueError as error:
            if left == 0:
                raise _unreadable(location, f"Its log, {LOG}, is damaged: {error}.") from error
    within = _real(location).rstrip("/") + "/"
    for path in paths:
        if not _real(path).startswith(within):
            raise _unreadable(location, f"Its log names a file that lies elsewhere: {path}.")
    return paths


def _committed(files: Files, folder: str) -> set[str]:
    entries = _entries(files, folder)
    if not entries:
        return set()
    last = max(entries)
    first = max((number for number, name in entries.items() if name.endswith(_COMPACT)), default=0)
    paths: set[str] = set()
    for number in range(first, last + 1):
        text = files.read(f"{folder}/{LOG}/{entries[number]}") if number in entries else None
        if text is None:
            raise ValueError(f"the entry of batch {number} is not there")
        version, *lines = text.splitlines()
        if version != "v1":
            raise ValueError(f"the entry of batch {number} is of version {version}")
        for line in lines:
            paths.add(_path(number, line))
    return paths


def _entries(files: Files, folder: str) -> dict[int, str]:
    """Return the entries of the log by their batch. What is on its way in has a name that begins with a dot."""
    names = files.names(f"{folder}/{LOG}")
    return {int(number): name for name in names if (number := name.removesuffix(_COMPACT)).isdigit()}


def _path(number: int, line: str) -> str:
    try:
        entry = json.loads(line)
        action, uri = entry["action"], urlsplit(entry["path"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"the entry of batch {number} holds {line!r}") from error
    if action != "add":
        raise ValueError(f"the entry of batch {number} has the action {action!r}")
    # The log holds URIs, in which a space is %20.
    path = unquote(uri.path)
    return path if uri.scheme in ("", "file") else f"{uri.scheme}://{uri.netloc}{path}"


def _real(location: str) -> str:
    """Return the path without what may be written in several ways: links, or the host of a filesystem."""
    return os.path.realpath(local_path(location)) if is_local(location) else urlsplit(location).path


def _unreadable(location: str, why: str) -> DataError:
    return DataError(
        f"Which files of {location} are committed cannot be known.",
        why=why,
        state="Nothing was read and nothing was changed.",
        remedy="Name the folder that a Files sink writes, where it was written. A copy has to be made from what is "
        "read there.",
        code="HR-510",
    )
