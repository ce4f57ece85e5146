"""Find where a subject can be: the Delta tables of a lake, their ledgers, and the flows that use them."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pyspark.sql import SparkSession

from headrace.cdc.apply.transactions import PENDING
from headrace.cdc.capture.declaration import Capture, captures
from headrace.clients.spark.delta_log import LOG_FOLDER, snapshot
from headrace.clients.sql import quote_name
from headrace.clients.storage import file_store
from headrace.flow.flow import Flow
from headrace.flow.sink import WritesFolder, leaf_sinks
from headrace.flow.source import ReadsFolder
from headrace.flow.target import Target
from headrace.operate.erase.scan import SearchTerms
from headrace.operate.erase.subject import Columns, Subject, Texts

TableKind = Literal["table", "tombstones", "recorded"]

_LEDGER_PATH = re.compile(r"_headrace/([^/]+)/[^/]+")
# Changes that wait for the rest of their transaction, in the folder of a captured database.
_PENDING_PATH = re.compile(rf"(?:.*/)?{PENDING}")


@dataclass(frozen=True)
class TableColumn:
    """A column of a table, or a field of one: `key.id`.

    | field      | meaning                                                   |
    |------------|-----------------------------------------------------------|
    | physical   | its name in files                                         |
    | type       | as Delta writes it; `map` or `nested` for complex types   |
    | expression | as SQL writes it                                          |
    """

    name: str
    physical: str
    type: str
    expression: str
    is_field: bool = False

    @property
    def is_text(self) -> bool:
        """Whether the column can contain payloads."""
        return self.type in ("string", "binary", "map") and not self.is_field


@dataclass(frozen=True)
class LakeTable:
    """A Delta table, and how to find the subject in it.

    | field    | meaning                                                                                         |
    |----------|-------------------------------------------------------------------------------------------------|
    | path     | below the lake; a full location for a table elsewhere                                           |
    | files    | its files, by their paths from its location                                                     |
    | key_columns | the alternative columns and values that identify rows of the subject; may be empty           |
    | payloads | the same for the payloads of quarantined or pending rows                                        |
    """

    path: str
    location: str
    kind: TableKind
    columns: tuple[TableColumn, ...]
    files: tuple[str, ...]
    key_columns: tuple[Columns, ...] = ()
    payloads: tuple[tuple[str | None, str], ...] = ()

    @property
    def is_erasable(self) -> bool:
        """Whether rows of the subject can be identified, and so be erased."""
        return bool(self.key_columns or self.payloads)

    def search_terms(self, subject: Subject, texts: Texts) -> SearchTerms:
        """Return what to search for in the table's files."""
        physical = {column.name: column.physical for column in self.columns}
        rows = tuple({physical[name]: text for name, text in columns.items()} for columns in self.key_columns)
        names = {name for columns in self.key_columns for column in columns for name in (column, physical[column])}
        return SearchTerms(rows, self.payloads, subject.delta_log_pattern(names) if names else "", texts)


@dataclass(frozen=True)
class Lake:
    """The tables of a target, and the files that do not belong to any."""

    tables: tuple[LakeTable, ...]
    other_files: Mapping[str, tuple[str, ...]]


def list_tables(spark: SparkSession, target: Target, flows: Sequence[Flow]) -> Lake:
    """List all Delta tables below the lake and below folders of sinks outside of it. Reads logs, no rows."""
    lake = target.lake.rstrip("/")
    written = [folder for flow in flows for folder in folders_written(flow, target)]
    elsewhere = [folder for folder in written if not folder.startswith(f"{lake}/")]
    tables: list[LakeTable] = []
    other_files: dict[str, tuple[str, ...]] = {}
    for root in dict.fromkeys((lake, *elsewhere)):
        files_by_table, rest = _group_files_by_table(file_store(root, spark).sizes(root))
        other_files[root] = tuple(rest)
        for path, files in files_by_table.items():
            location = f"{root}/{path}" if path else root
            name = path if root == lake else location
            kind: TableKind = "recorded" if _is_ledger(name) else "tombstones" if "_tombstones/" in name else "table"
            columns = tuple(_flat(snapshot(spark, location).schema.jsonValue()["fields"], None))
            tables.append(LakeTable(name, location, kind, columns, tuple(files)))
    return Lake(tuple(tables), other_files)


def match_tables(lake: Lake, subject: Subject, flows: Sequence[Flow]) -> tuple[LakeTable, ...]:
    """Return the tables with the columns that identify the subject's rows."""
    return tuple(_match_table(table, subject, flows) for table in lake.tables)


