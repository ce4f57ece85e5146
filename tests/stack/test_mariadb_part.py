"""The local MariaDB as a part of the stack: found, killed, retained, and closed to everybody without its password."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import psutil
import pymysql
import pytest

from headrace.cdc.capture.lifecycle import require_binlog_position
from headrace.errors import DataError, StackError
from headrace.flow.target import Database
from headrace.stack import mariadb as part
from headrace.stack.local import LocalStack

pytestmark = pytest.mark.stack


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A home whose parts are stopped when the test is over, whatever happened in it."""
    if os.environ.get("HEADRACE_NO_MARIADB") == "1":
        pytest.skip("HEADRACE_NO_MARIADB=1")
    yield tmp_path / "home"
    LocalStack(tmp_path / "home").wipe()


def asked(where: Database, *queries: str, user: str = part.ROLE, password: str | None = None) -> object:
    host, _, rest = where.url.removeprefix("jdbc:mariadb://").partition(":")
    secret = where.password.reveal() if password is None and where.password else password or ""
    with pymysql.connect(host=host, port=int(rest.split("/")[0]), user=user, password=secret, autocommit=True) as link:
        cursor = link.cursor()
        for query in queries:
            cursor.execute(query)
        row = cursor.fetchone()
    return row[0] if row else None


def test_a_killed_server_restarts_with_every_commit_and_a_binlog_of_full_rows(home: Path):
    stack = LocalStack(home)
    stack.up(["mariadb"])
    where = part.database(stack.files("mariadb"))
    # Nothing is in its binlog yet, and a connector could not begin there.
    with pytest.raises(DataError) as refused:
        require_binlog_position(where)
    assert refused.value.code == "HR-528"
    asked(where, "CREATE TABLE headrace.kept (id int PRIMARY KEY)", "INSERT INTO headrace.kept VALUES (42)")
    require_binlog_position(where)
    before = next(item for item in stack.ps() if item.name == "mariadb")
    assert before.pid is not None
    server = psutil.Process(before.pid)
    assert not any(uid == 0 for uid in server.uids())
    server.kill()
    server.wait(timeout=30)
    assert next(item for item in stack.ps() if item.name == "mariadb").state == "crashed"
    stack.up(["mariadb"])
    assert part.database(stack.files("mariadb")).url == where.url
    assert asked(where, "SELECT id FROM headrace.kept") == 42
    assert asked(where, "SELECT concat_ws(' ', @@binlog_format, @@binlog_row_image, @@log_bin)") == "ROW FULL ON"
    assert (
        asked(where, "SELECT @@character_set_database", "USE headrace", "SELECT @@character_set_database") == "utf8mb4"
    )
    assert stat.S_IMODE((home / "stack" / "mariadb" / "password").stat().st_mode) == 0o600
    for user in ("root", part.ROLE):
        with pytest.raises(pymysql.err.OperationalError, match=r"Access denied|not allowed"):
            asked(where, "SELECT 1", user=user, password="")
    assert stack.down() == ("mariadb",)


def test_without_the_package_it_is_hr_416_and_nothing_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(part, "FOLDERS", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StackError, match="mariadb-server") as refused:
        part.find_program("mariadbd")
    assert refused.value.code == "HR-416"
