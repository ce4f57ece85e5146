"""Erase a row of a source table from everything that was derived from it, and prove it: plan, explain, then apply.

1. List the tables of the lake, and find those whose columns identify rows of the subject.
2. Take the leases of the flows that write, read or audit there, and lock their folders: none of them may run.
3. Collect the row's own texts from all files, including old versions. Texts that another row has are left out.
4. Scan all places: that is the plan. The erasure is refused if the source still has the row, or if pending changes
   would restore it.
5. Erase the rows from each table. Before the first, write down the search terms, for a run that is interrupted.
6. Scan all places again, and write the report from the result.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession, functions as F

from headrace.cdc.apply.transactions import BATCH, PENDING
from headrace.cdc.capture.declaration import HasCapture
from headrace.cdc.sink import PUBLISHED
from headrace.clients.storage import file_store
from headrace.flow.flow import Flow
from headrace.flow.sink import WritesFolder, leaf_sinks
from headrace.flow.target import Target
from headrace.operate.erase import errors
from headrace.operate.erase.external import SourceLookup, external_places, row_in_source, source_tables
from headrace.operate.erase.places import (
    Lake,
    LakeTable,
    affected_flows,
    folders_written,
    is_within,
    list_tables,
    locations_read,
    match_tables,
)
from headrace.operate.erase.plan import ErasePlan, ScannedPlace
from headrace.operate.erase.scan import ScanResult, SearchTerms, scan_for_subject, subject_texts
from headrace.operate.erase.subject import Journal, Subject, Texts, in_json, is_identifying
from headrace.operate.erase.table import erase_rows, other_rows, republish_versions, subject_rows
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.checkpoint.folder_lock import lock_folder, lock_sink_folders
from headrace.runtime.checkpoint.lease import acquire_lease
from headrace.sinks.delta.table import DELETED

_COLUMN_VALUE = re.compile(r"([A-Za-z_]\w*)=(.+)", re.DOTALL)
_HEADRACE_PREFIX = "_headrace_"
# Of a history table: where a version of a row ended.
_VERSION_END = "_headrace_ended"
# The number of texts to compare with other rows in one query, a column for each.
_TEXTS_PER_QUERY = 50
# Shorter keys occur in files by chance.
_MIN_KEY_LENGTH = 8


@dataclass(frozen=True)
class ErasureRequest:
    """A request of the command line.

    | field    | example                    | meaning                                                                |
    |----------|----------------------------|------------------------------------------------------------------------|
    | table    | `customers`                | the source table, with its schema or without                           |
    | key      | `("42",)`                  | its key; `COLUMN=VALUE` for each column where there are several        |
    | columns  | `("gold/orders=buyer",)`   | where the key is: in a column of one table, or of every table          |
    | excluded | `("state",)`               | columns of the row whose texts are not searched for                    |
    | keep_tombstones | False               | keep the key in the mirror's tombstones                                |
    """

    table: str
    key: tuple[str, ...]
    columns: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    keep_tombstones: bool = False


class Erasure:
    """An erasure that holds the leases. Created by `open_erasure`; call `plan` once, then optionally `apply`."""

    def __init__(
        self, spark: SparkSession, target: Target, flows: Sequence[Flow], request: ErasureRequest, home: Path
    ) -> None:
        self._spark, self._target, self._flows, self._request, self._home = spark, target, flows, request, home
        self._sources = source_tables(target, flows, request.table)
        self._lake = list_tables(spark, target, flows)
        self.subject = subject_of(request, self._lake, self._sources)
        self._tables = self._list_tables()
        self._journal = Journal.of(home / "erasures", self.subject)

    @property
    def stopped_flows(self) -> list[Flow]:
        """The flows that must not run during the erasure."""
        return affected_flows(self._flows, self._target, self._tables)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock out every flow that uses a changed table. Raises HR-302 or HR-337 if one is running."""
        with ExitStack() as stack:
            folders = []
            for flow in self.stopped_flows:
                checkpoint = Checkpoint.of(flow.name, self._target, self._spark)
                stack.enter_context(acquire_lease(checkpoint, self._target.lease))
                stack.enter_context(lock_sink_folders(flow, self._target))
                folders += [*folders_written(flow, self._target), self._target.table(f"_headrace/{flow.name}")]
            for table in (table for table in self._tables if table.is_erasable):
                if not any(is_within(table.location, folder.rstrip("/")) for folder in folders):
                    stack.enter_context(lock_folder(table.location))
            # The tables may have changed before the leases were taken.
            self._lake = list_tables(self._spark, self._target, self._flows)
            self._tables = self._list_tables()
            yield

    def plan(self) -> ErasePlan:
        """Scan all places. Changes nothing. Raises HR-530 or HR-531 if the row could come back."""
        source = tuple(
            (lookup.database, *row_in_source(self._target, lookup, self.subject)) for lookup in self._sources
        )
        for lookup, (_, answer, _why) in zip(self._sources, source, strict=True):
            if answer == "there":
                raise errors.still_in_source(str(lookup.table), lookup.database)
        if any(answer == "gone" for _, answer, _ in source):
            self._require_delete_applied()
        self._require_no_pending()
        resumed_texts = self._journal.read()
        texts = self._texts(resumed_texts or ())
        places = []
        for table in self._tables:
            traces = self._find_traces(table, texts)
            live = 0
            if table.is_erasable and not traces.is_clean:
                live = subject_rows(self._spark, table, texts).count()
            places.append(ScannedPlace(table.path, table.kind, self._is_erased(table), traces, live))
        places += self._other_places(texts)
        readers = self._readers({place.path for place in places if place.erased and not place.before.is_clean})
        rest = tuple(external_places(self._spark, self._target, self._flows, self.subject, texts))
        return ErasePlan(self.subject, texts, source, tuple(places), readers, rest, resumed_texts is not None)

    def apply(self, plan: ErasePlan) -> ErasePlan:
        """Apply a plan, and return it with the result and the traces that are left."""
        erased_at = datetime.now(UTC)
        by_path = {table.path: table for table in self._tables}
        self._journal.write(plan.texts.values)
        erasures = {
            place.path: erase_rows(self._spark, by_path[place.path], plan.texts, place.live, erased_at)
            for place in plan.tables_to_erase
        }
        self._publish({by_path[path].location: erasure.after for path, erasure in erasures.items()})
        # The proof covers the files that exist now.
        self._lake = list_tables(self._spark, self._target, self._flows)
        self._tables = self._list_tables()
        after = {table.path: self._find_traces(table, plan.texts) for table in self._tables}
        after |= {place.path: place.before for place in self._other_places(plan.texts)}
        places = tuple(
            replace(place, erasure=erasures.get(place.path), after=after.get(place.path, ScanResult()))
            for place in plan.places
        )
        rest = tuple(external_places(self._spark, self._target, self._flows, self.subject, plan.texts))
        return replace(plan, places=places, beyond=rest)

    def finish(self) -> None:
        """Delete the search terms. Call when the report is written and nothing is left."""
        self._journal.delete()

    def _list_tables(self) -> tuple[LakeTable, ...]:
        return match_tables(self._lake, self.subject, self._flows)

    def _is_erased(self, table: LakeTable) -> bool:
        return table.is_erasable and not (table.kind == "tombstones" and self._request.keep_tombstones)

    def _find_traces(self, table: LakeTable, texts: Texts) -> ScanResult:
        files = file_store(table.location, self._spark)
        return scan_for_subject(files, table.location, table.files, table.search_terms(self.subject, texts))

    def _other_places(self, texts: Texts) -> list[ScannedPlace]:
        """Scan everything except tables: other files of the lake, checkpoints, backups."""
        signs = SearchTerms(self.subject.identifying_columns, (), "", texts)
        places = []
        for root, paths in self._lake.other_files.items():
            places.append(ScannedPlace(f"{root} (files of no table)", "files", False, self._scan(root, paths, signs)))
        for flow in self._flows:
            folder = self._target.flow_folder(flow.name)
            places.append(ScannedPlace(folder, "checkpoint", False, self._scan_folder(folder, signs)))
        backups = self._home / "backups"
        names = {flow.name for flow in self._flows}
        for backup in sorted(backups.iterdir()) if backups.is_dir() else ():
            if backup.name.rpartition("-")[0] in names:
                places.append(ScannedPlace(str(backup), "backup", False, self._scan_folder(str(backup), signs)))
        return places

    def _scan_folder(self, folder: str, signs: SearchTerms) -> ScanResult:
        return self._scan(folder, sorted(file_store(folder, self._spark).sizes(folder)), signs)

    def _scan(self, root: str, paths: Sequence[str], signs: SearchTerms) -> ScanResult:
        return scan_for_subject(file_store(root, self._spark), root, paths, signs)

    def _texts(self, resumed: Sequence[str]) -> Texts:
        """Return the texts of the row that no other row has, from all files that still have the row."""
        own_tables = [table for table in self._tables if table.key_columns and self.subject.is_own(table.path)]
        own_tables = own_tables or [table for table in self._tables if table.key_columns]
        texts = dict.fromkeys(resumed)
        for table in own_tables:
            rows = table.search_terms(self.subject, Texts(())).rows
            for column, text in subject_texts(
                file_store(table.location, self._spark), table.location, table.files, rows
            ):
                if column not in self.subject.excluded and is_identifying(text):
                    texts.setdefault(text)
        for text in self.subject.key.values():
            if len(text) >= _MIN_KEY_LENGTH and is_identifying(text):
                texts.setdefault(text)
            else:
                texts.pop(text, None)
        values = [text for text in texts if text not in resumed]
        for table in (
            table for table in own_tables if any(column.type in ("string", "map", "nested") for column in table.columns)
        ):
            values = self._unique_texts(table, values)
        return Texts(tuple(sorted({*resumed, *values})))

    def _unique_texts(self, table: LakeTable, values: Sequence[str]) -> list[str]:
        """Return the texts that no row of another subject has in a table."""
        text = other_rows(self._spark, table).select(F.to_json(F.struct("*")).alias("text"))
        unshared: list[str] = []
        for start in range(0, len(values), _TEXTS_PER_QUERY):
            batch = values[start : start + _TEXTS_PER_QUERY]
            contains = [F.max(F.contains(F.col("text"), F.lit(in_json(value)))) for value in batch]
            row = text.agg(*contains).first()
            unshared += [value for value, shared in zip(batch, row or (), strict=True) if not shared]
        return unshared

    def _require_delete_applied(self) -> None:
        """Raise if a mirror still shows the row that its source has deleted."""
        for flow in self.stopped_flows:
            folders = [
                sink.folder(self._target).rstrip("/")
                for _, sink in leaf_sinks(flow.sink)
                if isinstance(sink, WritesFolder) and isinstance(sink, HasCapture) and sink.capture is not None
            ]
            for table in self._tables:
                own = table.location in {f"{folder}/{self.subject.table}" for folder in folders}
                # A change log has no current rows.
                if own and dict(self.subject.key) in table.key_columns and self._has_live_rows(table):
                    raise errors.not_read_yet(table.path, flow.name)

    def _require_no_pending(self) -> None:
        """Raise if a change of the row may still be applied: without it, its transaction would never be complete.

        The last batch stores pending changes, and those of the batch before until it is committed.
        """
        for table in (table for table in self._tables if table.is_erasable and table.location.endswith(f"/{PENDING}")):
            pending = self._spark.read.format("delta").load(table.location)
            subject_batch, last_batch = (
                _newest_batch(rows) for rows in (subject_rows(self._spark, table, Texts(())), pending)
            )
            for flow in self.stopped_flows:
                pending_tables = {f"{folder}/{PENDING}" for folder in folders_written(flow, self._target)}
                if subject_batch is None or table.location not in pending_tables:
                    continue
                if (
                    subject_batch == last_batch
                    or Checkpoint.of(flow.name, self._target, self._spark).unfinished_batch() is not None
                ):
                    raise errors.change_pending(table.path, flow.name)

    def _has_live_rows(self, table: LakeTable) -> bool:
        rows = subject_rows(self._spark, table, Texts(()))
        if DELETED in rows.columns:
            rows = rows.where(~F.coalesce(F.col(DELETED), F.lit(False)))
        if _VERSION_END in rows.columns:
            rows = rows.where(F.col(_VERSION_END).isNull())
        return not rows.isEmpty()

    def _readers(self, changed: set[str]) -> tuple[tuple[str, str], ...]:
        paths = {table.location: table.path for table in self._tables if table.path in changed}
        return tuple(
            (flow.name, path)
            for flow in self._flows
            for location, path in paths.items()
            if location in locations_read(flow, self._target)
        )

    def _publish(self, versions: Mapping[str, int]) -> None:
        for flow in self.stopped_flows:
            for _, sink in leaf_sinks(flow.sink):
                if isinstance(sink, WritesFolder) and isinstance(sink, HasCapture):
                    folder = sink.folder(self._target).rstrip("/")
                    within = {path: number for path, number in versions.items() if is_within(path, folder)}
                    republish_versions(self._spark, f"{folder}/{PUBLISHED}", within)


