"""The tables of a captured database as mirrors in the lake: one declaration, one flow, a mirror per table."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from headrace.cdc.apply.change_log import ChangeLog
from headrace.cdc.apply.maintenance import Upkeep
from headrace.cdc.apply.mirror import Mirror
from headrace.cdc.apply.schema_evolution import Dropped
from headrace.cdc.apply.skipped import NotKept
from headrace.cdc.capture.catalogue import read_tables
from headrace.cdc.capture.declaration import Capture, Tables
from headrace.cdc.capture.source_table import SourceTable
from headrace.cdc.decode.envelope import ENVELOPE, TRANSACTION, changes, doubted
from headrace.cdc.sink import DeltaCdc, Kept
from headrace.clients.postgres import database_of
from headrace.errors import DataError
from headrace.flow.flow import Flow
from headrace.flow.inputs import Input
from headrace.flow.levers import Every, Trigger
from headrace.flow.target import Target
from headrace.sources.kafka.source import KafkaSource
from headrace.sources.kafka.topics import TopicPattern

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_KEPT = ("topic", "partition", "offset", "key")
# No record is larger, and the broker has a bound of its own. A change that was set aside would leave its mirror
# unequal: later ones do not tell a large value again, and what is driven again later counts as older than they.
_ANY_SIZE = 2**31 - 1


@dataclass(frozen=True)
class CdcSettings:
    """How the changes of a database are mirrored.

    | field     | default      | meaning                                                                            |
    |-----------|--------------|------------------------------------------------------------------------------------|
    | capture   |              | which tables of which database                                                     |
    | path      | silver/cdc   | the folder of the mirrors, below the lake                                          |
    | keep      | a mirror     | what is kept of each table: `Mirror`, `History` or `ChangeLog`                     |
    | dropped   | keep         | whether a column that the source dropped stays or goes (`drop`)                    |
    | upkeep    | 7 days kept  | when small files are joined, and old files and tombstones removed                  |
    | together  | False        | apply whole transactions only, so that a reader never sees a part of one           |
    | trigger   | 10 seconds   | a MERGE has a fixed cost of seconds; more often is dearer, and hardly fresher      |
    | name      | cdc_PREFIX   | of the flow: a second one over the same capture needs another                      |
    """

    capture: Capture
    path: str = "silver/cdc"
    keep: Kept = field(default_factory=Mirror)
    dropped: Dropped = "keep"
    upkeep: Upkeep = field(default_factory=Upkeep)
    together: bool = False
    trigger: Trigger = field(default_factory=lambda: Every("10 seconds"))
    name: str | None = None


def mirror(settings: CdcSettings) -> Flow:
    """Return the flow that keeps the mirrors of a captured database equal to their tables.

    Topics of tables that are made later are read when they appear. A record that is no envelope is set aside.
    """
    capture = settings.capture

    def lookup(topic: str, target: Target) -> SourceTable | NotKept:
        return _table_of(capture, topic, target)

    # Only a log tells the row before a change: reading it twice costs.
    log = isinstance(settings.keep, ChangeLog)
    decode = partial(changes, before=log, cleared=not log)
    changed = Input(
        KafkaSource(TopicPattern(capture.topics)),
        schema=ENVELOPE,
        keep=_KEPT,
        null_values="skip",
        max_bytes=_ANY_SIZE,
    )
    ends = Input(KafkaSource(TopicPattern(re.escape(capture.transactions))), schema=TRANSACTION, keep=_KEPT)
    return Flow(
        name=settings.name or f"cdc_{capture.prefix}",
        inputs={"changes": changed, "transactions": ends} if settings.together else changed,
        transform=_with_transactions if settings.together else _as_they_are,
        sink=DeltaCdc(
            settings.path,
            lookup,
            decode,
            settings.keep,
            capture,
            settings.dropped,
            settings.upkeep,
            settings.together,
            doubted,
        ),
        trigger=settings.trigger,
        description=f"Mirrors of the tables of '{capture.database}' under {settings.path}.",
    )


def _with_transactions(changes: DataFrame, transactions: DataFrame) -> DataFrame:
    """Put the ends of transactions beside the changes: a batch says by them which transactions are whole."""
    return changes.unionByName(transactions, allowMissingColumns=True)


def _as_they_are(rows: DataFrame) -> DataFrame:
    """Hand every envelope on: what a change means depends on its table, which the sink knows."""
    return rows


def _table_of(capture: Capture, topic: str, target: Target) -> SourceTable | NotKept:
    """Return the table of a topic as the source has it now, or why nothing is kept of it. Raises HR-115."""
    database = database_of(target, capture.database)
    for table in read_tables(database, capture.chosen):
        if capture.topic(table) == topic:
            return table
    there = any(capture.topic(table) == topic for table in read_tables(database, Tables(pattern=r"(?s).*")))
    if there or not capture.chosen.holds(*topic.split(".")[-2:]):
        return NotKept(topic, "The capture does not choose the table of these changes.")
    return NotKept(
        topic,
        "Their table is not in the source any more, or its user may not see it, and nothing of it was kept before.",
        DataError(
            f"The topic '{topic}' holds changes of a table that is not in the source.",
            why="The table was dropped or renamed after these changes, or its user may not see it any more.",
            state="Nothing of the batch was written.",
            remedy=f"Make the table visible to the user of database '{capture.database}', or choose `tables` of the "
            "capture so that it is left out: its changes are then passed over.",
            code="HR-547",
        ),
    )
