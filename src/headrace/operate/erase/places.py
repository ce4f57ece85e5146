"""Where a subject can be: the Delta tables of a lake, what is filed beside them, and the flows that touch them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from headrace.cdc.apply.transactions import PENDING
from headrace.cdc.capture.declaration import Capture, HasCapture
from headrace.clients.storage import file_store
from headrace.flow.flow import Flow
from headrace.flow.sink import WritesFolder, leaf_sinks
from headrace.flow.target import Target
from headrace.operate.erase.scan import Signs
from headrace.operate.erase.subject import Columns, Subject, Texts
from headrace.sinks.delta.log import snapshot
from headrace.sinks.delta.sql import quote_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Kind = Literal["table", "tombstones", "filed"]

_LOG = "_delta_log"
_FILED = re.compile(r"_headrace/([^/]+)/[^/]+")
# Changes that wait for the rest of their transaction, in the folder of a captured database.
_WAITING = re.compile(rf"(?:.*/)?{PENDING}")


@dataclass(frozen=True)
class Column:
    """A column of a table, or a field of one: `key.id`.

    | field      | meaning                                                   |
    |------------|-----------------------------------------------------------|
    | physical   | its name in files                                         |
    | type       | as Delta writes it; `map`, `nested` for what holds others |
    | expression | as SQL writes it                                          |
    """

    name: str
    physical: str
    type: str
    expression: str
    is_field: bool = False

    @property
    def is_text(self) -> bool:
        """Whether payloads can be in it."""
        return self.type in ("string", "binary", "map") and not self.is_field


@dataclass(frozen=True)
class Table:
    """A Delta table, and how the subject is known in it.

    | field    | meaning                                                                                         |
    |----------|-------------------------------------------------------------------------------------------------|
    | path     | below the lake; a full location for one that lies elsewhere                                     |
    | files    | its files, by their paths from its location                                                     |
    | known_by | the ways to know its rows of the subject, in its own names; empty where there are none          |
    | payloads | the same for rows that were set aside, or that wait, as they came                               |
    """

    path: str
    location: str
    kind: Kind
    columns: tuple[Column, ...]
    files: tuple[str, ...]
    known_by: tuple[Columns, ...] = ()
    payloads: tuple[tuple[str | None, str], ...] = ()

    @property
    def is_treated(self) -> bool:
        """Whether rows of the subject can be told from others, and so be erased."""
        return bool(self.known_by or self.payloads)

    def signs(self, subject: Subject, texts: Texts) -> Signs:
        """Return how the subject is known in the table's files."""
        physical = {column.name: column.physical for column in self.columns}
        rows = tuple({physical[name]: text for name, text in way.items()} for way in self.known_by)
        names = {name for way in self.known_by for each in way for name in (each, physical[each])}
        return Signs(rows, self.payloads, subject.in_logs(names) if names else "", texts)


@dataclass(frozen=True)
class Lake:
    """The tables of a target, and the files that belong to none of them."""

    tables: tuple[Table, ...]
    loose: Mapping[str, tuple[str, ...]]


def find(spark: SparkSession, target: Target, flows: Sequence[Flow]) -> Lake:
    """List every Delta table below the lake and below the folders of sinks that lie elsewhere. Reads logs, no rows."""
    lake = target.lake.rstrip("/")
    elsewhere = [
        folder
        for flow in flows
        for _, sink in leaf_sinks(flow.sink)
        if isinstance(sink, WritesFolder) and not (folder := sink.folder(target).rstrip("/")).startswith(f"{lake}/")
    ]
    tables: list[Table] = []
    loose: dict[str, tuple[str, ...]] = {}
    for root in dict.fromkeys((lake, *elsewhere)):
        within, rest = _grouped(file_store(root, spark).sizes(root))
        loose[root] = tuple(rest)
        for path, files in within.items():
            location = f"{root}/{path}" if path else root
            told = path if root == lake else location
            kind: Kind = "filed" if _is_filed(told) else "tombstones" if "_tombstones/" in told else "table"
            columns = _columns(spark, location)
            tables.append(Table(told, location, kind, columns, tuple(files)))
    return Lake(tuple(tables), loose)


def known(lake: Lake, subject: Subject, flows: Sequence[Flow]) -> tuple[Table, ...]:
    """Return the tables with the ways to know the subject's rows in them."""
    return tuple(_known(table, subject, flows) for table in lake.tables)


