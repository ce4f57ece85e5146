"""Kafka Connect for one machine, with Debezium in it: changes of databases become records of topics.

One worker in the distributed mode. That mode keeps connectors, their positions and their states in topics of the local
broker, which survive a worker that is killed at any moment. The standalone mode writes positions into a file in
place, and a worker that is killed while it writes leaves a truncated file.

Passwords of databases are not part of a connector's settings, because those are stored in a topic. A connector names a
file in the folder `secrets`, and the worker reads it when the connector starts.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from urllib3 import PoolManager, Timeout
from urllib3.exceptions import HTTPError

from headrace.stack import kafka, ports
from headrace.stack.part import LocalService, PartFiles, StartContext

FIRST_PORTS = {"connect": 8083}

# Jar configurations that are plugins: each has its own folder and is isolated from the others.
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

# A killed worker is given up after 6 s, the least that a broker allows, and its work is taken over immediately: by
# default a new worker waits five minutes for the old one.
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

# A converter of Debezium's that is not used here cannot be loaded together with Connect's own, and every start would
# log the stack traces. A missing plugin is reported by the connector that needs it.
QUIET = """\
logger.scanner.name=org.apache.kafka.connect.runtime.isolation.PluginScanner
logger.scanner.level=off
"""


@dataclass(frozen=True)
class ConnectService(LocalService):
    """Kafka Connect as a part of the local stack."""

    name: str = "connect"
    jar_configurations: tuple[str, ...] = ("connect", *PLUGINS)
    depends_on: tuple[str, ...] = ("kafka",)
    # 8 s on two idle cores; after a kill it waits for the end of its own old session too.
    startup_timeout_seconds: float = 120.0
    heap: str = "512m"

    def prepare(self, files: PartFiles, context: StartContext) -> list[str]:
        """Choose a port, link the plugins, write the settings, return the command."""
        chosen_ports = ports.choose_ports(files.ports, self.name, FIRST_PORTS)
        java = kafka.java_command(files, context, "connect", kafka.LOGGING + QUIET)
        plugins = _link_plugins(files, context)
        secrets_folder(files).mkdir(mode=0o700, exist_ok=True)
        settings = _settings(files)
        settings.write_text(
            SETTINGS.format(
                bootstrap=context.parts["kafka"],
                port=chosen_ports["connect"],
                plugins=kafka.escaped(plugins),
                secrets=kafka.escaped(secrets_folder(files)),
            )
        )
        return [
            *java,
            f"-Xmx{self.heap}",
            *kafka.SERVER_OPTIONS,
            f"-D{files.process_marker}",
            "org.apache.kafka.connect.cli.ConnectDistributed",
            str(settings.resolve()),
        ]

    def address(self, files: PartFiles) -> str:
        """Return the address of its REST interface, or an empty string before the first start."""
        address = super().address(files)
        return f"http://{address}" if address else ""

    def answers(self, files: PartFiles) -> bool:
        """Whether the worker is ready for connectors and uses the local broker at its current address."""
        broker = PartFiles(files.folder.parent / "kafka")
        if not _settings(files).is_file():
            return False
        if f"bootstrap.servers={kafka.KafkaService().address(broker)}" not in _settings(files).read_text().splitlines():
            return False
        worker = _get_json_or_empty(self.address(files))
        ready = _get_json_or_empty(f"{self.address(files)}/health")
        return worker.get("kafka_cluster_id") == kafka.cluster_id(broker.data) and ready.get("status") == "healthy"


def secrets_folder(files: PartFiles) -> Path:
    """Return the folder of password files for connectors. Only its owner can read it."""
    return files.folder / "secrets"


def _settings(files: PartFiles) -> Path:
    return files.folder / "connect.properties"


def _link_plugins(files: PartFiles, context: StartContext) -> Path:
    """Recreate the plugins folder: one folder per plugin, with links to the verified jars."""
    plugins = files.folder / "plugins"
    if plugins.exists():
        shutil.rmtree(plugins)
    for conf in PLUGINS:
        (plugins / conf).mkdir(parents=True)
        for jar in context.jars.verify(conf):
            (plugins / conf / jar.name).symlink_to(jar)
    return plugins


def _get_json_or_empty(url: str) -> dict[str, object]:
    """Return the JSON object of a GET request, or an empty one without an answer."""
    with PoolManager(timeout=Timeout(3.0), retries=False) as pool:
        try:
            answer = json.loads(pool.request("GET", url).data)
        except (HTTPError, ValueError):
            return {}
    return answer if isinstance(answer, dict) else {}
