"""Targets: where flows run, and how to reach their storage and services."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from headrace.flow.secret import Secret

_URI = re.compile(r"^[a-zA-Z][a-zA-Z0-9+.-]*:")


@dataclass(frozen=True)
class Database:
    """How to reach one database.

    | field    | example                              | meaning                                                     |
    |----------|--------------------------------------|-------------------------------------------------------------|
    | url      | jdbc:postgresql://db.example.org/shop | address and name, as JDBC writes them, without a login      |
    | user     | headrace                             | the role that logs in                                       |
    | password | ${env:SHOP_PASSWORD}                 | None where the server asks for none                         |
    """

    url: str
    user: str
    password: Secret | None = None


@dataclass(frozen=True)
class KafkaConnect:
    """How to reach Kafka Connect, which runs captures.

    | field     | example                            | meaning                                                         |
    |-----------|------------------------------------|-----------------------------------------------------------------|
    | url       | http://connect.example.org:8083    | of its REST interface                                           |
    | bootstrap | kafka:9092                         | the broker as the workers reach it, where that is another one   |
    | passwords | {"shop": "${vault:shop:password}"} | by database: a reference that the workers resolve by a provider |
    |           |                                    | of their own                                                    |
    | secrets   | /run/connect/secrets               | for other databases: a folder that the workers read files from  |
    """

    url: str
    bootstrap: str = ""
    passwords: Mapping[str, str] = field(default_factory=dict)
    secrets: Path | None = None


@dataclass(frozen=True)
class HttpEndpoint:
    """A receiver of rows over HTTP.

    | field   | meaning                                                                                           |
    |---------|---------------------------------------------------------------------------------------------------|
    | url     | where it is; https, unless it is private                                                          |
    | headers | are sent with every request; values may be secrets                                                |
    | private | whether it may be in a private network; otherwise only public addresses are allowed               |
    | ca      | a file with the certificates to trust, when they are not the machine's                            |
    """

    url: str
    headers: Mapping[str, str | Secret] = field(default_factory=dict)
    private: bool = False
    ca: str | None = None


@dataclass(frozen=True)
class Lease:
    """The lease that allows one driver per checkpoint, and per local table that its flow writes.

    | field   | default  | meaning                                                                                  |
    |---------|----------|------------------------------------------------------------------------------------------|
    | kind    | by place | `lock`: a lock of the operating system, for a disk of one machine                        |
    |         |          | `record`: numbered records, for storage that several machines reach, a mounted one too   |
    | seconds | 30       | how long the holder of a record must be silent before another driver takes over          |

    The default is `lock` for a local folder and `record` for other storage.
    """

    kind: Literal["lock", "record"] | None = None
    seconds: float = 30.0


@dataclass(frozen=True)
class Target:
    """An environment that runs flows: a Spark master, roots for tables and checkpoints, and connections.

    | field       | example                        | meaning                                                    |
    |-------------|--------------------------------|------------------------------------------------------------|
    | name        | dev                            | the key in headrace.yml                                    |
    | master      | local[*], spark://host:7077    | passed to Spark unchanged                                  |
    | lake        | /data/lake, s3a://bucket/lake  | root of tables; any URI that Hadoop's filesystems know     |
    | checkpoints | /data/checkpoints              | root of checkpoints; one folder per flow                   |
    | kafka       | bootstrap.servers, SASL ...    | options of Kafka clients; values may be secrets            |
    | databases   | {"shop": Database(...)}        | databases by the names that flows use                      |
    | spark       | spark.executor.memory ...      | settings of the Spark application                          |
    | services    | crm: https://crm.example.org   | receivers of rows over HTTP, by name                       |
    | lease       | Lease("record", 30)            | allows one driver per checkpoint                           |
    | connect     | KafkaConnect("http://...")     | Kafka Connect, which runs captures; None if there is none  |
    """

    name: str
    lake: str
    checkpoints: str
    master: str = "local[*]"
    kafka: Mapping[str, str | Secret] = field(default_factory=dict)
    spark: Mapping[str, str] = field(default_factory=dict)
    databases: Mapping[str, Database] = field(default_factory=dict)
    services: Mapping[str, HttpEndpoint] = field(default_factory=dict)
    lease: Lease = Lease()
    connect: KafkaConnect | None = None

    def table(self, path: str) -> str:
        """Return the full path of a table: unchanged if absolute, else below the lake."""
        return path if path.startswith("/") or _URI.match(path) else f"{self.lake.rstrip('/')}/{path}"

    def flow_folder(self, flow: str) -> str:
        """Return the checkpoint folder of a flow."""
        return f"{self.checkpoints.rstrip('/')}/{flow}"
