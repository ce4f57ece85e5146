"""Erase a row of a source table from everything that was made of it, and prove it: planned, explained, then done.

1. The tables of the lake are listed; those in which rows of the subject can be told are found by their columns.
2. The leases of the flows that write, read or file there are taken, and their folders locked: none of them may run.
3. The row's own texts are gathered, from all files, those of the past too. Texts that another row holds are left out.
4. All places are looked through: that is the plan. A row that its source still has, or that changes on their way would
   bring back, is refused.
5. Each table is erased from. What to look for is written down before the first, for a run that is cut off.
6. All places are looked through again, and the report is written from what was found.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from headrace.cdc.apply.transactions import BATCH, PENDING
from headrace.cdc.capture.declaration import HasCapture
from headrace.cdc.sink import PUBLISHED
from headrace.clients.storage import file_store
from headrace.flow.flow import Flow
from headrace.flow.sink import WritesFolder, leaf_sinks
from headrace.flow.target import Target
from headrace.operate.erase import errors as refusals
from headrace.operate.erase.external import Source, beyond, in_source, sources
from headrace.operate.erase.journal import Journal
from headrace.operate.erase.places import Lake, Table, find, involved, is_within, known, read_by
from headrace.operate.erase.plan import ErasePlan, Place
from headrace.operate.erase.scan import Signs, Traces, texts_of, traces
from headrace.operate.erase.subject import Subject, Texts, in_json, telling
from headrace.operate.erase.table import erase_from, publish_again, rows_of, rows_of_others
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.checkpoint.folder_lock import lock_folder, lock_sink_folders
from headrace.runtime.checkpoint.lease import acquire_lease
from headrace.sinks.delta.table import DELETED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NAMED = re.compile(r"([A-Za-z_]\w*)=(.+)", re.DOTALL)
_OWN = "_headrace_"
# Of a history: the place at which a version ended.
_ENDED = "_headrace_ended"
# Texts that are compared with other rows in one go: each is a column of one query.
_AT_ONCE = 50
# A key that is shorter is in files by chance.
_LONG_KEY = 8


@dataclass(frozen=True)
class Request:
    """What the command line asks for.

    | field    | example                    | meaning                                                                |
    |----------|----------------------------|------------------------------------------------------------------------|
    | table    | `customers`                | the source table, with its schema or without                           |
    | key      | `("42",)`                  | its key; `COLUMN=VALUE` for each column where there are several        |
    | columns  | `("gold/orders=buyer",)`   | where the key is: in a column of one table, or of every table          |
    | excepted | `("state",)`               | columns of the row whose texts are not looked for                      |
    | keep_tombstones | False               | keep the key in the mirror's tombstones                                |
    """

    table: str
    key: tuple[str, ...]
    columns: tuple[str, ...] = ()
    excepted: tuple[str, ...] = ()
    keep_tombstones: bool = False


class Erasure:
    """One erasure, while the leases are held. Made by `erasing`; `plan` once, then perhaps `apply`."""

    def __init__(
        self, spark: SparkSession, target: Target, flows: Sequence[Flow], request: Request, home: Path
    ) -> None:
        self._spark, self._target, self._flows, self._request, self._home = spark, target, flows, request, home
        self._sources = sources(target, flows, request.table)
        self._lake = find(spark, target, flows)
        self.subject = subject_of(request, self._lake, self._sources)
        self._tables = self._known()
        self._journal = Journal.of(home / "erasures", self.subject)

    @property
    def stopped(self) -> list[Flow]:
        """The flows that must not run meanwhile."""
        return involved(self._flows, self._target, self._tables)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep every flow away that touches a table which is changed. Raises HR-302 or HR-337 when one runs."""
        files = file_store(self._target.checkpoints, self._spark)
        with ExitStack() as stack:
            folders = []
            for flow in self.stopped:
                stack.enter_context(acquire_lease(Checkpoint.of(flow.name, self._target, files), self._target.lease))
                stack.enter_context(lock_sink_folders(flow, self._target))
                folders += [
                    sink.folder(self._target) for _, sink in leaf_sinks(flow.sink) if isinstance(sink, WritesFolder)
                ]
                folders.append(self._target.table(f"_headrace/{flow.name}"))
            for table in (each for each in self._tables if each.is_treated):
                if not any(is_within(table.location, folder.rstrip("/")) for folder in folders):
                    stack.enter_context(lock_folder(table.location))
            # What was listed may have changed until the leases were held.
            self._lake = find(self._spark, self._target, self._flows)
            self._tables = self._known()
            yield

    def plan(self) -> ErasePlan:
        """Look through all places. Changes nothing. Raises HR-530 and HR-531 while the row can come back."""
        source = tuple((each.database, *in_source(self._target, each, self.subject)) for each in self._sources)
        for each, (_, answer, _why) in zip(self._sources, source, strict=True):
            if answer == "there":
                raise refusals.still_in_source(str(each.table), each.database)
        if any(answer == "gone" for _, answer, _ in source):
            self._require_read()
        self._require_applied()
        begun = self._journal.read()
        texts = self._texts(begun or ())
        places = []
        for table in self._tables:
            found = self._traced(table, texts)
            live = 0
            if table.is_treated and not found.is_clean:
                live = rows_of(self._spark, table, texts).count()
            places.append(Place(table.path, table.kind, self._is_erased(table), found, live))
        places += self._others(texts)
        readers = self._readers({place.path for place in places if place.erased and not place.before.is_clean})
        rest = tuple(beyond(self._spark, self._target, self._flows, self.subject, texts))
        return ErasePlan(self.subject, texts, source, tuple(places), readers, rest, begun is not None)

    def apply(self, plan: ErasePlan) -> ErasePlan:
        """Carry out a plan, and return it with what was done and what is found afterwards."""
        at = datetime.now(UTC)
        by_path = {table.path: table for table in self._tables}
        self._journal.write(plan.texts.values)
        treated = {
            place.path: erase_from(self._spark, by_path[place.path], plan.texts, place.live, at) for place in plan.due
        }
        self._publish({by_path[path].location: done.after for path, done in treated.items()})
        # The proof is about files that are there now, and not about what was meant to happen.
        self._lake = find(self._spark, self._target, self._flows)
        self._tables = self._known()
        after = {table.path: self._traced(table, plan.texts) for table in self._tables}
        after |= {place.path: place.before for place in self._others(plan.texts)}
        places = tuple(
            replace(place, treated=treated.get(place.path), after=after.get(place.path, Traces()))
            for place in plan.places
        )
        rest = tuple(beyond(self._spark, self._target, self._flows, self.subject, plan.texts))
        return replace(plan, places=places, beyond=rest)

    def finish(self) -> None:
        """Forget what was looked for. Called when the report is written, and nothing is left: else it is needed."""
        self._journal.forget()

    def _known(self) -> tuple[Table, ...]:
        return known(self._lake, self.subject, self._flows)

    def _is_erased(self, table: Table) -> bool:
        return table.is_treated and not (table.kind == "tombstones" and self._request.keep_tombstones)

    def _traced(self, table: Table, texts: Texts) -> Traces:
        files = file_store(table.location, self._spark)
        return traces(files, table.location, table.files, table.signs(self.subject, texts))

    def _others(self, texts: Texts) -> list[Place]:
        """Look through what is no table: other files of the lake, checkpoints, backups."""
        signs = Signs(self.subject.named, (), "", texts)
        found = []
        for root, paths in self._lake.loose.items():
            found.append(Place(f"{root} (files of no table)", "files", False, self._looked(root, paths, signs)))
        for flow in self._flows:
            folder = self._target.flow_folder(flow.name)
            found.append(Place(folder, "checkpoint", False, self._below(folder, signs)))
        backups = self._home / "backups"
        names = {flow.name for flow in self._flows}
        for each in sorted(backups.iterdir()) if backups.is_dir() else ():
            if each.name.rpartition("-")[0] in names:
                found.append(Place(str(each), "backup", False, self._below(str(each), signs)))
        return found

    def _below(self, folder: str, signs: Signs) -> Traces:
        return self._looked(folder, sorted(file_store(folder, self._spark).sizes(folder)), signs)

    def _looked(self, root: str, paths: Sequence[str], signs: Signs) -> Traces:
        return traces(file_store(root, self._spark), root, paths, signs)

    def _texts(self, begun: Sequence[str]) -> Texts:
        """Return the texts of the row that no other row holds, of all files that still have it."""
        own = [each for each in self._tables if each.known_by and self.subject.is_own(each.path)]
        own = own or [each for each in self._tables if each.known_by]
        found = dict.fromkeys(begun)
        for table in own:
            rows = table.signs(self.subject, Texts(())).rows
            for column, text in texts_of(file_store(table.location, self._spark), table.location, table.files, rows):
                if column not in self.subject.excepted and telling(text):
                    found.setdefault(text)
        for text in self.subject.key.values():
            if len(text) >= _LONG_KEY and telling(text):
                found.setdefault(text)
            else:
                found.pop(text, None)
        values = [text for text in found if text not in begun]
        for table in (
            each for each in own if any(column.type in ("string", "map", "nested") for column in each.columns)
        ):
            values = self._not_shared(table, values)
        return Texts(tuple(sorted({*begun, *values})))

    def _not_shared(self, table: Table, values: Sequence[str]) -> list[str]:
        """Return the texts that no row of another subject holds in a table."""
        text = rows_of_others(self._spark, table).select(F.to_json(F.struct("*")).alias("text"))
        kept: list[str] = []
        for start in range(0, len(values), _AT_ONCE):
            some = values[start : start + _AT_ONCE]
            held = [F.max(F.contains(F.col("text"), F.lit(in_json(value)))) for value in some]
            row = text.agg(*held).first()
            kept += [value for value, shared in zip(some, row or (), strict=True) if not shared]
        return kept

    def _require_read(self) -> None:
        """Raise when a mirror shows the row that its source has deleted."""
        for flow in self.stopped:
            folders = [
                sink.folder(self._target).rstrip("/")
                for _, sink in leaf_sinks(flow.sink)
                if isinstance(sink, WritesFolder) and isinstance(sink, HasCapture) and sink.capture is not None
            ]
            for table in self._tables:
                own = table.location in {f"{folder}/{self.subject.table}" for folder in folders}
                # A log of changes shows no row as it is now.
                if own and dict(self.subject.key) in table.known_by and self._shows(table):
                    raise refusals.not_read_yet(table.path, flow.name)

    def _require_applied(self) -> None:
        """Raise when a change of the row may still be applied: its transaction would lack it for ever.

        The last batch keeps what waits on, and what the batch before kept until it is committed.
        """
        files = file_store(self._target.checkpoints, self._spark)
        for table in (each for each in self._tables if each.is_treated and each.location.endswith(f"/{PENDING}")):
            every = self._spark.read.format("delta").load(table.location)
            mine, last = (_newest(rows) for rows in (rows_of(self._spark, table, Texts(())), every))
            for flow in self.stopped:
                folders = [
                    sink.folder(self._target) for _, sink in leaf_sinks(flow.sink) if isinstance(sink, WritesFolder)
                ]
                if mine is None or table.location not in {f"{folder.rstrip('/')}/{PENDING}" for folder in folders}:
                    continue
                if mine == last or Checkpoint.of(flow.name, self._target, files).unfinished_batch() is not None:
                    raise refusals.still_waits(table.path, flow.name)

    def _shows(self, table: Table) -> bool:
        rows = rows_of(self._spark, table, Texts(()))
        if DELETED in rows.columns:
            rows = rows.where(~F.coalesce(F.col(DELETED), F.lit(False)))
        if _ENDED in rows.columns:
            rows = rows.where(F.col(_ENDED).isNull())
        return not rows.isEmpty()

    def _readers(self, changed: set[str]) -> tuple[tuple[str, str], ...]:
        places = {table.location: table.path for table in self._tables if table.path in changed}
        return tuple(
            (flow.name, path)
            for flow in self._flows
            for location, path in places.items()
            if location in read_by(flow, self._target)
        )

    def _publish(self, versions: Mapping[str, int]) -> None:
        for flow in self.stopped:
            for _, sink in leaf_sinks(flow.sink):
                if isinstance(sink, WritesFolder) and isinstance(sink, HasCapture):
                    folder = sink.folder(self._target).rstrip("/")
                    within = {path: number for path, number in versions.items() if is_within(path, folder)}
                    publish_again(self._spark, f"{folder}/{PUBLISHED}", within)


