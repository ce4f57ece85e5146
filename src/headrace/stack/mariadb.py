"""A MariaDB server for one machine, with a row-based binlog: it stands for the databases with a binlog.

The server is the system's own package: there is no wheel with it. What the package set up on the machine is left alone:
no file of its settings is read, and everything lies in the part's own folder. On the loopback only, with a password.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pymysql

from headrace.errors import HeadraceError
from headrace.flow.target import Database
from headrace.stack import errors, ports
from headrace.stack.part import Means, Place
from headrace.stack.unprivileged import make_folder, new_password, password, without_root

FIRST_PORTS = {"mariadb": 3306}

# The role that owns the server, and its database.
ROLE = "headrace"

# Written at the end of the making of a data folder.
MADE = "headrace.made"

# Where packages put programs, besides the PATH of an ordinary user.
FOLDERS = ("/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin", "/opt/homebrew/bin")

SETTINGS = f"""\
# Written by `headrace up` at every start: changes made here are lost.
[mariadbd]
datadir = "{{data}}"
bind_address = {ports.LOOPBACK}
port = {{port}}
skip_name_resolve = on
# A path of its own within the data folder: a full one is often longer than a socket's name may be.
socket = s
pid_file = mariadbd.pid

# Change data capture stands on it: whole rows, with the names of their columns, until somebody removes them.
server_id = 1
log_bin = binlog
binlog_format = ROW
binlog_row_image = FULL
binlog_row_metadata = FULL
expire_logs_days = 0

# A commit that was answered survives the machine, in the tables and in the binlog.
innodb_flush_log_at_trx_commit = 1
sync_binlog = 1

character_set_server = utf8mb4
default_time_zone = "+00:00"

# Small: it shares the machine with a broker and Spark.
innodb_buffer_pool_size = 64M
performance_schema = off
innodb_use_native_aio = off

# To standard error, which is the part's log file. Warnings only.
log_warnings = 1
general_log = off
slow_query_log = off
"""

# Accounts that the making left open are closed: who knows the password comes in, and nobody else.
ACCOUNTS = f"""\
DELETE FROM mysql.global_priv WHERE User <> 'mariadb.sys';
FLUSH PRIVILEGES;
CREATE DATABASE {ROLE} CHARACTER SET utf8mb4;
CREATE USER '{ROLE}'@'{ports.LOOPBACK}' IDENTIFIED BY '{{password}}';
GRANT ALL PRIVILEGES ON *.* TO '{ROLE}'@'{ports.LOOPBACK}' WITH GRANT OPTION;
"""  # noqa: S608 - names and an address of this module, and a password that was made here


@dataclass(frozen=True)
class MariaDb:
    """The database as a part of the local stack."""

    name: str = "mariadb"
    confs: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    # A second on two idle cores; a minute and a half is for a laptop that recovers after a crash.
    patience: float = 90.0
    stop_signal: signal.Signals = signal.SIGTERM

    def prepare(self, place: Place, means: Means) -> list[str]:
        """Choose a port, write the settings, make the data folder if it is new, return the command."""
        server, user = program("mariadbd"), without_root()
        if not (place.data / MADE).is_file():
            _format(place, server, user)
        password(place)
        chosen = ports.choose(place.folder / "ports.json", self.name, FIRST_PORTS)
        settings = place.folder / "mariadb.cnf"
        settings.write_text(SETTINGS.format(data=place.data.resolve(), port=chosen["mariadb"]))
        # The server refuses options that it does not know. This one is only of use to a replica, and takes any text.
        return [*user, str(server), f"--defaults-file={settings.resolve()}", f"--report-user={place.mark}"]

    def address(self, place: Place) -> str:
        """Return host and port, or an empty string before the first start."""
        port = ports.remembered(place.folder / "ports.json").get("mariadb")
        return f"{ports.LOOPBACK}:{port}" if port else ""

    def healthy(self, place: Place) -> bool:
        """Whether a query is answered, by the server whose data lies in this place."""
        port = ports.remembered(place.folder / "ports.json").get("mariadb")
        if port is None or ports.is_free(port):
            return False
        try:
            secret = password(place).reveal()
            with (
                pymysql.connect(
                    host=ports.LOOPBACK, port=port, user=ROLE, password=secret, connect_timeout=3, read_timeout=3
                ) as connection,
                connection.cursor() as cursor,
            ):
                cursor.execute("SELECT @@datadir")
                row = cursor.fetchone()
        except (HeadraceError, pymysql.Error):
            return False
        return row is not None and Path(str(row[0])) == place.data.resolve()


def database(place: Place) -> Database:
    """Return how to reach the server of a place. Raises HR-414 when its password is lost."""
    port = ports.remembered(place.folder / "ports.json").get("mariadb", FIRST_PORTS["mariadb"])
    return Database(f"jdbc:mariadb://{ports.LOOPBACK}:{port}/{ROLE}", ROLE, password(place))


def program(name: str) -> Path:
    """Return a program of MariaDB, on the PATH or where packages put it. Raises HR-416 where there is none."""
    looked = os.pathsep.join((os.environ.get("PATH", ""), *FOLDERS))
    found = shutil.which(name, path=looked)
    if found is None:
        raise errors.no_mariadb(f"`{name}` on the PATH and in {', '.join(FOLDERS)}")
    return Path(found)


def _format(place: Place, server: Path, user: list[str]) -> None:
    """Make a new data folder beside its place and move it there, so that a half-made one is never used."""
    installer = program("mariadb-install-db")
    forming = make_folder(place)
    secret = new_password(place)
    said = _done(
        [
            *user,
            str(installer),
            "--no-defaults",
            f"--datadir={forming.resolve()}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            "--skip-name-resolve",
            "--innodb-use-native-aio=off",
        ]
    )
    if not (forming / "mysql").is_dir():
        raise errors.died("The making of MariaDB's data folder", forming, said)
    bootstrap = [*user, str(server), "--no-defaults", f"--datadir={forming.resolve()}", "--bootstrap"]
    accounts = "FLUSH PRIVILEGES;\n" + ACCOUNTS.format(password=secret.read_text().strip())
    said = _done([*bootstrap, "--innodb-use-native-aio=off"], accounts)
    if not (forming / ROLE).is_dir():
        raise errors.died("The making of MariaDB's accounts", forming, said)
    (forming / MADE).touch()
    forming.replace(place.data)


def _done(command: list[str], told: str = "") -> list[str]:
    """Run a program of MariaDB to its end and return the last lines it said; the caller looks at what it made."""
    done = subprocess.run(command, input=told, capture_output=True, text=True, check=False)  # noqa: S603
    return (done.stdout + done.stderr).splitlines()[-10:]