def _known(table: Table, subject: Subject, flows: Sequence[Flow]) -> Table:
    if not _is_filed(table.path):
        return replace(table, known_by=subject.known_by(table.path, [column.name for column in table.columns]))
    payloads: list[tuple[str | None, str]] = []
    elsewhere = subject.in_payloads(own=False)
    if elsewhere is not None:
        payloads.append((None, elsewhere))
    own = subject.in_payloads(own=True)
    filed = _FILED.fullmatch(table.path)
    for capture in captures(flow for flow in flows if filed is None or flow.name == filed.group(1)):
        if own is not None and any(column.name == "topic" for column in table.columns):
            payloads.append((topic_pattern(capture, subject), own))
    return replace(table, payloads=tuple(payloads) if any(column.is_text for column in table.columns) else ())


def _is_filed(path: str) -> bool:
    return any(pattern.fullmatch(path) for pattern in (_FILED, _WAITING))


def captures(flows: Iterable[Flow]) -> Iterator[Capture]:
    """Yield the captures whose changes flows read."""
    for flow in flows:
        for _, sink in leaf_sinks(flow.sink):
            if isinstance(sink, HasCapture) and sink.capture is not None:
                yield sink.capture


def topic_pattern(capture: Capture, subject: Subject) -> str:
    """Return the pattern of the topic of the subject's table, whatever its schema is."""
    return rf"^{re.escape(capture.prefix)}\.[^.]+\.{re.escape(subject.table)}$"


def involved(flows: Sequence[Flow], target: Target, tables: Sequence[Table]) -> list[Flow]:
    """Return the flows that must not run: they write or read a table that is changed, or file rows there."""
    changed = [table for table in tables if table.is_treated]
    found = []
    for flow in flows:
        filed = f"_headrace/{flow.name}/"
        folders = [
            sink.folder(target).rstrip("/") for _, sink in leaf_sinks(flow.sink) if isinstance(sink, WritesFolder)
        ]
        places = [*folders, *read_by(flow, target)]
        if any(
            table.path.startswith(filed) or any(is_within(table.location, place) for place in places)
            for table in changed
        ):
            found.append(flow)
    return found


def read_by(flow: Flow, target: Target) -> list[str]:
    """Return the locations that a flow reads as tables or folders."""
    paths = [getattr(given.source, "path", None) for given in flow.named_inputs.values()]
    return [target.table(path).rstrip("/") for path in paths if isinstance(path, str)]


def is_within(location: str, folder: str) -> bool:
    """Whether a location is a folder or lies below it."""
    return location == folder or location.startswith(f"{folder}/")


def _grouped(sizes: Mapping[str, int]) -> tuple[dict[str, list[str]], list[str]]:
    """Return the files of each table, and those of none: a file belongs to the innermost table around it."""
    roots = {head.rstrip("/") for path in sizes for head, found, _ in [f"/{path}".partition(f"/{_LOG}/")] if found}
    tables = {root.lstrip("/") for root in roots}
    within: dict[str, list[str]] = {table: [] for table in sorted(tables)}
    rest = []
    for path in sorted(sizes):
        parts = path.split("/")
        around = ("/".join(parts[:depth]) for depth in range(len(parts) - 1, -1, -1))
        table = next((each for each in around if each in tables), None)
        if table is None:
            rest.append(path)
        else:
            within[table].append(path.removeprefix(f"{table}/") if table else path)
    return within, rest


def _columns(spark: SparkSession, location: str) -> tuple[Column, ...]:
    schema = json.loads(snapshot(spark, location).metadata().schemaString() or '{"fields": []}')
    return tuple(_flat(schema["fields"], None))


def _flat(fields: Iterable[dict[str, Any]], around: Column | None) -> Iterator[Column]:
    """Yield columns, and the fields within structures, by their paths."""
    for each in fields:
        name, kind = str(each["name"]), each["type"]
        physical = str(each["metadata"].get("delta.columnMapping.physicalName", name))
        within = "map" if isinstance(kind, dict) and kind.get("type") == "map" else "nested"
        column = Column(name, physical, kind if isinstance(kind, str) else within, quote_name(name))
        if around is not None:
            paths = (f"{around.name}.{name}", f"{around.physical}.{physical}")
            column = Column(*paths, column.type, f"{around.expression}.{column.expression}", is_field=True)
        yield column
        if isinstance(kind, dict) and kind.get("type") == "struct":
            yield from _flat(kind["fields"], column)
