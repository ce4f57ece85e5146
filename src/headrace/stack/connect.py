"""Kafka Connect for one machine, with Debezium in it: changes of databases become records of topics.

One worker in the distributed mode. That mode keeps connectors, their positions and their states in topics of the local
broker, which survive a worker that is killed at any moment. The standalone mode writes positions into a file in
place, and a worker killed meanwhile leaves half a file.

Passwords of databases are not part of a connector's settings, because those stand in a topic. A connector names a file
below `secrets`, and the worker reads it when the connector starts.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path

from urllib3 import PoolManager, Timeout
from urllib3.exceptions import HTTPError

from headrace.stack import kafka, ports
from headrace.stack.part import Means, Place

FIRST_PORTS = {"connect": 8083}

# Jar configurations that are plugins: each is a folder of its own, loaded apart from the others.
PLUGINS = ("debezium-postgres", "debezium-mariadb", "debezium-mysql")

SETTINGS = f"""\
# Written by `headrace up` at every start: changes made here are lost.
bootstrap.servers={{bootstrap}}
group.id=headrace-connect
listeners=http://{ports.LOOPBACK}:{{port}}
rest.advertised.host.name={ports.LOOPBACK}
rest.advertised.port={{port}}
plugin.path={{plugins}}
plugin.discovery=service_load

key.converter=org.apache.kafka.connect.json.JsonConverter
value.converter=org.apache.kafka.connect.json.JsonConverter
key.converter.schemas.enable=false
value.converter.schemas.enable=false

# Connectors, positions and states, in topics of the local broker.
config.storage.topic=headrace-connect-configs
offset.storage.topic=headrace-connect-offsets
status.storage.topic=headrace-connect-status
config.storage.replication.factor=1
offset.storage.replication.factor=1
status.storage.replication.factor=1
offset.storage.partitions=1
status.storage.partitions=1

# What was sent after the last saved position is sent again after a kill: a second's worth, not a minute's.
offset.flush.interval.ms=1000

# A killed worker is given up after 6 s, the least that a broker allows, and its work is taken over at once: by default
# a new worker waits five minutes for the old one.
session.timeout.ms=6000
heartbeat.interval.ms=2000
scheduled.rebalance.max.delay.ms=0
# The longest a stopping task is waited for.
task.shutdown.graceful.timeout.ms=5000

producer.max.request.size={kafka.MESSAGE_MAX_BYTES}

config.providers=file
config.providers.file.class=org.apache.kafka.common.config.provider.FileConfigProvider
config.providers.file.param.allowed.paths={{secrets}}
"""

# A converter of Debezium's that is not used here cannot be loaded beside Connect's own, and every start would begin
# with the traces of that. A plugin that is missing is told by the connector that asks for it.
QUIET = """\
logger.scanner.name=org.apache.kafka.connect.runtime.isolation.PluginScanner
logger.scanner.level=off
"""


@dataclass(frozen=True)
class Connect:
    """Kafka Connect as a part of the local stack."""

    name: str = "connect"
    confs: tuple[str, ...] = ("connect", *PLUGINS)
    needs: tuple[str, ...] = ("kafka",)
    # 8 s on two idle cores; after a kill it waits for the end of its own old session too.
    patience: float = 120.0
    stop_signal: signal.Signals = signal.SIGTERM
    heap: str = "512m"

    def prepare(self, place: Place, means: Means) -> list[str]:
        """Choose a port, link the plugins, write the settings, return the command."""
        chosen = ports.choose(place.folder / "ports.json", self.name, FIRST_PORTS)
        class_path = os.pathsep.join(str(jar) for jar in means.jars.verify("connect"))
        plugins = _linked_plugins(place, means)
        secrets(place).mkdir(mode=0o700, exist_ok=True)
        logging = place.folder / "log4j2.properties"
        logging.write_text(kafka.LOGGING + QUIET)
        settings = _settings(place)
        settings.write_text(
            SETTINGS.format(
                bootstrap=means.parts["kafka"],
                port=chosen["connect"],
                plugins=kafka.escaped(plugins),
                secrets=kafka.escaped(secrets(place)),
            )
        )
        return [
            *means.jvm,
            f"-Xmx{self.heap}",
            "-XX:+ExitOnOutOfMemoryError",  # a worker that limps on without memory looks healthy
            "-Djava.awt.headless=true",
            f"-D{place.mark}",
            f"-Dlog4j2.configurationFile={logging.resolve()}",
            "-cp",
            class_path,
            "org.apache.kafka.connect.cli.ConnectDistributed",
            str(settings.resolve()),
        ]

    def address(self, place: Place) -> str:
        """Return the address of its REST interface, or an empty string before the first start."""
        port = ports.remembered(place.folder / "ports.json").get("connect")
        return f"http://{ports.LOOPBACK}:{port}" if port else ""

    def healthy(self, place: Place) -> bool:
        """Whether the worker is ready for connectors, and works with the broker beside it, at its present address."""
        port = ports.remembered(place.folder / "ports.json").get("connect")
        broker = Place(place.folder.parent / "kafka")
        if port is None or ports.is_free(port) or not _settings(place).is_file():
            return False
        if f"bootstrap.servers={kafka.Kafka().address(broker)}" not in _settings(place).read_text().splitlines():
            return False
        worker = _asked(self.address(place))
        ready = _asked(f"{self.address(place)}/health")
        return worker.get("kafka_cluster_id") == kafka.cluster_id(broker.data) and ready.get("status") == "healthy"


def secrets(place: Place) -> Path:
    """Return the folder of the files that connectors may name for their passwords. For its owner only."""
    return place.folder / "secrets"


def _settings(place: Place) -> Path:
    return place.folder / "connect.properties"


def _linked_plugins(place: Place, means: Means) -> Path:
    """Make the folder of plugins anew: a folder for each, with links to the verified jars."""
    plugins = place.folder / "plugins"
    if plugins.exists():
        shutil.rmtree(plugins)
    for conf in PLUGINS:
        (plugins / conf).mkdir(parents=True)
        for jar in means.jars.verify(conf):
            (plugins / conf / jar.name).symlink_to(jar)
    return plugins


def _asked(url: str) -> dict[str, object]:
    """Return the answer to a question, or nothing where there is none."""
    with PoolManager(timeout=Timeout(3.0), retries=False) as pool:
        try:
            answer = json.loads(pool.request("GET", url).data)
        except (HTTPError, ValueError):
            return {}
    return answer if isinstance(answer, dict) else {}
