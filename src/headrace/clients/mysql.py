"""The MariaDB and MySQL client: connections, and the mapping of their errors."""

from collections.abc import Iterator
from contextlib import contextmanager

import pymysql
from pymysql.cursors import Cursor

from headrace.clients.postgres import DatabaseAddress, parse_url, wrong_url
from headrace.errors import ConfigError, ServiceUnavailable
from headrace.flow.target import Database

_SCHEMES = ("jdbc:mariadb:", "jdbc:mysql:")
_EXAMPLE = "jdbc:mariadb://db.example.org:3306/shop"

# The timeout to connect.
_ANSWER_WITHIN_SECONDS = 10

# Error numbers of refused requests: wrong login, unknown database, missing privilege.
_REFUSALS = (1044, 1045, 1049, 1130, 1142, 1227, 1698)
# The error number of a syntax error.
_SYNTAX = 1064


def is_mysql(database: Database) -> bool:
    """Whether a URL is of MariaDB or MySQL."""
    return database.url.startswith(_SCHEMES)


def is_mariadb(database: Database) -> bool:
    """Whether a URL is of MariaDB, whose GTIDs differ from those of MySQL."""
    return database.url.startswith(_SCHEMES[0])


def address(database: Database) -> DatabaseAddress:
    """Parse a JDBC URL; raise HR-120 if it is invalid."""
    if not is_mysql(database):
        raise wrong_url(f"It begins neither with {_SCHEMES[0]}// nor with {_SCHEMES[1]}//.", _EXAMPLE)
    return parse_url(database.url, 3306, (), _EXAMPLE)


@contextmanager
def session(database: Database) -> Iterator[Cursor]:
    """Open a connection for read-only queries and close it at the end.

    Raises HR-612 (transient) if the server does not answer, and HR-119 if it refuses the login.
    """
    where = address(database)
    try:
        with (
            pymysql.connect(
                host=where.host,
                port=where.port,
                database=where.database,
                user=database.user,
                password=database.password.reveal() if database.password is not None else "",
                connect_timeout=_ANSWER_WITHIN_SECONDS,
                autocommit=True,
            ) as connection,
            connection.cursor() as cursor,
        ):
            yield cursor
    except pymysql.Error as error:
        raise _connection_error(where, database.user, error) from error


def binlog_position(cursor: Cursor) -> tuple[str, int] | None:
    """Return the current binlog file and position, or None if the binlog is off.

    MySQL 8.4 has another statement for it than MariaDB and earlier versions.
    """
    try:
        cursor.execute("SHOW MASTER STATUS")
    except pymysql.ProgrammingError as error:
        if error.args[:1] != (_SYNTAX,):
            raise
        cursor.execute("SHOW BINARY LOG STATUS")
    row = cursor.fetchone()
    return (str(row[0]), int(row[1])) if row else None


def _connection_error(where: DatabaseAddress, user: str, error: pymysql.Error) -> ConfigError | ServiceUnavailable:
    number, text = (*error.args, "", "")[:2]
    message = str(text or error).rstrip(".")
    if number in _REFUSALS or isinstance(error, pymysql.ProgrammingError):
        return ConfigError(
            f"The database at {where} refuses the user '{user}'.",
            why=f"It says: {message}.",
            remedy="Correct url, user and password of the database in headrace.yml, or grant the user its rights.",
            code="HR-119",
        )
    return ServiceUnavailable(
        f"The database at {where} does not answer.",
        why=f"The client says: {message}.",
        state="Nothing was written.",
        remedy="Start the server (`headrace up --with mariadb` for the local one), or correct the url.",
        code="HR-612",
    )
