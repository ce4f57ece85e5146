"""A Kafka broker for one machine: KRaft, broker and controller in one process, on the loopback only.

The settings are rewritten at every start, so that an upgrade of Headrace applies to an existing folder;
the data folder is formatted once and moved into place in one step. One broker means one replica: this is
for development, demos and tests, not for production.
"""

import base64
import os
import shutil
import signal
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaException

from headrace.clients.kafka import admin_client
from headrace.stack import errors, ports
from headrace.stack.part import PartFiles, StartContext

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


@dataclass(frozen=True)
class KafkaPart:
    """The broker as a part of the local stack."""

    name: str = "kafka"
    jar_configurations: tuple[str, ...] = ("kafka",)
    depends_on: tuple[str, ...] = ()
    # 3 s on two idle cores; a minute and a half is for a laptop that recovers a large log after a crash.
    startup_timeout_seconds: float = 90.0
    stop_signal: signal.Signals = signal.SIGTERM
    heap: str = "512m"

    def prepare(self, files: PartFiles, context: StartContext) -> list[str]:
        """Choose two ports, write the settings, format the data folder if it is new, return the command."""
        chosen_ports = ports.choose_ports(files.folder / "ports.json", self.name, FIRST_PORTS)
        class_path = os.pathsep.join(str(jar) for jar in context.jars.verify("kafka"))
        settings = files.folder / "server.properties"
        logging = files.folder / "log4j2.properties"
        logging.write_text(LOGGING)
        java = [f"-Dlog4j2.configurationFile={logging.resolve()}", "-cp", class_path]
        if not (files.data / "meta.properties").is_file():
            _format(files, [*context.jvm, *java], chosen_ports)
        settings.write_text(SETTINGS.format(data=escaped(files.data), **chosen_ports))
        return [
            *context.jvm,
            f"-Xmx{self.heap}",
            "-XX:+ExitOnOutOfMemoryError",  # a broker that is out of memory still looks healthy
            "-Djava.awt.headless=true",
            f"-D{files.process_marker}",
            *java,
            "kafka.Kafka",
            str(settings.resolve()),
        ]

    def address(self, files: PartFiles) -> str:
        """Return the bootstrap address, or an empty string before the first start."""
        port = ports.previous_ports(files.folder / "ports.json").get("broker")
        return f"{ports.LOOPBACK}:{port}" if port else ""

    def healthy(self, files: PartFiles) -> bool:
        """Whether the cluster of this data folder answers a metadata request."""
        port = ports.previous_ports(files.folder / "ports.json").get("broker")
        # A client that meets a closed port retries for seconds: check the port first.
        if port is None or ports.is_free(port):
            return False
        try:
            metadata = admin_client({"bootstrap.servers": self.address(files)}).list_topics(timeout=3)
        except KafkaException:
            return False
        return bool(metadata.brokers) and metadata.cluster_id == cluster_id(files.data)


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
    command = [*java, "kafka.tools.StorageTool", "format", "-t", next(_cluster_ids()), "-c", str(settings)]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if completed.returncode != 0 or not (forming / "meta.properties").is_file():
        output = (completed.stdout + completed.stderr).splitlines()
        raise errors.start_failed("The formatting of Kafka's data folder", settings, output[-10:])
    forming.replace(files.data)
    settings.unlink()


def _cluster_ids() -> Iterator[str]:
    """Yield random ids as Kafka writes them: 16 bytes, base64, and no dash in front (it reads as an option)."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            yield text


def escaped(path: Path) -> str:
    """Return a path escaped for a Java properties file."""
    return str(path.resolve()).replace("\\", "\\\\")
