"""Maintain CDC tables: compact small files, remove old files and old tombstones.

The flow that writes the tables also maintains them, between two batches. There is no other writer, so maintenance never
conflicts with a batch and needs no process of its own.
"""

import datetime as dt
from dataclasses import dataclass

from delta.tables import DeltaTable
from pyspark.sql import SparkSession, functions as F

from headrace.cdc.apply.table import POSITION, TableWrite
from headrace.cdc.apply.tombstones import DELETED_AT
from headrace.clients.spark.delta_log import version
from headrace.flow.duration import Duration
from headrace.sinks.delta.maintenance import Maintenance


@dataclass(frozen=True)
class CdcMaintenance(Maintenance):
    """When to compact, vacuum and remove tombstones of the tables of a CDC flow.

    | field       | default    | meaning                                                                             |
    |-------------|------------|-------------------------------------------------------------------------------------|
    | small_files | 48         | OPTIMIZE a table that has this many files more than it needs; 0 means never         |
    | retention   | `7 days`   | VACUUM files that no version within this time needs; None means never               |
    | clean_every | `1 day`    | the interval of VACUUM and of the removal of tombstones                             |
    | tombstones  | `30 days`  | the retention of the tombstones of deleted keys; None means forever                 |

    A change that arrives after its key's tombstone is removed would restore the row. A reader can use versions of a
    table that are younger than `retention`.
    """

    tombstones: str | None = "30 days"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tombstones is not None:
            Duration.parse(self.tombstones)

    def clean(self, session: SparkSession, into: TableWrite, last: dt.datetime, now: dt.datetime) -> bool:
        """Remove old files and old tombstones if due. Returns whether it did."""
        if now - last < dt.timedelta(milliseconds=Duration.parse(self.clean_every).ms):
            return False
        has_tombstones = version(session, into.tombstones) >= 0
        if has_tombstones and self.tombstones is not None:
            old = now - dt.timedelta(milliseconds=Duration.parse(self.tombstones).ms)
            table = DeltaTable.forPath(session, into.tombstones)
            table.delete((F.col(DELETED_AT) < F.lit(old)) & F.col(POSITION).isNotNull())
        self.set_retention_property(session, into.location)
        self.vacuum(session, (into.location, into.tombstones) if has_tombstones else (into.location,))
        return True
