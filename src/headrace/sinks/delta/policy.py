"""The policy of a Delta table: its properties, when small files are compacted, how long old files are retained.

The flow that writes the table applies it between two batches (see `maintenance`): it is the only writer, so maintenance
never conflicts with a batch.
"""

import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from pyspark.sql import SparkSession

from headrace.clients.spark.delta_log import snapshot
from headrace.clients.storage import file_store
from headrace.errors import FlowError
from headrace.flow.duration import Duration
from headrace.flow.run_cache import RunCache
from headrace.sinks.delta.maintenance import Maintenance
from headrace.sinks.delta.sql import set_table_properties


@dataclass(frozen=True)
class TablePolicy:
    """Properties and maintenance of one table.

    | field       | default   | meaning                                                                              |
    |-------------|-----------|--------------------------------------------------------------------------------------|
    | properties  | none      | table properties (`delta.*`); set when the table is created, and at each start if    |
    |             |           | they differ                                                                          |
    | small_files | 48        | OPTIMIZE the table if it has this many files more than it needs; 0 means never       |
    | retention   | `7 days`  | VACUUM files that no version within this time needs; None means never                |
    | clean_every | `1 day`   | the interval of VACUUM                                                               |

    A stream that reads the table must not fall behind by more than `retention`: it stops at a version whose files were
    removed. `delta.deletedFileRetentionDuration` is set to the same time, at most to the retention of the log.
    """

    properties: Mapping[str, str] = field(default_factory=dict)
    small_files: int = 48
    retention: str | None = "7 days"
    clean_every: str = "1 day"

    def __post_init__(self) -> None:
        object.__setattr__(self, "properties", MappingProxyType(dict(self.properties)))
        invalid = next((name for name in self.properties if not name.startswith("delta.")), None)
        if invalid is not None:
            raise FlowError(
                f"'{invalid}' is not a property of a Delta table.",
                why="Delta stores names that start with `delta.`; any other one is only an option of a write.",
                remedy="Write it as `delta.NAME`, such as `delta.logRetentionDuration`.",
                code="HR-573",
            )
        self._maintenance  # noqa: B018 - raises for times that cannot be

    def __getstate__(self) -> dict[str, object]:
        # A view of a dict cannot be sent to a worker.
        return {**vars(self), "properties": dict(self.properties)}

    @property
    def table_properties(self) -> Mapping[str, str]:
        """The declared properties, and the retention of removed files unless it is declared."""
        return {**self._maintenance.retention_property(self.properties), **self.properties}

    @property
    def _maintenance(self) -> Maintenance:
        return Maintenance(self.small_files, self.retention, self.clean_every)

    def apply(self, session: SparkSession, location: str) -> None:
        """Set the properties of an existing table. Called once per start of a flow, before its query."""
        table = snapshot(session, location)
        if table.version < 0:
            return
        changed = {name: value for name, value in self.table_properties.items() if table.table_property(name) != value}
        if changed:
            set_table_properties(session, location, changed)

    def run_maintenance(
        self, session: SparkSession, location: str, cache: RunCache, now: dt.datetime | None = None
    ) -> None:
        """Compact small files, and vacuum old ones if it is time. Called by the sink after each batch."""
        self._maintenance.compact(session, location, cache)
        now = now or dt.datetime.now(dt.UTC)
        # Delta ignores names that begin with an underscore, also in VACUUM.
        files, state = file_store(location, session), f"{location}/_headrace/maintenance.json"
        text = files.read(state)
        cleaned = dt.datetime.fromisoformat(json.loads(text)["cleaned"]) if text else None
        # A table that was never vacuumed has no old files.
        if cleaned is None or now - cleaned >= dt.timedelta(milliseconds=Duration.parse(self.clean_every).ms):
            if cleaned is not None:
                self._maintenance.vacuum(session, [location])
            files.write(state, json.dumps({"cleaned": now.isoformat()}))
