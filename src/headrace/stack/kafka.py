"""A Kafka broker for one machine: KRaft, broker and controller in one process, on the loopback only.

The settings are rewritten at every start, so that an upgrade of Headrace applies to an existing folder;
the data folder is formatted once and moved into place in one step. One broker means one replica: this is
for development, demos and tests, not for production.
"""

import base64
import os
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaException

from headrace.clients.kafka import admin_client
from headrace.stack import errors, ports
from headrace.stack.part import LocalService, PartFiles, StartContext, run_program

FIRST_PORTS = {"broker": 9092, "controller": 9093}

# 5 MB records are within what pipelines meet; a producer's batch may hold a few of them.
MESSAGE_MAX_BYTES = 16 * 1024 * 1024

SETTINGS = f"""\
# Written by `headrace up` at every start: changes made here are lost.
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{ports.LOOPBACK}:{{controller}}
listeners=PLAINTEXT://{ports.LOOPBACK}:{{broker}},CONTROLLER://{ports.LOOPBACK}:{{controller}}
advertised.listeners=PLAINTEXT://{ports.LOOPBACK}:{{broker}}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={{data}}

# A typing error in a topic's name should be an error, not a new topic.
auto.create.topics.enable=false

# One broker: one replica, and a write is committed as soon as it has it.
default.replication.factor=1
min.insync.replicas=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1

# 50 partitions each by default: dozens of files to open at every start, for a handful of local clients.
offsets.topic.num.partitions=4
transaction.state.log.num.partitions=4
share.coordinator.state.topic.num.partitions=4

# A second consumer is not waited for: a local group usually has one.
group.initial.rebalance.delay.ms=0

# After a crash the controller refuses the new broker until the old one's session is over: 9 s by default.
# Not shorter than this: a busy laptop must not be taken for a dead broker.
broker.session.timeout.ms=5000
broker.heartbeat.interval.ms=1000

message.max.bytes={MESSAGE_MAX_BYTES}

# Records are never deleted. A flow that was stopped over a weekend must find its offsets,
# and a replay its history; `headrace ps` shows the size and `headrace down --wipe` empties it.
log.retention.ms=-1

# The cleaner takes 128 MB of the heap by default. The compacted topics here are small.
log.cleaner.dedupe.buffer.size=16777216
"""

# To standard output, which is the part's log file. Warnings only: a healthy broker is silent.
LOGGING = """\
status=error
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d{yyyy-MM-dd HH:mm:ss} %p %m (%c{1})%n%throwable
rootLogger.level=warn
rootLogger.appenderRef.out.ref=out
"""


# Options of a server's JVM.
SERVER_OPTIONS = (
    "-XX:+ExitOnOutOfMemoryError",  # a server that is out of memory still looks healthy
    "-Djava.awt.headless=true",
)


@dataclass(frozen=True)
class KafkaService(LocalService):
    """The broker as a part of the local stack."""

    name: str = "kafka"
    jar_configurations: tuple[str, ...] = ("kafka",)
    # 3 s on two idle cores; a minute and a half is for a laptop that recovers a large log after a crash.
    startup_timeout_seconds: float = 90.0
    heap: str = "512m"

    def prepare(self, files: PartFiles, context: StartContext) -> list[str]:
        """Choose two ports, write the settings, format the data folder if it is new, return the command."""
        chosen_ports = ports.choose_ports(files.ports, self.name, FIRST_PORTS)
        settings = files.folder / "server.properties"
        java = java_command(files, context, "kafka", LOGGING)
        if not (files.data / "meta.properties").is_file():
            _format(files, java, chosen_ports)
        settings.write_text(SETTINGS.format(data=escaped(files.data), **chosen_ports))
        server = ["kafka.Kafka", str(settings.resolve())]
        return [*java, f"-Xmx{self.heap}", *SERVER_OPTIONS, f"-D{files.process_marker}", *server]

    def port(self, files: PartFiles) -> int | None:
        """Return the port of the broker, or None before the first start."""
        return ports.previous_ports(files.ports).get("broker")

    def answers(self, files: PartFiles) -> bool:
        """Whether the cluster of this data folder answers a metadata request."""
        try:
            metadata = admin_client({"bootstrap.servers": self.address(files)}).list_topics(timeout=3)
        except KafkaException:
            return False
        return bool(metadata.brokers) and metadata.cluster_id == cluster_id(files.data)


def java_command(files: PartFiles, context: StartContext, conf: str, logging: str) -> list[str]:
    """Write the settings of the logging, and return the start of a Java command with a configuration's jars."""
    path = files.folder / "log4j2.properties"
    path.write_text(logging)
    class_path = os.pathsep.join(str(jar) for jar in context.jars.verify(conf))
    return [*context.jvm, f"-Dlog4j2.configurationFile={path.resolve()}", "-cp", class_path]


def cluster_id(data: Path) -> str | None:
    """Return the id that formatting gave to a data folder, or None for one that is not formatted."""
    try:
        lines = (data / "meta.properties").read_text().splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return next((line.partition("=")[2].strip() for line in lines if line.startswith("cluster.id=")), None)


def _format(files: PartFiles, java: list[str], chosen_ports: dict[str, int]) -> None:
    """Format a new data folder and move it into place in one step, so that a partial one is never used."""
    forming = files.folder / "data.forming"
    for leftover in (forming, files.data):
        # `data` without meta.properties was never formatted: the broker would refuse it.
        if leftover.exists():
            shutil.rmtree(leftover)
    settings = files.folder / "format.properties"
    settings.write_text(SETTINGS.format(data=escaped(forming), **chosen_ports))
    command = [*java, "kafka.tools.StorageTool", "format", "-t", _new_cluster_id(), "-c", str(settings)]
    succeeded, output = run_program(command)
    if not succeeded or not (forming / "meta.properties").is_file():
        raise errors.start_failed("The formatting of Kafka's data folder", settings, output)
    forming.replace(files.data)
    settings.unlink()


def _new_cluster_id() -> str:
    """Return a random id as Kafka writes them: 16 bytes, base64, and no dash in front (it reads as an option)."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        continue
    return text


def escaped(path: Path) -> str:
    """Return a path escaped for a Java properties file."""
    return str(path.resolve()).replace("\\", "\\\\")
