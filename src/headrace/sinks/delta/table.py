"""What every sink that ends in a Delta table has in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from headrace.flow.guarantee import Guarantee
from headrace.flow.sink import Held
from headrace.flow.target import Target
from headrace.sinks.delta.log import snapshot
from headrace.sinks.delta.policy import TablePolicy
from headrace.sinks.local_folder import require_writable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The column by which a table says that a row is deleted at its source, where rows stay.
DELETED = "_headrace_deleted"


@dataclass(frozen=True)
class DeltaTableSink:
    """A table below the lake, unless `path` is absolute, that records each batch in the commit that holds its rows.

    Exactly once, while:
      1. a batch that is run again has the same id; Spark keeps this through the offset log;
      2. the identity changes whenever the checkpoint is discarded. A new checkpoint counts from 0, and Delta skips
         ids that it has seen under one identity: silent loss. `Batch.app_id` holds the query id for this reason;
      3. one process writes the table, on storage without an exclusive rename (a local disk).

    `policy` says how the table is kept: its properties, its small files and its old ones.
    """

    path: str
    policy: TablePolicy | None = field(default=None, kw_only=True)
    guarantee: ClassVar[Guarantee] = Guarantee.EXACTLY_ONCE

    @property
    def name(self) -> str:
        """Return `delta:PATH`."""
        return f"delta:{self.path}"

    def folder(self, target: Target) -> str:
        """Return the location of the table."""
        return target.table(self.path)

    def held(self, spark: SparkSession, flow: str, step: str, target: Target) -> Held:
        """Return the table's id and the batches that its log records."""
        place, now = f"the Delta table {self.folder(target)}", snapshot(spark, self.folder(target))
        if now.version() < 0:
            return Held(place, None, {})
        records, end = now.setTransactions(), f":{flow}:{step}"
        found = [records.apply(number) for number in range(records.size())]
        last = {each.appId().removesuffix(end): int(each.version()) for each in found if each.appId().endswith(end)}
        return Held(place, str(now.metadata().id()), last)

    def preflight(self, target: Target) -> None:
        """Prove that a local folder can be written."""
        require_writable(target.table(self.path))

    def prepare(self, spark: SparkSession, target: Target) -> None:
        """Give a table that is there its properties. The first write makes one that is not."""
        if self.policy is not None:
            self.policy.apply(spark, self.folder(target))

    @property
    def properties(self) -> Mapping[str, str]:
        """What the first write makes the table with."""
        return {} if self.policy is None else self.policy.table_properties

    def look_after(self, session: SparkSession, target: Target) -> None:
        """Do the upkeep that is due. Called by each sink after it has written a batch."""
        if self.policy is not None:
            self.policy.look_after(session, self.folder(target))
