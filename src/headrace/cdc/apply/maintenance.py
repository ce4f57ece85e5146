"""The upkeep of tables that changes go into: small files joined, old files removed, old tombstones forgotten.

All of it is done by the flow that writes the tables, between two of its batches: nobody else commits to them, so that
no upkeep ever conflicts with a batch, and none needs a process of its own.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING

from delta.tables import DeltaTable
from pyspark.sql import functions as F

from headrace.cdc.apply.table import POSITION, Into
from headrace.cdc.apply.tombstones import DELETED_AT
from headrace.flow.duration import Duration
from headrace.sinks.delta.log import version
from headrace.sinks.delta.maintenance import Maintenance

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Upkeep(Maintenance):
    """How the tables of a flow are kept in shape.

    | field       | default    | meaning                                                                             |
    |-------------|------------|-------------------------------------------------------------------------------------|
    | small_files | 48         | OPTIMIZE a table that has so many files more than it needs; 0 is never              |
    | keep        | `7 days`   | VACUUM removes files that no version since then needs; None is never                |
    | clean_every | `1 day`    | how often that is done                                                              |
    | tombstones  | `30 days`  | how long a deleted key is remembered; None is for ever                              |

    A change that arrives later than its key's tombstone is kept would bring the row back. Whoever reads an old version
    of a table needs it to be younger than `keep`.
    """

    tombstones: str | None = "30 days"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tombstones is not None:
            Duration.parse(self.tombstones)

    def clean(self, session: SparkSession, into: Into, last: dt.datetime, now: dt.datetime) -> bool:
        """Remove old files and old tombstones, when it is time. Says whether it did."""
        if now - last < dt.timedelta(milliseconds=Duration.parse(self.clean_every).ms):
            return False
        buried = version(session, into.tombstones) >= 0
        if buried and self.tombstones is not None:
            old = now - dt.timedelta(milliseconds=Duration.parse(self.tombstones).ms)
            graves = DeltaTable.forPath(session, into.tombstones)
            graves.delete((F.col(DELETED_AT) < F.lit(old)) & F.col(POSITION).isNotNull())
        self.let_remember(session, into.location)
        self.vacuum(session, (into.location, into.tombstones) if buried else (into.location,))
        return True