def _newest_batch(rows: DataFrame) -> int | None:
    newest = rows.agg(F.max(BATCH)).first()
    return None if newest is None else newest[0]


@contextmanager
def open_erasure(
    spark: SparkSession, target: Target, flows: Sequence[Flow], request: ErasureRequest, home: Path
) -> Iterator[Erasure]:
    """Find the tables, lock out the flows that use them, and yield the erasure. `home` is the project's."""
    erasure = Erasure(spark, target, flows, request, home)
    with erasure.locked():
        yield erasure


def subject_of(request: ErasureRequest, lake: Lake, lookups: Sequence[SourceLookup]) -> Subject:
    """Return the subject of a request. Raises HR-136, HR-137 or HR-532 if it is unknown."""
    table = request.table.rpartition(".")[2]
    options = [option.rpartition("=") for option in request.columns]
    columns = {path.strip("/"): column for path, named, column in options if named}
    by_path = {lake_table.path: [column.name for column in lake_table.columns] for lake_table in lake.tables}
    for path, column in columns.items():
        if column not in by_path.get(path, []):
            raise errors.no_such_column(path, column, by_path.get(path, []))
    anywhere = tuple(column for _, named, column in options if not named)
    key = _key(request, table, _key_columns(lake, lookups, table))
    subject = Subject(table, key, columns, anywhere, frozenset(request.excluded))
    is_known = any(subject.key_columns(path, names) for path, names in by_path.items())
    if not is_known and not any(lookup.table is not None for lookup in lookups):
        names = sorted({path.rpartition("/")[2] for path in by_path if "_headrace" not in path})
        raise errors.no_such_table(table, names)
    return subject


