"""Search files for a subject, independently of the tables that they belong to: the proof of an erasure.

Parquet is compressed: the scan reads its columns, including rows that a table has deleted or replaced. It also searches
the bytes of every file for the texts of the row (footers, logs, notes), and the names of files, which may contain
values. Files with an unknown compression are counted, so that they are not taken for clean.
"""

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

from headrace.clients.spark.delta_log import LOG_FOLDER
from headrace.clients.storage import FileStore, is_local, local_path
from headrace.operate.erase.subject import Columns, Texts

# Spark's state, and formats that the scan cannot read.
_UNREADABLE_SUFFIXES = (".zip", ".changelog", ".delta", ".snapshot", ".sst", ".zst", ".lz4", ".bz2", ".orc", ".avro")
_ROWS_PER_BATCH = 20_000
_LOG = f"{LOG_FOLDER}/"
# Columns that Delta and Headrace add to rows: their values do not come from the row.
_METADATA_COLUMN = re.compile(r"_headrace_.*|_change_type|_commit_.*")


@dataclass(frozen=True)
class SearchTerms:
    """What to search for in the files of a place.

    | field    | meaning                                                                                             |
    |----------|-----------------------------------------------------------------------------------------------------|
    | rows     | alternative columns, by their names in files, and the key's values in them                          |
    | payloads | patterns of the subject's payloads, each with an optional pattern of the row's `topic`              |
    | log      | the pattern of its key in the log of a table                                                        |
    | texts    | the texts of its row                                                                                |
    """

    rows: tuple[Columns, ...] = ()
    payloads: tuple[tuple[str | None, str], ...] = ()
    log: str = ""
    texts: Texts = field(default_factory=lambda: Texts(()))


@dataclass(frozen=True)
class ScanResult:
    """What was found in a place.

    | field          | meaning                                                      |
    |----------------|--------------------------------------------------------------|
    | files          | scanned files                                                |
    | rows           | rows of the subject in Parquet files, including deleted ones |
    | matching_files | files with such rows or with one of its texts                |
    | log            | files of a table's log with its key or one of its texts      |
    | closed         | files that cannot be scanned                                 |
    """

    files: int = 0
    rows: int = 0
    matching_files: int = 0
    log: int = 0
    closed: int = 0

    @property
    def is_clean(self) -> bool:
        """Whether nothing was found."""
        return not (self.rows or self.matching_files or self.log)

    def as_dict(self) -> dict[str, int]:
        """The counts as the report has them."""
        return asdict(self)


def scan_for_subject(files: FileStore, root: str, paths: Iterable[str], terms: SearchTerms) -> ScanResult:
    """Scan files below a root. Files that are deleted during the scan are skipped."""
    file_scan = _FileScan(files, root, terms)
    for path in paths:
        try:
            file_scan.scan(path)
        except FileNotFoundError:
            continue
    return file_scan.result()


def subject_texts(
    files: FileStore, root: str, paths: Iterable[str], rows: Sequence[Columns]
) -> Iterator[tuple[str, str]]:
    """Yield the texts of every row of the subject in Parquet files, each with its column.

    If the key is in structures, the other columns describe the change and not the row.
    """
    structures = {name.partition(".")[0] for key_columns in rows for name in key_columns if "." in name}
    for path in paths:
        if not path.endswith(".parquet") or _LOG in path:
            continue
        try:
            with _parquet(files, f"{root}/{path}") as file:
                for batch in file.iter_batches(_ROWS_PER_BATCH):
                    mask = _rows_with_key(batch, rows)
                    if mask is not None and pc.any(mask).as_py():
                        yield from _texts_in(batch.filter(mask), structures)
        except (FileNotFoundError, pa.ArrowInvalid):
            continue