def _match_table(table: LakeTable, subject: Subject, flows: Sequence[Flow]) -> LakeTable:
    if not _is_ledger(table.path):
        return replace(table, key_columns=subject.key_columns(table.path, [column.name for column in table.columns]))
    payloads: list[tuple[str | None, str]] = []
    pattern = subject.payload_pattern(own=False)
    if pattern is not None:
        payloads.append((None, pattern))
    own_pattern = subject.payload_pattern(own=True)
    ledger = _LEDGER_PATH.fullmatch(table.path)
    sinks = [flow.sink for flow in flows if ledger is None or flow.name == ledger.group(1)]
    for capture in (capture for sink in sinks for capture in captures(sink)):
        if own_pattern is not None and any(column.name == "topic" for column in table.columns):
            payloads.append((topic_pattern(capture, subject), own_pattern))
    return replace(table, payloads=tuple(payloads) if any(column.is_text for column in table.columns) else ())


def _is_ledger(path: str) -> bool:
    return any(pattern.fullmatch(path) for pattern in (_LEDGER_PATH, _PENDING_PATH))


def topic_pattern(capture: Capture, subject: Subject) -> str:
    """Return the pattern of the topic of the subject's table, for any schema."""
    return rf"^{re.escape(capture.prefix)}\.[^.]+\.{re.escape(subject.table)}$"


def affected_flows(flows: Sequence[Flow], target: Target, tables: Sequence[LakeTable]) -> list[Flow]:
    """Return the flows that must not run: they write, read or audit a table that is changed."""
    changed = [table for table in tables if table.is_erasable]
    affected = []
    for flow in flows:
        ledgers = f"_headrace/{flow.name}/"
        places = [*folders_written(flow, target), *locations_read(flow, target)]
        if any(
            table.path.startswith(ledgers) or any(is_within(table.location, place) for place in places)
            for table in changed
        ):
            affected.append(flow)
    return affected


def folders_written(flow: Flow, target: Target) -> list[str]:
    """Return the folders that a flow's sinks write."""
    return [sink.folder(target).rstrip("/") for _, sink in leaf_sinks(flow.sink) if isinstance(sink, WritesFolder)]


def locations_read(flow: Flow, target: Target) -> list[str]:
    """Return the tables and folders that a flow reads."""
    sources = [input_.source for input_ in flow.named_inputs.values()]
    return [source.location(target).rstrip("/") for source in sources if isinstance(source, ReadsFolder)]


def is_within(location: str, folder: str) -> bool:
    """Whether a location is a folder or below it."""
    return location == folder or location.startswith(f"{folder}/")


def _group_files_by_table(sizes: Mapping[str, int]) -> tuple[dict[str, list[str]], list[str]]:
    """Return the files of each table, and all others: a file belongs to the innermost table around it."""
    splits = (f"/{path}".partition(f"/{LOG_FOLDER}/") for path in sizes)
    roots = {head.rstrip("/") for head, in_log, _ in splits if in_log}
    tables = {root.lstrip("/") for root in roots}
    files_by_table: dict[str, list[str]] = {table: [] for table in sorted(tables)}
    other_files = []
    for path in sorted(sizes):
        parts = path.split("/")
        parents = ("/".join(parts[:depth]) for depth in range(len(parts) - 1, -1, -1))
        table = next((folder for folder in parents if folder in tables), None)
        if table is None:
            other_files.append(path)
        else:
            files_by_table[table].append(path.removeprefix(f"{table}/") if table else path)
    return files_by_table, other_files


def _flat(fields: Iterable[dict[str, Any]], parent: TableColumn | None) -> Iterator[TableColumn]:
    """Yield columns, and the fields within structures, by their paths."""
    for field in fields:
        name, type_ = str(field["name"]), field["type"]
        physical = str(field["metadata"].get("delta.columnMapping.physicalName", name))
        nested_type = "map" if isinstance(type_, dict) and type_.get("type") == "map" else "nested"
        column = TableColumn(name, physical, type_ if isinstance(type_, str) else nested_type, quote_name(name))
        if parent is not None:
            paths = (f"{parent.name}.{name}", f"{parent.physical}.{physical}")
            column = TableColumn(*paths, column.type, f"{parent.expression}.{column.expression}", is_field=True)
        yield column
        if isinstance(type_, dict) and type_.get("type") == "struct":
            yield from _flat(type_["fields"], column)
