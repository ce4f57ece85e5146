"""Build the Debezium connector configuration of a capture. It defines the format of changes in topics.

Each value is lossless in tests with real servers. Comments say what another value would lose.
"""

import re

from headrace.cdc.capture.catalogue import database_family
from headrace.cdc.capture.declaration import Capture
from headrace.clients import mysql, postgres
from headrace.flow.duration import Duration
from headrace.flow.target import Database

# The prefix of log messages that only move the position.
HEARTBEAT = "headrace.heartbeat"

_CONVERTER = "org.apache.kafka.connect.json.JsonConverter"

# Settings for both kinds of log.
_WIRE = {
    "tasks.max": "1",
    "key.converter": _CONVERTER,
    "value.converter": _CONVERTER,
    "key.converter.schemas.enable": "false",
    "value.converter.schemas.enable": "false",
    # Numbers beyond 64 bits (bigint unsigned) as numbers, not as base64.
    "key.converter.decimal.format": "NUMERIC",
    "value.converter.decimal.format": "NUMERIC",
    # Every digit. The default is base64, `double` rounds.
    "decimal.handling.mode": "string",
    # `bytes` gives null for a bytea that a Postgres update left alone; `hex` gives the placeholder.
    "binary.handling.mode": "hex",
    # A delete has its key; a Kafka tombstone after it adds nothing.
    "tombstones.on.delete": "false",
    "skipped.operations": "none",
    "provide.transaction.metadata": "true",
    "snapshot.mode": "initial",
    # One partition: the changes of a table stay in the order of the log.
    "topic.creation.default.partitions": "1",
    "topic.creation.default.replication.factor": "-1",
}


def connector_config(capture: Capture, database: Database, *, password: str, bootstrap: str) -> dict[str, str]:
    """Return the settings of the connector of a capture.

    `password` is a reference that the worker resolves, such as `${file:/run/secrets/shop.properties:password}`:
    Kafka Connect stores settings in a topic, so they never contain the password. `bootstrap` is the address of the
    broker for the worker.
    """
    heartbeat = str(round(Duration.parse(capture.heartbeat).seconds * 1000))
    every = {
        **_WIRE,
        "topic.prefix": capture.prefix,
        "database.user": database.user,
        "database.password": password,
        # A comma ends an expression, unless it is escaped.
        "table.include.list": re.sub(r"(?<!\\),", r"\\,", capture.selection.expression),
        "heartbeat.interval.ms": heartbeat,
    }
    own = (
        _mysql_settings(capture, database, bootstrap)
        if database_family(database) == "mysql"
        else _postgres_settings(capture, database)
    )
    return every | own


def _postgres_settings(capture: Capture, database: Database) -> dict[str, str]:
    where = postgres.address(database)
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "database.hostname": where.host,
        "database.port": str(where.port),
        "database.dbname": where.database,
        "database.sslmode": where.options.get("sslmode", "prefer"),
        **({"database.sslrootcert": where.options["sslrootcert"]} if "sslrootcert" in where.options else {}),
        "plugin.name": "pgoutput",
        "slot.name": capture.slot,
        "slot.drop.on.stop": "false",
        # The capture creates it: only then does it include generated columns and tables that are created later.
        "publication.name": capture.slot,
        "publication.autocreate.mode": "disabled",
        # `isostring` turns 24:00:00 into 00:00:00. Here every other value is out of range and is detected.
        "time.precision.mode": "adaptive",
        "interval.handling.mode": "string",
        "hstore.handling.mode": "json",
        "include.unknown.datatypes": "true",
        # Moves the position while other databases of the server write and this one is idle.
        "heartbeat.action.query": f"SELECT pg_logical_emit_message(false, '{HEARTBEAT}', '')",
        "message.prefix.exclude.list": re.escape(HEARTBEAT),
    }


def _mysql_settings(capture: Capture, database: Database, bootstrap: str) -> dict[str, str]:
    where = mysql.address(database)
    maria = mysql.is_mariadb(database)
    return {
        "connector.class": "io.debezium.connector.mariadb.MariaDbConnector"
        if maria
        else "io.debezium.connector.mysql.MySqlConnector",
        "database.hostname": where.host,
        "database.port": str(where.port),
        "database.server.id": str(capture.server_id),
        # No encryption on localhost; elsewhere the certificate of the server is verified.
        "database.ssl.mode": _tls_settings(where.host, maria=maria),
        "schema.history.internal.kafka.bootstrap.servers": bootstrap,
        "schema.history.internal.kafka.topic": capture.schema_history,
        "schema.history.internal.store.only.captured.tables.ddl": "true",
        "include.schema.changes": "false",
        "bigint.unsigned.handling.mode": "precise",
        # Times of more than a day and below zero exist here.
        "time.precision.mode": "adaptive_time_microseconds",
        # Otherwise the driver reads a year as a date, and fails at the year 0.
        **({"driver.yearIsDateType": "false"} if maria else {}),
    }


def _tls_settings(host: str, *, maria: bool) -> str:
    if host in ("localhost", "127.0.0.1", "::1"):
        return "disable" if maria else "disabled"
    return "verify-full" if maria else "verify_identity"