class _FileScan:
    """A scan of the files of a place."""

    def __init__(self, files: FileStore, root: str, terms: SearchTerms) -> None:
        self._files, self._root, self._terms = files, root, terms
        self._bytes = terms.texts.pattern()
        self._log = re.compile(terms.log) if terms.log else None
        self._counts = dict.fromkeys(("files", "rows", "matching_files", "log", "closed"), 0)

    def result(self) -> ScanResult:
        """Return the counts."""
        return ScanResult(**self._counts)

    def scan(self, path: str) -> None:
        """Scan a file."""
        self._counts["files"] += 1
        in_log = _LOG in f"/{path}"
        if path.endswith(_UNREADABLE_SUFFIXES):
            self._counts["closed"] += 1
        in_name = self._bytes is not None and self._bytes.search(unquote(path).encode()) is not None
        has_trace = in_name or self._in_bytes(path, in_log=in_log)
        if path.endswith(".parquet"):
            has_trace = self._in_parquet(path, in_log=in_log) or has_trace
        if has_trace:
            self._counts["log" if in_log else "matching_files"] += 1

    def _in_bytes(self, path: str, *, in_log: bool) -> bool:
        with _open_bytes(self._files, f"{self._root}/{path}") as content:
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
        has_trace = False
        try:
            with _parquet(self._files, f"{self._root}/{path}") as file:
                for batch in file.iter_batches(_ROWS_PER_BATCH):
                    if in_log:
                        has_trace = has_trace or self._log_contains(batch)
                        continue
                    rows = self._rows(batch)
                    self._counts["rows"] += rows
                    has_trace = has_trace or rows > 0 or self._contains_text(batch)
        except pa.ArrowInvalid:
            # Damaged, or not Parquet: its bytes were scanned.
            self._counts["closed"] += 1
        return has_trace

    def _rows(self, batch: pa.RecordBatch) -> int:
        masks = [_rows_with_key(batch, self._terms.rows)]
        for topic, pattern in self._terms.payloads:
            masks.append(_rows_with_payload(batch, topic, pattern))
        matches = _any_of(mask for mask in masks if mask is not None)
        return 0 if matches is None else int(pc.sum(matches).as_py() or 0)

    def _contains_text(self, batch: pa.RecordBatch) -> bool:
        return any(
            pc.any(pc.match_substring(leaf, needle)).as_py()
            for column in batch.columns
            for leaf in _leaves(column)
            for needle in self._terms.texts.search_bytes
        )

    def _log_contains(self, batch: pa.RecordBatch) -> bool:
        if self._contains_text(batch):
            return True
        leaves = [leaf for column in batch.columns for leaf in _leaves(column)]
        return self._terms.log != "" and any(
            pc.any(pc.match_substring_regex(leaf, self._terms.log)).as_py() for leaf in leaves
        )


def _rows_with_key(batch: pa.RecordBatch, alternatives: Sequence[Columns]) -> pa.BooleanArray | None:
    """Return which rows match one of the alternatives, or None if the file lacks their columns."""
    return _any_of(mask for key_columns in alternatives if (mask := _all_equal(batch, key_columns)) is not None)


def _all_equal(batch: pa.RecordBatch, key_columns: Mapping[str, str]) -> pa.BooleanArray | None:
    result = None
    for name, text in key_columns.items():
        column = _column(batch, name)
        if column is None:
            return None
        try:
            same = pc.equal(column, pa.scalar(text).cast(column.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            # The text is not a value of this type: no row has it.
            return None
        same = pc.fill_null(same, False)
        result = same if result is None else pc.and_(result, same)
    return result


def _column(batch: pa.RecordBatch, path: str) -> pa.Array | None:
    """Return a column, or a nested field by its path, or None if the file lacks it."""
    if path in batch.schema.names:
        return batch.column(path)
    first, *rest = path.split(".")
    column = batch.column(first) if first in batch.schema.names else None
    for name in rest:
        if column is None or not pa.types.is_struct(column.type) or column.type.get_field_index(name) < 0:
            return None
        # Includes the nulls of the parent.
        column = pc.struct_field(column, [name])
    return column


def _rows_with_payload(batch: pa.RecordBatch, topic: str | None, pattern: str) -> pa.BooleanArray | None:
    """Return which rows belong to a topic and contain a text that matches the pattern."""
    texts = [column for column in batch.columns if _is_text(column.type)]
    texts += [_as_json(column) for column in batch.columns if pa.types.is_map(column.type)]
    matches = _any_of(pc.fill_null(pc.match_substring_regex(column, pattern), False) for column in texts)
    if matches is None or topic is None:
        return matches
    if "topic" not in batch.schema.names:
        return None
    return pc.and_(matches, pc.fill_null(pc.match_substring_regex(batch.column("topic"), topic), False))


def _as_json(column: pa.Array) -> pa.Array:
    """Return maps as JSON. Only few rows have maps: changes that wait for the rest of their transaction."""
    values = (None if entries is None else json.dumps(dict(entries), default=str) for entries in column.to_pylist())
    return pa.array(values, pa.string())


def _any_of(masks: Iterable[pa.BooleanArray]) -> pa.BooleanArray | None:
    result = None
    for mask in masks:
        result = mask if result is None else pc.or_(result, mask)
    return result


def _is_text(kind: pa.DataType) -> bool:
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(test(kind) for test in tests)


def _leaves(column: pa.Array) -> Iterator[pa.Array]:
    """Yield the texts and bytes in a column, at any depth."""
    kind = column.type
    if _is_text(kind):
        yield column
    elif pa.types.is_struct(kind):
        for field in column.flatten():
            yield from _leaves(field)
    elif pa.types.is_map(kind):
        yield from _leaves(column.keys)
        yield from _leaves(column.items)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _leaves(column.flatten())
    elif pa.types.is_dictionary(kind):
        yield from _leaves(column.dictionary_decode())


def _texts_in(rows: pa.RecordBatch, structures: set[str]) -> Iterator[tuple[str, str]]:
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if _METADATA_COLUMN.fullmatch(name) or (structures and name not in structures):
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
def _open_bytes(files: FileStore, path: str) -> Iterator[mmap.mmap | bytes]:
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
