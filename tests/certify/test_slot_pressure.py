"""A slot that nobody reads: the log that the server keeps for it, and what the guard says until the server gives up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner

from headrace.cdc.capture.declaration import Capture
from headrace.cdc.capture.health import check_capture
from headrace.cli.main import app
from headrace.cli.operations import capture as cli
from headrace.clients.kafka_connect import ConnectorStatus
from headrace.clients.postgres import connect
from headrace.errors import DataError
from headrace.flow.target import Database

pytestmark = pytest.mark.stack

SHOP = Capture("shop", ("public.slot_orders",), prefix="pressed", retained_max=8_000_000)
FLOWS = """
from headrace.cdc.capture.declaration import Capture
from headrace.cdc.flows import CdcSettings, mirror

pressed = mirror(CdcSettings(Capture("shop", ("public.slot_orders",), prefix="pressed", retained_max=8_000_000)))
"""


class Stopped:
    """Kafka Connect whose connector saved a position and reads no more: the one part that is not real here."""

    def __init__(self, saved: int) -> None:
        self._saved = saved

    def position(self, _connector: str) -> dict[str, object]:
        return {"lsn_commit": self._saved, "lsn_proc": self._saved, "lsn": self._saved}

    def status(self, _connector: str) -> ConnectorStatus:
        return ConnectorStatus("RUNNING", 1)


@pytest.fixture
def pressed(postgres: Database) -> Iterator[psycopg.Connection]:
    """A connection to a server with a slot of the capture; settings and slot are removed afterwards."""
    with connect(postgres) as link:
        link.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (SHOP.slot,))
        try:
            yield link
        finally:
            link.execute("ALTER SYSTEM RESET max_slot_wal_keep_size")
            link.execute("SELECT pg_reload_conf()")
            link.execute("SELECT pg_drop_replication_slot(%s)", (SHOP.slot,))


def write_log(link: psycopg.Connection, segments: int) -> None:
    """Fill so many segments of the log, 16 MB each."""
    for _ in range(segments):
        link.execute("SELECT pg_logical_emit_message(false, 'filler', repeat('x', 1000000))")
        link.execute("SELECT pg_switch_wal()")


def confirmed(link: psycopg.Connection) -> int:
    """Return the position of the slot."""
    row = link.execute(
        "SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE slot_name = %s", (SHOP.slot,)
    ).fetchone()
    assert row is not None
    return int(row[0])


def test_a_slot_that_was_moved_past_what_is_captured_is_a_gap(pressed: psycopg.Connection, postgres: Database):
    worker = Stopped(confirmed(pressed))
    assert check_capture(SHOP, postgres, worker).position is not None

    pressed.execute("SELECT pg_logical_emit_message(true, 'missed', 'a change that nobody captured')")
    pressed.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", (SHOP.slot,))

    with pytest.raises(DataError, match="somebody advanced the slot") as lost:
        check_capture(SHOP, postgres, worker)
    assert lost.value.code == "HR-522"
    assert "snapshot again" in lost.value.remedy


def test_retained_log_is_reported_then_alarmed_and_an_invalidated_slot_is_a_gap(
    pressed: psycopg.Connection, postgres: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    worker = Stopped(confirmed(pressed))
    monkeypatch.setattr(cli, "ConnectClient", lambda _url: worker)
    monkeypatch.setattr(cli, "database_of", lambda *_: postgres)
    (tmp_path / "headrace.yml").write_text("name: shop\n")
    (tmp_path / "flows.py").write_text(FLOWS)
    words = ["capture", "status", "--project", str(tmp_path), "--connect", "http://127.0.0.1:1", "--json"]

    calm = check_capture(SHOP, postgres, worker)
    assert calm.warning == ""
    assert calm.retained_bytes is not None
    assert calm.retained_bytes < SHOP.retained_max
    assert CliRunner().invoke(app, words).exit_code == 0

    # More than the declared limit.
    write_log(pressed, 2)
    full = check_capture(SHOP, postgres, worker)
    assert full.retained_bytes is not None
    assert full.retained_bytes > SHOP.retained_max
    assert SHOP.slot in full.warning
    events = CliRunner().invoke(app, words)
    assert events.exit_code == 1, (events.output, events.exception)
    assert '"ok": false' in events.output

    # More than the server is willing to keep: it may go any moment, and with the next checkpoint it goes.
    pressed.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '16MB'")
    pressed.execute("SELECT pg_reload_conf()")
    write_log(pressed, 4)
    assert "any moment" in check_capture(replace(SHOP, retained_max=10**12), postgres, worker).warning
    pressed.execute("CHECKPOINT")
    with pytest.raises(DataError, match="invalidated") as lost:
        check_capture(SHOP, postgres, worker)
    assert lost.value.code == "HR-522"
    assert "snapshot again" in lost.value.remedy
