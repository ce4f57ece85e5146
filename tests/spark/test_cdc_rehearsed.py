"""The mirror of a captured table as declared, rehearsed without a database, a connector and a broker.

A rehearsal gives every record of an input the same topic, the name of the input. So one captured table is played here.
Several tables in one flow are played in `test_delta_cdc` and `tests/stack/test_cdc`.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from headrace.cdc.capture.declaration import Capture
from headrace.cdc.capture.source_table import SourceColumn, SourceTable
from headrace.cdc.flows import CdcSettings, mirror
from headrace.cdc.sink import DeltaCdc
from headrace.testing import Arrive, Crash, Keyed, Point, rehearse

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import Row, SparkSession

    from headrace.flow.flow import Flow

pytestmark = pytest.mark.spark

CAPTURE = Capture("shop", ("public.orders",))
ORDERS = SourceTable(
    "public",
    "orders",
    (
        SourceColumn("id", "bigint", nullable=False),
        SourceColumn("status", "text", nullable=True),
        SourceColumn("total", "numeric(12,2)", nullable=True),
    ),
    ("id",),
    "postgres",
)


def sink_of(flow: Flow) -> DeltaCdc:
    """Return the sink of a mirror, with a catalogue that needs no database."""
    assert isinstance(flow.sink, DeltaCdc)
    return replace(flow.sink, find_table=lambda _topic, _target: ORDERS)


def change(op: str, position: int, key: int, status: str = "", total: str = "1.00", *, transaction: int = 0) -> Keyed:
    """Return a record as Debezium writes it: the key, and an envelope with the place in the log."""
    row = {"id": key, "status": status, "total": total}
    envelope = {
        "before": {"id": key} if op == "d" else None,
        "after": None if op == "d" else row,
        "op": op,
        "source": {
            "ts_ms": 1_700_000_000_000 + position,
            "snapshot": "true" if op == "r" else "false",
            "lsn": position,
        },
        "transaction": {"id": f"{transaction}:{position}"} if transaction else None,
    }
    return Keyed(json.dumps({"id": key}), envelope)


def end(transaction: int, changes: int) -> Keyed:
    """Return the record of the connector at the end of a transaction."""
    counts = [{"data_collection": "public.orders", "event_count": changes}]
    name = f"{transaction}:{transaction}00"
    return Keyed(
        json.dumps({"id": name}),
        {"status": "END", "id": name, "ts_ms": 1, "event_count": changes, "data_collections": counts},
    )


def shown(rows: list[Row]) -> list[tuple[int, str, str]]:
    return sorted((row.id, row.status, str(row.total)) for row in rows)


def test_the_mirror_equals_the_table_after_old_changes_come_again_and_a_crash(spark: SparkSession, tmp_path: Path):
    flow = mirror(CdcSettings(CAPTURE))
    rehearsal = rehearse(
        flow,
        [
            Arrive(change("r", 100, 1, "new", "10.00"), change("r", 100, 2, "new", "20.00")),
            Arrive(
                change("u", 110, 1, "paid", "10.50"),
                change("d", 120, 2),
                Keyed('{"id": 2}', None),  # Kafka's tombstone has no content
                change("c", 130, 3, "new", "30.00"),
                change("u", 140, 3, "sent", "30.00"),
                Keyed('{"id": 9}', '{"op": "torn'),
                Keyed('{"id": 9}', {"after": {"id": 9}}),
            ),
            Crash(Point.AFTER_SINK),
            # The connector was restarted, and sends changes again that the mirror has, or has newer ones of.
            Arrive(change("u", 105, 1, "old", "0.00"), change("c", 115, 2, "old", "0.00"), change("c", 130, 3, "new")),
        ],
        spark=spark,
        folder=tmp_path,
        sink=sink_of(flow),
    )
    assert shown(rehearsal.table("silver/cdc/orders")) == [(1, "paid", "10.50"), (3, "sent", "30.00")]
    assert sorted(row.reason for row in rehearsal.quarantine) == ["malformed_json", "missing:op"]
    assert (rehearsal.late, rehearsal.restarts) == ([], 1)


def test_a_transaction_is_applied_when_its_last_change_is_there(spark: SparkSession, tmp_path: Path):
    flow = mirror(CdcSettings(CAPTURE, atomic_transactions=True))
    rehearsal = rehearse(
        flow,
        [
            Arrive(
                changes=[change("c", 100, 1, "a", transaction=7), change("c", 200, 2, "b", transaction=8)],
                transactions=[end(7, 1)],
            ),
            # Transaction 8 has two changes. The end of 9 is not there yet.
            Arrive(
                changes=[change("u", 210, 1, "b", transaction=8), change("u", 300, 1, "c", transaction=9)],
                transactions=[end(8, 2)],
            ),
        ],
        spark=spark,
        folder=tmp_path,
        sink=sink_of(flow),
    )
    assert shown(rehearsal.table("silver/cdc/orders")) == [(1, "b", "1.00"), (2, "b", "1.00")]