def _newest(rows: DataFrame) -> int | None:
    found = rows.agg(F.max(BATCH)).first()
    return None if found is None else found[0]


@contextmanager
def erasing(
    spark: SparkSession, target: Target, flows: Sequence[Flow], request: Request, home: Path
) -> Iterator[Erasure]:
    """Find the tables, keep the flows away that touch them, and yield the erasure. `home` is the project's."""
    erasure = Erasure(spark, target, flows, request, home)
    with erasure.held():
        yield erasure


def subject_of(request: Request, lake: Lake, found: Sequence[Source]) -> Subject:
    """Return whom a request is about. Raises HR-136, HR-137 and HR-532 where that cannot be known."""
    table = request.table.rpartition(".")[2]
    told = [each.rpartition("=") for each in request.columns]
    columns = {path.strip("/"): column for path, named, column in told if named}
    by_path = {each.path: [column.name for column in each.columns] for each in lake.tables}
    for path, column in columns.items():
        if column not in by_path.get(path, []):
            raise refusals.no_such_column(path, column, by_path.get(path, []))
    anywhere = tuple(column for _, named, column in told if not named)
    key = _key(request, table, _key_columns(lake, found, table))
    subject = Subject(table, key, columns, anywhere, frozenset(request.excepted))
    is_known = any(subject.known_by(path, names) for path, names in by_path.items())
    if not is_known and not any(each.table is not None for each in found):
        names = sorted({path.rpartition("/")[2] for path in by_path if "_headrace" not in path})
        raise refusals.no_such_table(table, names)
    return subject


