"""The local Postgres as a part of the stack: started, adopted, killed, moved, retained and wiped."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import psycopg
import pytest

from headrace.clients.postgres import connect
from headrace.errors import ConfigError, ServiceUnavailable, StackError
from headrace.flow.secret import Secret
from headrace.flow.target import Database
from headrace.stack import ports, postgres as part, unprivileged
from headrace.stack.local import LocalStack
from headrace.stack.postgres import database

pytestmark = pytest.mark.stack

UP_THEN_CRASH = """
import os, pathlib, signal, sys
from headrace.stack.local import LocalStack
LocalStack(pathlib.Path(sys.argv[1])).up(["postgres"])
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A home whose parts are stopped when the test is over, whatever happened in it."""
    yield tmp_path / "home"
    LocalStack(tmp_path / "home").wipe()


def up(home: Path) -> Database:
    stack = LocalStack(home)
    stack.up(["postgres"])
    return database(stack.files("postgres"))


def status(home: Path):
    return next(part for part in LocalStack(home).ps() if part.name == "postgres")


def asked(where: Database, query: str) -> object:
    with connect(where) as connection:
        row = connection.execute(query).fetchone()
    return row[0] if row else None


def kill(pid: int) -> None:
    process = psutil.Process(pid)
    process.kill()
    process.wait(timeout=30)


def test_a_killed_server_is_crashed_and_up_restarts_it_with_every_commit(home: Path):
    where = up(home)
    before = status(home)
    assert before.pid is not None
    with closing(connect(where)) as connection, closing(connect(where)) as busy:
        connection.execute("CREATE TABLE kept (id int)")
        connection.execute("INSERT INTO kept VALUES (1), (2)")
        # A child that computes does not notice that the server died: it would hold its memory for a minute.
        sleeper = busy.execute("SELECT pg_backend_pid()").fetchone()
        assert sleeper is not None
        busy.pgconn.send_query(b"SELECT count(*) FROM generate_series(1, 10000000000) x")
        orphan = psutil.Process(sleeper[0])
        kill(before.pid)
        assert (status(home).state, status(home).pid) == ("crashed", None)
        assert asked(up(home), "SELECT sum(id) FROM kept") == 3
        assert not orphan.is_running()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    assert status(home).pid != before.pid


def test_a_server_outlives_its_parents_crash_and_the_next_up_adopts_it(home: Path):
    crashed = subprocess.run([sys.executable, "-c", UP_THEN_CRASH, str(home)], check=False)
    assert crashed.returncode == -signal.SIGKILL
    before = status(home).pid
    assert LocalStack(home).up(["postgres"]).adopted == ("postgres",)
    # As if the parent had been killed between the start of the process and the writing of its record.
    (home / "stack" / "postgres" / "process.json").unlink()
    assert LocalStack(home).up(["postgres"]).adopted == ("postgres",)
    assert status(home).pid == before


def test_down_ends_open_transactions_retains_the_data_and_wipe_deletes_all(home: Path):
    stack = LocalStack(home)
    where = up(home)
    with closing(connect(where)) as connection:
        connection.execute("CREATE TABLE kept (id int)")
        connection.execute("BEGIN")
        connection.execute("INSERT INTO kept VALUES (7)")
        assert stack.down() == ("postgres",)
    assert status(home).state == "stopped"
    port = int(status(home).address.partition(":")[2])
    with socket.create_server((ports.LOOPBACK, port)):
        shifted = up(home)
        assert f":{port}/" not in shifted.url
        assert asked(shifted, "SELECT count(*) FROM kept") == 0
    assert stack.wipe() == ("postgres",)
    assert [path.name for path in (home / "stack").iterdir()] == ["lock"]
    assert [part.name for part in stack.ps()] == ["kafka"]


def test_it_listens_on_the_loopback_and_never_prints_the_password(postgres: Database):
    assert postgres.password is not None
    password, port = postgres.password.reveal(), int(postgres.url.rpartition(":")[2].partition("/")[0])
    file = Path(postgres.password.reference.removeprefix("${file:").removesuffix("}"))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert password not in repr(postgres)
    assert password not in file.with_name("postgres.log").read_text()
    assert password not in file.with_name("process.json").read_text()
    listening = {
        connection.laddr.ip
        for connection in psutil.net_connections("inet")
        if connection.status == "LISTEN" and connection.laddr.port == port
    }
    assert listening == {ports.LOOPBACK}
    for wrong in (Secret("x", "wrong"), None):
        with pytest.raises(ConfigError) as refused:
            connect(Database(postgres.url, postgres.user, wrong))
        assert refused.value.code == "HR-116"


def test_it_is_ready_for_change_data_capture_and_durable(postgres: Database):
    settings = {name: asked(postgres, f"SHOW {name}") for name in ("wal_level", "fsync", "TimeZone", "data_checksums")}
    assert settings == {"wal_level": "logical", "fsync": "on", "TimeZone": "UTC", "data_checksums": "on"}


def test_a_server_that_is_not_there_is_transient():
    with pytest.raises(ServiceUnavailable) as caught:
        connect(Database(f"jdbc:postgresql://{ports.LOOPBACK}:1/shop", "nobody"))
    assert caught.value.code == "HR-606"


def test_a_lost_password_is_hr_414_and_deletes_nothing(home: Path):
    up(home)
    LocalStack(home).down()
    password = home / "stack" / "postgres" / "password"
    password.chmod(0o644)
    with pytest.raises(StackError, match="Other users") as open_to_all:
        up(home)
    password.unlink()
    with pytest.raises(StackError) as lost:
        up(home)
    assert (open_to_all.value.code, lost.value.code) == ("HR-414", "HR-414")
    assert (home / "stack" / "postgres" / "data" / "PG_VERSION").exists()


def test_data_of_another_release_is_hr_415_and_unchanged(home: Path):
    data = home / "stack" / "postgres" / "data"
    data.mkdir(parents=True)
    (data / "PG_VERSION").write_text("16\n")
    with pytest.raises(StackError, match="PostgreSQL 16") as refused:
        LocalStack(home).up(["postgres"])
    assert refused.value.code == "HR-415"
    assert (data / "PG_VERSION").read_text() == "16\n"


def test_without_the_wheel_it_is_hr_412(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(part, "WHEEL", "no_such_wheel")
    with pytest.raises(StackError) as refused:
        LocalStack(home).up(["postgres"])
    assert refused.value.code == "HR-412"
    assert not (home / "stack" / "postgres" / "data").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user needs no way around root")
def test_root_without_setpriv_is_hr_413(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(StackError) as refused:
        unprivileged.unprivileged_prefix()
    assert refused.value.code == "HR-413"
