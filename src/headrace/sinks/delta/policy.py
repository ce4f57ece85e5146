"""How a Delta table is kept: its properties, when small files are joined, how long old files stay.

All of it is done by the flow that writes the table, between two of its batches (`maintenance`): nobody else
commits to it, so that no upkeep ever conflicts with a batch.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from delta.tables import DeltaTable

from headrace.clients.storage import files_for
from headrace.errors import FlowError
from headrace.flow.duration import Duration
from headrace.sinks.delta.maintenance import Maintenance

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class TablePolicy:
    """How one table is kept.

    | field       | default   | meaning                                                                              |
    |-------------|-----------|--------------------------------------------------------------------------------------|
    | properties  | none      | properties of the table, `delta.` ones; set when it is made, and at each start where  |
    |             |           | it has others                                                                        |
    | small_files | 48        | OPTIMIZE the table when it has so many files more than it needs; 0 is never          |
    | keep        | `7 days`  | VACUUM removes files that no version since then needs; None is never                 |
    | clean_every | `1 day`   | how often that is done                                                               |

    Whoever reads the table as a stream has to come by more often than `keep`: a version whose files are gone stops it.
    The table remembers for as long which files it has removed (`delta.deletedFileRetentionDuration`), at most for as
    long as it keeps its log.
    """

    properties: Mapping[str, str] = field(default_factory=dict)
    small_files: int = 48
    keep: str | None = "7 days"
    clean_every: str = "1 day"

    def __post_init__(self) -> None:
        object.__setattr__(self, "properties", MappingProxyType(dict(self.properties)))
        wrong = next((name for name in self.properties if not name.startswith("delta.")), None)
        if wrong is not None:
            raise FlowError(
                f"'{wrong}' is no property of a Delta table.",
                why="Delta keeps what begins with `delta.`; anything else would be an option of one write, and lost.",
                state="Nothing was started.",
                remedy="Write it as `delta.NAME`, such as `delta.logRetentionDuration`.",
                code="HR-573",
            )
        self._upkeep  # noqa: B018 - raises for times that cannot be

    def __getstate__(self) -> dict[str, object]:
        # A view of a dict cannot be sent to a worker.
        return {**vars(self), "properties": dict(self.properties)}

    @property
    def table_properties(self) -> Mapping[str, str]:
        """What the table gets: the properties, and how long it remembers what it has removed, unless they say it."""
        return {**self._upkeep.remembering(self.properties), **self.properties}

    @property
    def _upkeep(self) -> Maintenance:
        return Maintenance(self.small_files, self.keep, self.clean_every)

    def apply(self, session: SparkSession, location: str) -> None:
        """Give a table that is there the properties. Called once per start of a flow, before its query."""
        if not DeltaTable.isDeltaTable(session, location):
            return
        (detail,) = DeltaTable.forPath(session, location).detail().collect()
        has, wanted = detail["properties"], self.table_properties
        lacking = {name: value for name, value in wanted.items() if has.get(name) != value}
        if lacking:
            listed = ", ".join(f"'{name}' = '{value}'" for name, value in lacking.items())
            session.sql(f"ALTER TABLE delta.`{location}` SET TBLPROPERTIES ({listed})")

    def look_after(self, session: SparkSession, location: str, now: dt.datetime | None = None) -> None:
        """Join small files, and remove old ones when it is time. Called after each batch, by its writer."""
        self._upkeep.compact(session, location)
        now = now or dt.datetime.now(dt.UTC)
        cleaned = self._cleaned(session, location)
        # A table that was never cleaned has nothing old.
        if cleaned is None or now - cleaned >= dt.timedelta(milliseconds=Duration.parse(self.clean_every).ms):
            if cleaned is not None:
                self._upkeep.vacuum(session, [location])
            files_for(location, session).write(_note(location), json.dumps({"cleaned": now.isoformat()}))

    def _cleaned(self, session: SparkSession, location: str) -> dt.datetime | None:
        text = files_for(location, session).read(_note(location))
        return dt.datetime.fromisoformat(json.loads(text)["cleaned"]) if text else None


def _note(location: str) -> str:
    # Delta passes over names that begin so, also when it removes files.
    return f"{location}/_headrace/upkeep.json"
