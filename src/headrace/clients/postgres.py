"""The Postgres client: connections, and the mapping of their errors. Does not use Spark."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, urlsplit

import psycopg
from psycopg.conninfo import make_conninfo

from headrace.errors import ConfigError, HeadraceError, ServiceUnavailable, did_you_mean
from headrace.flow.target import Database, Target

_SCHEME = "jdbc:postgresql:"
_EXAMPLE = "jdbc:postgresql://db.example.org:5432/shop"

# The timeout to connect.
_ANSWER_WITHIN_SECONDS = 10

# URL options with the same meaning in the JDBC driver and in libpq.
_OPTIONS = ("sslmode", "sslrootcert")

# Prefixes of transient SQL states: a broken connection, a server that starts, stops or cancels, exhausted resources, a
# serialization failure or deadlock, a lock timeout.
_TRANSIENT_STATES = ("08", "57", "53", "40", "55P03", "25P03", "58")

# A refused connection has no SQL state; these are parts of its messages.
_REFUSALS = (
    "authentication failed",
    "does not exist",
    "no pg_hba.conf entry",
    "permission denied",
    "no password supplied",
)


@dataclass(frozen=True)
class DatabaseAddress:
    """A parsed JDBC URL."""

    host: str
    port: int
    database: str
    options: dict[str, str]

    def __str__(self) -> str:
        return f"{self.host}:{self.port}/{self.database}"


def database_of(target: Target, name: str) -> Database:
    """Return a database of a target by name; raise HR-115 if it is not declared."""
    if name not in target.databases:
        names = ", ".join(target.databases) or "none"
        raise ConfigError(
            f"Target '{target.name}' does not say where the database '{name}' is.",
            why=f"The databases it names: {names}.{did_you_mean(name, target.databases)} One whose url is `local` or "
            "`local:mariadb` counts only while that part runs.",
            remedy=f"Run `headrace up --with postgres`, or `--with mariadb`; or set databases.{name} of the target in "
            "headrace.yml.",
            code="HR-115",
        )
    return target.databases[name]


def address(database: Database) -> DatabaseAddress:
    """Parse a JDBC URL; raise HR-120 if it is invalid."""
    if not database.url.startswith(_SCHEME):
        # Never print the URL: it may contain a login.
        raise wrong_url(
            f"It does not begin with {_SCHEME}//. Postgres is the only database that Headrace can write.", _EXAMPLE
        )
    return parse_url(database.url, 5432, _OPTIONS, _EXAMPLE)


def parse_url(url: str, port: int, allowed_options: Sequence[str], example: str) -> DatabaseAddress:
    """Parse the JDBC URL of a database of any family, with its default port; raise HR-120 if it is invalid."""
    try:
        parts = urlsplit(url.removeprefix("jdbc:"))
        port = parts.port or port
    except ValueError as error:
        raise wrong_url("It has to name one host, with a port or without one.", example) from error
    if parts.username is not None or parts.password is not None:
        why = "It contains a login, and addresses are printed. `user` and `password` are separate keys."
        raise wrong_url(why, example)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    for option in options:
        if option not in allowed_options:
            option_names = " and ".join(allowed_options) or "none"
            raise wrong_url(f"It has the option '{option}', and the known ones are: {option_names}.", example)
    name = unquote(parts.path.removeprefix("/"))
    if not parts.hostname or not name or "/" in name:
        raise wrong_url("It has to name a host and a database.", example)
    return DatabaseAddress(parts.hostname, port, name, options)


def connect(database: Database, application: str = "headrace") -> psycopg.Connection:
    """Open a connection in autocommit mode, with explicit transactions.

    Raises HR-606 (transient) if the server does not answer, and HR-116 if it refuses the login.
    """
    where = address(database)
    try:
        return psycopg.connect(
            make_conninfo(**where.options),
            host=where.host,
            port=where.port,
            dbname=where.database,
            user=database.user,
            password=database.password.reveal() if database.password is not None else None,
            application_name=application,
            connect_timeout=_ANSWER_WITHIN_SECONDS,
            # Detects a dead server within a minute, also on an idle connection.
            keepalives_idle=30,
            keepalives_interval=10,
            keepalives_count=3,
            autocommit=True,
        )
    except psycopg.Error as error:
        raise _connection_error(where, database.user, error) from error


@contextmanager
def session(database: Database) -> Iterator[psycopg.Connection]:
    """Open a connection for read-only queries and close it at the end. Raises as `connect` does, also later."""
    connection = connect(database)
    try:
        yield connection
    except psycopg.Error as error:
        raise _connection_error(address(database), database.user, error) from error
    finally:
        connection.close()


def is_transient(error: psycopg.Error) -> bool:
    """Whether a retry may succeed. Without a SQL state, the connection broke."""
    state = error.sqlstate
    return (
        isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        if state is None
        else state.startswith(_TRANSIENT_STATES)
    )


def error_message(error: psycopg.Error) -> str:
    """Return the primary message of a Postgres error, without the detail, which quotes rows."""
    text = error.diag.message_primary or next(iter(str(error).strip().splitlines()), "") or type(error).__name__
    return text.rstrip(".")


def _connection_error(where: DatabaseAddress, user: str, error: psycopg.Error) -> HeadraceError:
    text = error_message(error)
    if is_transient(error) and not any(word in text for word in _REFUSALS):
        return ServiceUnavailable(
            f"Postgres at {where} does not answer.",
            why=f"The client says: {text}.",
            state="Nothing was written.",
            remedy="Start the server (`headrace up --with postgres` for the local one), or correct the url.",
            code="HR-606",
        )
    return ConfigError(
        f"Postgres at {where} refuses the role '{user}'.",
        why=f"It says: {text}.",
        remedy="Correct url, user and password of the database in headrace.yml, or grant the role its rights.",
        code="HR-116",
    )


def wrong_url(why: str, example: str) -> ConfigError:
    """Return HR-120 for the url of a database of any family."""
    return ConfigError(
        "The url of a database cannot be used.",
        why=why,
        remedy=f"Correct `url` of the database in headrace.yml, such as {example}.",
        code="HR-120",
    )
