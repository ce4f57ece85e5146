"""The plan and the result of an erasure, for the report and in lines for people. Without values of the row."""

from collections.abc import Iterator
from dataclasses import dataclass

from headrace.operate.erase.external import Answer, ExternalPlace
from headrace.operate.erase.scan import ScanResult
from headrace.operate.erase.subject import Subject, Texts
from headrace.operate.erase.table import TableErasure

# The remedies for places that contain the subject and that an erasure does not change.
_REMEDIES = {
    "table": "No column of the table says whose its rows are: name one with `--column PATH=COLUMN`.",
    "tombstones": "Kept, as `--keep-tombstones` asks: a key and a place in the log, so that no late change brings the "
    "row back.",
    "files": "The folder of a file sink, or files of others: delete them there.",
    "checkpoint": "Start the flow under a new name, and delete this checkpoint.",
    "backup": "Delete the backup, and make another one.",
}


@dataclass(frozen=True)
class ScannedPlace:
    """A place that was scanned.

    | field   | meaning                                                                                     |
    |---------|---------------------------------------------------------------------------------------------|
    | kind    | `table`, `tombstones`, `recorded` (quarantine, ledgers), `files`, `checkpoint`, `backup`       |
    | erased  | whether it is a table that the erasure changes                                              |
    | live    | rows of the subject that the table shows now                                                |
    | before, after | the traces in its files                                                               |
    | erasure | what was done to it                                                                         |
    """

    path: str
    kind: str
    erased: bool
    before: ScanResult
    live: int = 0
    erasure: TableErasure | None = None
    after: ScanResult | None = None

    @property
    def outcome(self) -> str:
        """`clean`; `left` with something of the subject; `kept` on request; `unproven`: files that stay closed."""
        traces = self.after or self.before
        if not traces.is_clean:
            return "kept" if self.kind == "tombstones" and not self.erased else "left"
        return "unproven" if traces.closed else "clean"

    @property
    def remedy(self) -> str:
        """What removes the subject from here, if something is left."""
        if self.outcome == "clean":
            return ""
        if self.outcome == "unproven":
            return f"{self.before.closed} files of it are compressed state, or in formats that cannot be scanned."
        return (
            _REMEDIES.get(self.kind, "Run the same command again.")
            if not self.erased
            else "Run the same command again."
        )

    def as_dict(self) -> dict[str, object]:
        """The place as the report has it."""
        return {
            "path": self.path,
            "kind": self.kind,
            "outcome": self.outcome,
            "rows_deleted": self.erasure.rows if self.erasure else 0,
            "version_before": self.erasure.before if self.erasure else None,
            "version_after": self.erasure.after if self.erasure else None,
            "log_files_removed": self.erasure.log_files if self.erasure else 0,
            "before": self.before.as_dict(),
            "after": (self.after or self.before).as_dict(),
            "remedy": self.remedy,
        }


@dataclass(frozen=True)
class ErasePlan:
    """What was found and what to do.

    | field   | meaning                                                                              |
    |---------|--------------------------------------------------------------------------------------|
    | texts   | what is searched for, in addition to the key                                         |
    | source  | what each source database answers, with the reason if it did not                     |
    | places  | everything that was scanned                                                          |
    | readers | flows that read a table which is changed, each with the table                        |
    | beyond  | places that Headrace cannot change                                                   |
    | resumed | whether this continues an unfinished erasure of the subject                          |
    """

    subject: Subject
    texts: Texts
    source: tuple[tuple[str, Answer, str], ...]
    places: tuple[ScannedPlace, ...]
    readers: tuple[tuple[str, str], ...]
    beyond: tuple[ExternalPlace, ...]
    resumed: bool = False

    @property
    def tables_to_erase(self) -> tuple[ScannedPlace, ...]:
        """The tables that are changed."""
        return tuple(place for place in self.places if place.erased and not place.before.is_clean)

    @property
    def is_clean(self) -> bool:
        """Whether nothing of the subject was found, or is left."""
        return all(place.outcome != "left" for place in self.places) and all(
            place.holds != "yes" for place in self.beyond
        )

    def lines(self) -> Iterator[str]:
        """Describe the plan."""
        if self.resumed:
            yield "An earlier erasure of this row was not finished: this one continues it."
        for database, answer, why in self.source:
            if answer == "unknown":
                yield f"Database '{database}' was not asked. {why} If the row is still there, it comes back."
        if not self.tables_to_erase:
            yield "No table contains anything of it."
        else:
            yield f"{len(self.texts.values)} text(s) of the row are searched for, in addition to its key."
        for place in self.tables_to_erase:
            yield (
                f"{place.path}: {place.live} row(s) of {place.before.rows} in {place.before.matching_files} file(s), "
                f"old versions included; {place.before.log} file(s) of the log."
            )
        if self.tables_to_erase:
            yield (
                "These tables are rewritten where they contain it. Their earlier versions, the change feed and the log "
                "before the erasure are removed: no time travel to before it."
            )
        for flow, table in self.readers:
            yield f"Flow '{flow}' reads {table} as a stream and cannot continue from its checkpoint. Rename the flow."
        for place in (place for place in self.places if place.outcome != "clean" and place not in self.tables_to_erase):
            yield f"{place.path} is not changed. {place.remedy}"
        for external in (external for external in self.beyond if external.holds != "no"):
            certainty = "contains it" if external.holds == "yes" else "may contain it"
            yield f"{external.place} {certainty}. {external.why} {external.removes}"
