"""Look for a subject in files, whatever is true of the tables that they belong to: the proof of an erasure.

Parquet is compressed: its columns are read, those of rows that a table has deleted or replaced too. Every file's bytes
are looked at besides, for the texts of the row: footers, logs, notes; and the names of files, which may hold values.
Files that are compressed in a way that is not known here are counted, so that nobody takes them for clean.
"""

from __future__ import annotations

import gzip
import json
import mmap
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.clients.storage import FileStore, is_local, local_path
from headrace.operate.erase.subject import Columns, Texts

# State of Spark, and formats that are not read here.
_CLOSED = (".zip", ".changelog", ".delta", ".snapshot", ".sst", ".zst", ".lz4", ".bz2", ".orc", ".avro")
_ROWS_AT_A_TIME = 20_000
_LOG = "_delta_log/"
# Columns that Delta and Headrace add to rows: nothing in them came from the row.
_ADDED = re.compile(r"_headrace_.*|_change_type|_commit_.*")


@dataclass(frozen=True)
class Signs:
    """How a subject is known in the files of one place.

    | field    | meaning                                                                                             |
    |----------|-----------------------------------------------------------------------------------------------------|
    | rows     | columns, as files name them, that hold its key: any of these ways                                   |
    | payloads | patterns of texts in a row that is one of its payloads, each with a pattern of the row's `topic`    |
    | log      | the pattern of its key in the log of a table                                                        |
    | texts    | what its row held                                                                                   |
    """

    rows: tuple[Columns, ...] = ()
    payloads: tuple[tuple[str | None, str], ...] = ()
    log: str = ""
    texts: Texts = field(default_factory=lambda: Texts(()))


@dataclass(frozen=True)
class Traces:
    """What was found in one place.

    | field  | meaning                                                                          |
    |--------|----------------------------------------------------------------------------------|
    | files  | files that were looked at                                                        |
    | rows   | rows of Parquet files that are the subject's, those that a table deleted too     |
    | found  | files with such rows or with one of its texts                                    |
    | log    | files of a table's log that hold its key or one of its texts                     |
    | closed | files that cannot be looked into                                                 |
    """

    files: int = 0
    rows: int = 0
    found: int = 0
    log: int = 0
    closed: int = 0

    @property
    def is_clean(self) -> bool:
        """Whether nothing was found."""
        return not (self.rows or self.found or self.log)

    def as_dict(self) -> dict[str, int]:
        """The counts as the report holds them."""
        return asdict(self)


def traces(files: FileStore, root: str, paths: Iterable[str], signs: Signs) -> Traces:
    """Look through files below a root. One that goes meanwhile is passed over: it is gone."""
    look = _Look(files, root, signs)
    for path in paths:
        try:
            look.at(path)
        except FileNotFoundError:
            continue
    return look.result()


def texts_of(files: FileStore, root: str, paths: Iterable[str], rows: Sequence[Columns]) -> Iterator[tuple[str, str]]:
    """Yield the texts of every row of the subject in Parquet files, each with its column.

    Where the key is in structures, what is beside them is about the change and not about the row.
    """
    within = {name.partition(".")[0] for way in rows for name in way if "." in name}
    for path in paths:
        if not path.endswith(".parquet") or _LOG in path:
            continue
        try:
            with _parquet(files, f"{root}/{path}") as file:
                for batch in file.iter_batches(_ROWS_AT_A_TIME):
                    mask = _known(batch, rows)
                    if mask is not None and pc.any(mask).as_py():
                        yield from _texts_in(batch.filter(mask), within)
        except (FileNotFoundError, pa.ArrowInvalid):
            continue


class _Look:
    """One look at the files of a place."""

    def __init__(self, files: FileStore, root: str, signs: Signs) -> None:
        self._files, self._root, self._signs = files, root, signs
        self._bytes = signs.texts.pattern()
        self._log = re.compile(signs.log) if signs.log else None
        self._counts = dict.fromkeys(("files", "rows", "found", "log", "closed"), 0)

    def result(self) -> Traces:
        """Return what was counted."""
        return Traces(**self._counts)

    def at(self, path: str) -> None:
        """Look at one file."""
        self._counts["files"] += 1
        in_log = _LOG in f"/{path}"
        if path.endswith(_CLOSED):
            self._counts["closed"] += 1
        named = self._bytes is not None and self._bytes.search(unquote(path).encode()) is not None
        found = named or self._in_bytes(path, in_log=in_log)
        if path.endswith(".parquet"):
            found = self._in_parquet(path, in_log=in_log) or found
        if found:
            self._counts["log" if in_log else "found"] += 1

    def _in_bytes(self, path: str, *, in_log: bool) -> bool:
        with _opened(self._files, f"{self._root}/{path}") as content:
            if self._bytes is not None and self._bytes.search(content):
                return True
            if path.endswith(".gz"):
                return self._bytes is not None and self._bytes.search(gzip.decompress(content)) is not None
            if not in_log or self._log is None or path.endswith(".parquet"):
                return False
            # Statistics are JSON within JSON.
            text = bytes(content).decode("utf-8", "replace").replace("\\", "")
            return self._log.search(text) is not None

    def _in_parquet(self, path: str, *, in_log: bool) -> bool:
        found = False
        try:
            with _parquet(self._files, f"{self._root}/{path}") as file:
                for batch in file.iter_batches(_ROWS_AT_A_TIME):
                    if in_log:
                        found = found or self._log_holds(batch)
                        continue
                    rows = self._rows(batch)
                    self._counts["rows"] += rows
                    found = found or rows > 0 or self._holds_text(batch)
        except pa.ArrowInvalid:
            # Torn, or no Parquet: its bytes were looked at.
            self._counts["closed"] += 1
        return found

    def _rows(self, batch: pa.RecordBatch) -> int:
        masks = [_known(batch, self._signs.rows)]
        for topic, pattern in self._signs.payloads:
            masks.append(_payload(batch, topic, pattern))
        found = _any(mask for mask in masks if mask is not None)
        return 0 if found is None else int(pc.sum(found).as_py() or 0)

    def _holds_text(self, batch: pa.RecordBatch) -> bool:
        return any(
            pc.any(pc.match_substring(leaf, needle)).as_py()
            for column in batch.columns
            for leaf in _leaves(column)
            for needle in self._signs.texts.needles
        )

    def _log_holds(self, batch: pa.RecordBatch) -> bool:
        if self._holds_text(batch):
            return True
        leaves = [leaf for column in batch.columns for leaf in _leaves(column)]
        return self._signs.log != "" and any(
            pc.any(pc.match_substring_regex(leaf, self._signs.log)).as_py() for leaf in leaves
        )


