"""The tables of a captured database as mirrors in the lake: one declaration, one flow, a mirror per table."""

import re
from dataclasses import dataclass, field
from functools import partial

from pyspark.sql import DataFrame

from headrace.cdc.apply.change_log import ChangeLog
from headrace.cdc.apply.maintenance import CdcMaintenance
from headrace.cdc.apply.mirror import Mirror
from headrace.cdc.apply.schema_evolution import DroppedColumns
from headrace.cdc.capture.catalogue import read_tables
from headrace.cdc.capture.declaration import Capture, TableSelection
from headrace.cdc.capture.source_table import SourceTable
from headrace.cdc.decode.envelope import ENVELOPE, TRANSACTION, change_decoder, has_ambiguous_unit
from headrace.cdc.sink import DeltaCdc, SkippedTable, StoredAs
from headrace.clients.postgres import database_of
from headrace.errors import DataError
from headrace.flow.flow import Flow
from headrace.flow.inputs import Input
from headrace.flow.levers import Every, Trigger
from headrace.flow.target import Target
from headrace.sources.kafka.source import KafkaSource
from headrace.sources.kafka.topics import TopicPattern

_RECORD_COLUMNS = ("topic", "partition", "offset", "key")
# Larger than any record; the broker has its own limit. A change in quarantine would leave its mirror different from the
# source: later changes do not repeat a large value, and a redriven change is older than they are.
_ANY_SIZE = 2**31 - 1


@dataclass(frozen=True)
class CdcSettings:
    """How the changes of a database are applied.

    | field               | default     | meaning                                                                      |
    |---------------------|-------------|------------------------------------------------------------------------------|
    | capture             |             | which tables of which database                                               |
    | path                | silver/cdc  | folder of the tables, below the lake                                         |
    | stored_as           | `Mirror()`  | how each table is stored: `Mirror`, `History` or `ChangeLog`                 |
    | dropped_columns     | keep        | `keep` or `drop` a column that the source dropped                            |
    | maintenance         | 7 days      | when to compact small files, and to remove old files and tombstones          |
    | atomic_transactions | False       | apply complete transactions only, so that a reader never sees part of one    |
    | trigger             | 10 seconds  | a MERGE has a fixed cost of seconds; a shorter interval costs more           |
    | name                | cdc_PREFIX  | name of the flow; a second flow over the same capture needs another one      |
    """

    capture: Capture
    path: str = "silver/cdc"
    stored_as: StoredAs = field(default_factory=Mirror)
    dropped_columns: DroppedColumns = "keep"
    maintenance: CdcMaintenance = field(default_factory=CdcMaintenance)
    atomic_transactions: bool = False
    trigger: Trigger = field(default_factory=lambda: Every("10 seconds"))
    name: str | None = None


def mirror(settings: CdcSettings) -> Flow:
    """Return the flow that applies the changes of a captured database to Delta tables.

    Topics of tables that are created later are read when they appear. Records that are not envelopes go to quarantine.
    """
    capture = settings.capture
    # Only a change log stores the row before a change. Decoding it costs time.
    log = isinstance(settings.stored_as, ChangeLog)
    decoder = partial(change_decoder, before=log, cleared=not log)
    changed = Input(
        KafkaSource(TopicPattern(capture.topics)),
        schema=ENVELOPE,
        metadata_columns=_RECORD_COLUMNS,
        null_values="skip",
        max_bytes=_ANY_SIZE,
    )
    ends = Input(
        KafkaSource(TopicPattern(re.escape(capture.transactions))), schema=TRANSACTION, metadata_columns=_RECORD_COLUMNS
    )
    return Flow(
        name=settings.name or f"cdc_{capture.prefix}",
        inputs={"changes": changed, "transactions": ends} if settings.atomic_transactions else changed,
        transform=_with_transactions if settings.atomic_transactions else _pass_through,
        sink=DeltaCdc(
            settings.path,
            partial(_table_of, capture),
            decoder,
            settings.stored_as,
            capture,
            settings.dropped_columns,
            settings.maintenance,
            settings.atomic_transactions,
            has_ambiguous_unit,
        ),
        trigger=settings.trigger,
        description=f"Mirrors of the tables of '{capture.database}' under {settings.path}.",
    )


def _with_transactions(changes: DataFrame, transactions: DataFrame) -> DataFrame:
    """Add the transaction metadata to the changes: the sink needs it to find the complete transactions of a batch."""
    return changes.unionByName(transactions, allowMissingColumns=True)


def _pass_through(rows: DataFrame) -> DataFrame:
    """Return the envelopes unchanged: the sink decodes them, because it knows their tables."""
    return rows


def _table_of(capture: Capture, topic: str, target: Target) -> SourceTable | SkippedTable:
    """Return the current source table of a topic, or why it is skipped. Raises HR-115."""
    database = database_of(target, capture.database)
    for table in read_tables(database, capture.selection):
        if capture.topic(table) == topic:
            return table
    exists = any(capture.topic(table) == topic for table in read_tables(database, TableSelection(pattern=r"(?s).*")))
    if exists or not capture.selection.includes(*topic.split(".")[-2:]):
        return SkippedTable(topic, "The capture does not select the table of these changes.")
    return SkippedTable(
        topic,
        "Their table is no longer in the source, or its user cannot see it, and it was never written here.",
        DataError(
            f"The topic '{topic}' has changes of a table that is not in the source.",
            why="The table was dropped or renamed after these changes, or its user can no longer see it.",
            state="Nothing of the batch was written.",
            remedy=f"Make the table visible to the user of database '{capture.database}', or exclude it from "
            "`tables` of the capture: its changes are then skipped.",
            code="HR-547",
        ),
    )