def _key(request: Request, table: str, columns: Sequence[str]) -> dict[str, str]:
    named = [_NAMED.fullmatch(text) for text in request.key]
    if all(named) and (not columns or all(each and each.group(1) in columns for each in named)):
        key = {each.group(1): each.group(2) for each in named if each}
    elif len(request.key) == 1 and len(columns) == 1:
        key = {columns[0]: request.key[0]}
    else:
        why = f"Its key is {', '.join(columns)}." if columns else "Neither its database nor a mirror of it says so."
        raise refusals.no_key(table, why)
    if columns and set(key) != set(columns):
        raise refusals.no_key(table, f"Its key is {', '.join(columns)}, all of them.")
    return key


def _key_columns(lake: Lake, found: Sequence[Source], table: str) -> tuple[str, ...]:
    """Return the columns of the key: as the source says, as tombstones have them, or `id`."""
    for each in found:
        if each.table is not None and each.table.key:
            return each.table.key
    own = {each.path: each.columns for each in lake.tables if each.path.rpartition("/")[2] == table}
    for path, columns in own.items():
        if path.endswith(f"_tombstones/{table}"):
            return tuple(column.name for column in columns if not column.name.startswith(_OWN))
    for columns in own.values():
        fields = [column.name.removeprefix("key.") for column in columns if column.name.startswith("key.")]
        if fields:
            return tuple(fields)
    if not own or any(column.name == "id" for columns in own.values() for column in columns):
        return ("id",)
    return ()
