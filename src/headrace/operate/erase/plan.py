"""What an erasure does and has done, as values: for the report, and in lines for people. No value of the row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headrace.operate.erase.external import Answer, Beyond
from headrace.operate.erase.scan import Traces
from headrace.operate.erase.subject import Subject, Texts
from headrace.operate.erase.table import Treated

# What is said of places that hold the subject and that an erasure does not change.
_LEFT = {
    "table": "No column of the table says whose its rows are: name one with `--column PATH=COLUMN`.",
    "tombstones": "Kept, as `--keep-tombstones` asks: a key and a place in the log, so that no late change brings the "
    "row back.",
    "files": "The folder of a file sink, or files of others: delete them there.",
    "checkpoint": "Start the flow under a new name, and delete this checkpoint.",
    "backup": "Delete the backup, and make another one.",
}


@dataclass(frozen=True)
class Place:
    """One place that was looked through.

    | field   | meaning                                                                                     |
    |---------|---------------------------------------------------------------------------------------------|
    | kind    | `table`, `tombstones`, `filed` (quarantine, ledgers), `files`, `checkpoint`, `backup`       |
    | erased  | whether it is a table that the erasure changes                                              |
    | live    | rows of the subject that the table shows now                                                |
    | before, after | what its files hold                                                                   |
    | treated | what was done to it                                                                         |
    """

    path: str
    kind: str
    erased: bool
    before: Traces
    live: int = 0
    treated: Treated | None = None
    after: Traces | None = None

    @property
    def outcome(self) -> str:
        """`clean`; `left` with something of the subject; `kept` on request; `unproven`: files that stay closed."""
        traces = self.after or self.before
        if not traces.is_clean:
            return "kept" if self.kind == "tombstones" and not self.erased else "left"
        return "unproven" if traces.closed else "clean"

    @property
    def remedy(self) -> str:
        """What removes the subject from here, where something is left."""
        if self.outcome == "clean":
            return ""
        if self.outcome == "unproven":
            return f"{self.before.closed} files of it are compressed state, or in formats that are not looked into."
        return _LEFT.get(self.kind, "Run the same command again.") if not self.erased else "Run the same command again."

    def as_dict(self) -> dict[str, object]:
        """The place as the report holds it."""
        return {
            "path": self.path,
            "kind": self.kind,
            "outcome": self.outcome,
            "rows_deleted": self.treated.rows if self.treated else 0,
            "version_before": self.treated.before if self.treated else None,
            "version_after": self.treated.after if self.treated else None,
            "log_files_removed": self.treated.log_files if self.treated else 0,
            "before": self.before.as_dict(),
            "after": (self.after or self.before).as_dict(),
            "remedy": self.remedy,
        }


@dataclass(frozen=True)
class ErasePlan:
    """What is found and what is to be done.

    | field   | meaning                                                                              |
    |---------|--------------------------------------------------------------------------------------|
    | texts   | what is looked for beside the key                                                    |
    | source  | what each source database answers, with the reason where it is not known             |
    | places  | all that was looked through                                                          |
    | readers | flows that read a table which is changed, each with the table                        |
    | beyond  | places that are not Headrace's to change                                             |
    | resumed | whether an erasure of this subject was begun before and not finished                 |
    """

    subject: Subject
    texts: Texts
    source: tuple[tuple[str, Answer, str], ...]
    places: tuple[Place, ...]
    readers: tuple[tuple[str, str], ...]
    beyond: tuple[Beyond, ...]
    resumed: bool = False

    @property
    def due(self) -> tuple[Place, ...]:
        """The tables that are changed."""
        return tuple(place for place in self.places if place.erased and not place.before.is_clean)

    @property
    def is_clean(self) -> bool:
        """Whether nothing of the subject was found anywhere, or is left."""
        return all(place.outcome != "left" for place in self.places) and all(
            each.holds != "yes" for each in self.beyond
        )

    def lines(self) -> Iterator[str]:
        """Say the plan."""
        if self.resumed:
            yield "An erasure of this row was begun before and not finished: this one goes on."
        for database, answer, why in self.source:
            if answer == "unknown":
                yield f"Database '{database}' was not asked. {why} If the row is still there, it comes back."
        if not self.due:
            yield "No table holds anything of it."
        else:
            yield f"{len(self.texts.values)} text(s) of the row are looked for beside its key."
        for place in self.due:
            yield (
                f"{place.path}: {place.live} row(s) of {place.before.rows} in {place.before.found} file(s), the past "
                f"included; {place.before.log} file(s) of the log."
            )
        if self.due:
            yield (
                "These tables are written anew where they hold it. Their earlier versions, the change feed and the log "
                "before the erasure are removed: no time travel behind it."
            )
        for flow, table in self.readers:
            yield f"Flow '{flow}' reads {table} as a stream: it cannot go on from its checkpoint. Give it a new name."
        for place in (each for each in self.places if each.outcome != "clean" and each not in self.due):
            yield f"{place.path} is not changed. {place.remedy}"
        for each in (one for one in self.beyond if one.holds != "no"):
            yield f"{each.place} {'holds it' if each.holds == 'yes' else 'may hold it'}. {each.why} {each.removes}"
