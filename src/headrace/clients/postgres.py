"""How Headrace itself, without Spark, talks to Postgres: connecting, and what its answers mean."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, urlsplit

import psycopg
from psycopg.conninfo import make_conninfo

from headrace.errors import ConfigError, HeadraceError, PartUnavailable, nearest
from headrace.flow.target import Database, Target

_SCHEME = "jdbc:postgresql:"
_PORT = 5432

# How long a start waits for a server that does not answer, before it says so.
_ANSWER_WITHIN_SECONDS = 10

# Options of a URL that the Java driver and libpq both know and understand in the same way.
_OPTIONS = ("sslmode", "sslrootcert")

# SQL states that a later attempt may not meet again, by their first characters: a connection that broke, a server that
# starts, stops or cancels, resources used up, a transaction that gave way, a lock that somebody else holds.
_PASSING = ("08", "57", "53", "40", "55P03", "25P03", "58")

# A refusal at the connection carries no SQL state; these are its words.
_REFUSALS = (
    "authentication failed",
    "does not exist",
    "no pg_hba.conf entry",
    "permission denied",
    "no password supplied",
)


@dataclass(frozen=True)
class Address:
    """A JDBC address in its parts."""

    host: str
    port: int
    database: str
    options: dict[str, str]

    def __str__(self) -> str:
        return f"{self.host}:{self.port}/{self.database}"


def database_of(target: Target, name: str) -> Database:
    """Return a database of a target by its name, or raise."""
    if name not in target.databases:
        known = ", ".join(target.databases) or "none"
        raise ConfigError(
            f"Target '{target.name}' does not say where the database '{name}' is.",
            why=f"The databases it names: {known}.{nearest(name, target.databases)} One whose url is `local` or "
            "`local:mariadb` counts only while that part runs.",
            state="Nothing was started.",
            remedy=f"Run `headrace up --with postgres`, or `--with mariadb`; or set databases.{name} of the target in "
            "headrace.yml.",
            code="HR-115",
        )
    return target.databases[name]


def address(database: Database) -> Address:
    """Take a JDBC address apart, or say what is wrong with it."""
    if not database.url.startswith(_SCHEME):
        # Never the whole text: a login may stand in it.
        raise _wrong_url(f"It does not begin with {_SCHEME}//. Postgres is the only database that Headrace can write.")
    try:
        parts = urlsplit(database.url.removeprefix("jdbc:"))
        port = parts.port or _PORT
    except ValueError as error:
        raise _wrong_url("It has to name one host, with a port or without one.") from error
    if parts.username is not None or parts.password is not None:
        raise _wrong_url(
            "A login stands in it, and addresses are printed. `user` and `password` are keys of their own."
        )
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    for option in options:
        if option not in _OPTIONS:
            raise _wrong_url(f"It has the option '{option}', and only {' and '.join(_OPTIONS)} are known.")
    name = unquote(parts.path.removeprefix("/"))
    if not parts.hostname or not name or "/" in name:
        raise _wrong_url("It has to name a host and a database: jdbc:postgresql://host:5432/database.")
    return Address(parts.hostname, port, name, options)


def connect(database: Database, application: str = "headrace") -> psycopg.Connection:
    """Open a connection in autocommit mode: transactions begin where the code says so.

    Raises HR-606, transient, for a server that does not answer, and HR-116 for one that refuses the login.
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
            # A server that vanished is noticed within a minute, also by a connection that only waits.
            keepalives_idle=30,
            keepalives_interval=10,
            keepalives_count=3,
            autocommit=True,
        )
    except psycopg.Error as error:
        raise _no_connection(where, database.user, error) from error


@contextmanager
def session(database: Database) -> Iterator[psycopg.Connection]:
    """Open a connection to look at a database, and close it. Raises as `connect` does, also for a later failure."""
    connection = connect(database)
    try:
        yield connection
    except psycopg.Error as error:
        raise _no_connection(address(database), database.user, error) from error
    finally:
        connection.close()


def is_passing(error: psycopg.Error) -> bool:
    """Whether the same statements may succeed later. Without a SQL state, the connection broke."""
    state = error.sqlstate
    return (
        isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        if state is None
        else state.startswith(_PASSING)
    )


def said(error: psycopg.Error) -> str:
    """Return what Postgres says, in one sentence, without the detail: that one quotes rows."""
    text = error.diag.message_primary or next(iter(str(error).strip().splitlines()), "") or type(error).__name__
    return text.rstrip(".")


def _no_connection(where: Address, user: str, error: psycopg.Error) -> HeadraceError:
    text = said(error)
    if is_passing(error) and not any(word in text for word in _REFUSALS):
        return PartUnavailable(
            f"Postgres at {where} does not answer.",
            why=f"The client says: {text}.",
            state="Nothing was written.",
            remedy="Start the server (`headrace up --with postgres` for the local one), or correct the url.",
            code="HR-606",
        )
    return ConfigError(
        f"Postgres at {where} refuses the role '{user}'.",
        why=f"It says: {text}.",
        state="Nothing was started.",
        remedy="Correct url, user and password of the database in headrace.yml, or grant the role its rights.",
        code="HR-116",
    )


def _wrong_url(why: str) -> ConfigError:
    return ConfigError(
        "The url of a database cannot be used.",
        why=why,
        state="Nothing was started.",
        remedy="Correct `url` of the database in headrace.yml, such as jdbc:postgresql://db.example.org:5432/shop.",
        code="HR-115",
    )