def _key(request: ErasureRequest, table: str, columns: Sequence[str]) -> dict[str, str]:
    named = [_COLUMN_VALUE.fullmatch(text) for text in request.key]
    if all(named) and (not columns or all(match and match.group(1) in columns for match in named)):
        key = {match.group(1): match.group(2) for match in named if match}
    elif len(request.key) == 1 and len(columns) == 1:
        key = {columns[0]: request.key[0]}
    else:
        why = f"Its key is {', '.join(columns)}." if columns else "Neither its database nor a mirror of it says so."
        raise errors.no_key(table, why)
    if columns and set(key) != set(columns):
        raise errors.no_key(table, f"Its key is {', '.join(columns)}, all of them.")
    return key


def _key_columns(lake: Lake, lookups: Sequence[SourceLookup], table: str) -> tuple[str, ...]:
    """Return the columns of the key: from the source, from the tombstones, or `id`."""
    for lookup in lookups:
        if lookup.table is not None and lookup.table.key:
            return lookup.table.key
    own_tables = {
        lake_table.path: lake_table.columns for lake_table in lake.tables if lake_table.path.rpartition("/")[2] == table
    }
    for path, columns in own_tables.items():
        if path.endswith(f"_tombstones/{table}"):
            return tuple(column.name for column in columns if not column.name.startswith(_HEADRACE_PREFIX))
    for columns in own_tables.values():
        fields = [column.name.removeprefix("key.") for column in columns if column.name.startswith("key.")]
        if fields:
            return tuple(fields)
    if not own_tables or any(column.name == "id" for columns in own_tables.values() for column in columns):
        return ("id",)
    return ()
