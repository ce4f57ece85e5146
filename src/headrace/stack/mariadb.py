"""A MariaDB server for one machine, with a row-based binlog: for tests of databases with a binlog.

The server is the system's own package: there is no wheel with it. What the package set up on the machine is left alone:
no file of its settings is read, and everything is in the part's own folder. On the loopback only, with a password.
"""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import pymysql

from headrace.errors import HeadraceError, StackError
from headrace.flow.target import Database
from headrace.stack import errors, ports
from headrace.stack.part import LocalService, PartFiles, StartContext, run_program
from headrace.stack.unprivileged import make_data_folder, read_password, unprivileged_prefix, write_new_password

FIRST_PORTS = {"mariadb": 3306}

# The role that owns the server, and its database.
ROLE = "headrace"

# Written when a data folder is complete.
COMPLETE_MARKER = "headrace.made"

# Where packages install programs, besides the PATH.
FOLDERS = ("/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin", "/opt/homebrew/bin")

SETTINGS = f"""\
# Written by `headrace up` at every start: changes made here are lost.
[mariadbd]
datadir = "{{data}}"
bind_address = {ports.LOOPBACK}
port = {{port}}
skip_name_resolve = on
# Relative to the data folder: an absolute path is often longer than the limit for sockets.
socket = s
pid_file = mariadbd.pid

# Needed for change data capture: complete rows with column names, without expiry.
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

# Removes the accounts without a password that the installation creates.
ACCOUNTS = f"""\
DELETE FROM mysql.global_priv WHERE User <> 'mariadb.sys';
FLUSH PRIVILEGES;
CREATE DATABASE {ROLE} CHARACTER SET utf8mb4;
CREATE USER '{ROLE}'@'{ports.LOOPBACK}' IDENTIFIED BY '{{password}}';
GRANT ALL PRIVILEGES ON *.* TO '{ROLE}'@'{ports.LOOPBACK}' WITH GRANT OPTION;
"""  # noqa: S608 - names and an address of this module, and a password that was made here


@dataclass(frozen=True)
class MariaDbPart(LocalService):
    """The database as a part of the local stack."""

    name: str = "mariadb"
    # A second on two idle cores; a minute and a half is for a laptop that recovers after a crash.
    startup_timeout_seconds: float = 90.0

    def prepare(self, files: PartFiles, context: StartContext) -> list[str]:
        """Choose a port, write the settings, create the data folder if it is new, return the command."""
        server, user = find_program("mariadbd"), unprivileged_prefix()
        if not (files.data / COMPLETE_MARKER).is_file():
            _create_data_folder(files, server, user)
        read_password(files)
        chosen_ports = ports.choose_ports(files.ports, self.name, FIRST_PORTS)
        settings = files.folder / "mariadb.cnf"
        settings.write_text(SETTINGS.format(data=files.data.resolve(), port=chosen_ports["mariadb"]))
        # The server refuses options that it does not know. This one is only of use to a replica, and takes any text.
        return [*user, str(server), f"--defaults-file={settings.resolve()}", f"--report-user={files.process_marker}"]

    def answers(self, files: PartFiles) -> bool:
        """Whether the server of this data folder answers a query."""
        port = self.port(files) or FIRST_PORTS["mariadb"]
        try:
            secret = read_password(files).reveal()
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
        return row is not None and Path(str(row[0])) == files.data.resolve()


def database(files: PartFiles) -> Database:
    """Return the connection of a local server. Raises HR-414 when its password is lost."""
    port = MariaDbPart().port(files) or FIRST_PORTS["mariadb"]
    return Database(f"jdbc:mariadb://{ports.LOOPBACK}:{port}/{ROLE}", ROLE, read_password(files))


def find_program(name: str) -> Path:
    """Return the path of a MariaDB program. Raises HR-416 if it is not installed."""
    search_path = os.pathsep.join((os.environ.get("PATH", ""), *FOLDERS))
    executable = shutil.which(name, path=search_path)
    if executable is None:
        raise StackError(
            "MariaDB is not installed on this machine.",
            why="Its server comes with the system's packages, not with Headrace. "
            f"Looked at: `{name}` on the PATH and in {', '.join(FOLDERS)}.",
            state="Nothing was started and nothing was written.",
            remedy="Install it: `apt-get install mariadb-server` on Debian and Ubuntu, `brew install mariadb` on "
            "macOS.",
            code="HR-416",
        )
    return Path(executable)


def _create_data_folder(files: PartFiles, server: Path, user: list[str]) -> None:
    """Create a new data folder and move it into place in one step, so that a partial one is never used."""
    installer = find_program("mariadb-install-db")
    forming = make_data_folder(files)
    secret = write_new_password(files)
    _, output = run_program(
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
        raise errors.start_failed("The creation of MariaDB's data folder", forming, output)
    bootstrap = [*user, str(server), "--no-defaults", f"--datadir={forming.resolve()}", "--bootstrap"]
    accounts = "FLUSH PRIVILEGES;\n" + ACCOUNTS.format(password=secret.read_text().strip())
    _, output = run_program([*bootstrap, "--innodb-use-native-aio=off"], accounts)
    if not (forming / ROLE).is_dir():
        raise errors.start_failed("The creation of MariaDB's accounts", forming, output)
    (forming / COMPLETE_MARKER).touch()
    forming.replace(files.data)