def _known(batch: pa.RecordBatch, ways: Sequence[Columns]) -> pa.BooleanArray | None:
    """Return which rows hold the key in one of the ways, or None where the file has no such columns."""
    return _any(mask for way in ways if (mask := _all_equal(batch, way)) is not None)


def _all_equal(batch: pa.RecordBatch, way: Mapping[str, str]) -> pa.BooleanArray | None:
    result = None
    for name, text in way.items():
        column = _column(batch, name)
        if column is None:
            return None
        try:
            same = pc.equal(column, pa.scalar(text).cast(column.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            # The text is no value of this type: no row holds it.
            return None
        same = pc.fill_null(same, False)
        result = same if result is None else pc.and_(result, same)
    return result


def _column(batch: pa.RecordBatch, path: str) -> pa.Array | None:
    """Return a column, or a field of one by its path, or None where the file has none."""
    if path in batch.schema.names:
        return batch.column(path)
    first, *rest = path.split(".")
    column = batch.column(first) if first in batch.schema.names else None
    for name in rest:
        if column is None or not pa.types.is_struct(column.type) or column.type.get_field_index(name) < 0:
            return None
        # With the nulls of what is around it.
        column = pc.struct_field(column, [name])
    return column


def _payload(batch: pa.RecordBatch, topic: str | None, pattern: str) -> pa.BooleanArray | None:
    """Return which rows are of a topic and hold a text of the pattern."""
    texts = [column for column in batch.columns if _is_text(column.type)]
    texts += [_as_json(column) for column in batch.columns if pa.types.is_map(column.type)]
    found = _any(pc.fill_null(pc.match_substring_regex(column, pattern), False) for column in texts)
    if found is None or topic is None:
        return found
    if "topic" not in batch.schema.names:
        return None
    return pc.and_(found, pc.fill_null(pc.match_substring_regex(batch.column("topic"), topic), False))


def _as_json(column: pa.Array) -> pa.Array:
    """Return maps as JSON writes them. Few rows have any: changes that wait for the rest of their transaction."""
    values = (None if each is None else json.dumps(dict(each), default=str) for each in column.to_pylist())
    return pa.array(values, pa.string())


def _any(masks: Iterable[pa.BooleanArray]) -> pa.BooleanArray | None:
    result = None
    for mask in masks:
        result = mask if result is None else pc.or_(result, mask)
    return result


def _is_text(kind: pa.DataType) -> bool:
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(test(kind) for test in tests)


def _leaves(column: pa.Array) -> Iterator[pa.Array]:
    """Yield the texts and bytes within a column, however deep."""
    kind = column.type
    if _is_text(kind):
        yield column
    elif pa.types.is_struct(kind):
        for each in column.flatten():
            yield from _leaves(each)
    elif pa.types.is_map(kind):
        yield from _leaves(column.keys)
        yield from _leaves(column.items)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _leaves(column.flatten())
    elif pa.types.is_dictionary(kind):
        yield from _leaves(column.dictionary_decode())


def _texts_in(rows: pa.RecordBatch, within: set[str]) -> Iterator[tuple[str, str]]:
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if _ADDED.fullmatch(name) or (within and name not in within):
            continue
        for leaf in _leaves(column):
            for value in leaf.to_pylist():
                if isinstance(value, str):
                    yield name, value


@contextmanager
def _parquet(files: FileStore, path: str) -> Iterator[pq.ParquetFile]:
    if is_local(path):
        with pq.ParquetFile(local_path(path)) as file:
            yield file
        return
    content = files.read_bytes(path)
    if content is None:
        raise FileNotFoundError(path)
    with pq.ParquetFile(pa.BufferReader(content)) as file:
        yield file


@contextmanager
def _opened(files: FileStore, path: str) -> Iterator[mmap.mmap | bytes]:
    """Yield the bytes of a file, of a local one without reading it into memory."""
    if not is_local(path):
        content = files.read_bytes(path)
        if content is None:
            raise FileNotFoundError(path)
        yield content
        return
    with local_path(path).open("rb") as file:
        if not local_path(path).stat().st_size:
            yield b""
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            yield mapped
