"""A standalone Spark cluster on the loopback: a master and workers, each a process of its own, from PySpark's files."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyspark

from headrace.stack.java import find_java

START_SECONDS = 120.0
# Of a JVM that lives for a minute: its second compiler would cost more than it saves.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@dataclass(frozen=True)
class Worker:
    """One machine of the cluster: the worker process, and the executors that are its children."""

    process: subprocess.Popen[bytes]

    def die(self) -> None:
        """End as a machine does whose power fails: the worker and all its executors, immediately and without a word."""
        family = [psutil.Process(self.process.pid)]
        family += family[0].children(recursive=True)
        for item in family:
            with suppress(psutil.NoSuchProcess):
                item.kill()
        self.process.wait()


@dataclass(frozen=True)
class Cluster:
    """A running cluster. `master` is what a target takes."""

    master: str
    workers: tuple[Worker, ...]


@contextmanager
def standalone_cluster(folder: Path, workers: int) -> Iterator[Cluster]:
    """Start a master and its workers, one core each, and stop what is left of them in the end."""
    folder.mkdir(parents=True)
    started: list[Worker] = []
    try:
        master = _start("master.Master", folder / "master.log", "--port", "0")
        started.append(Worker(master))
        url = _logged(folder / "master.log", r"Starting Spark master at (spark://\S+)", master)[0]
        for number in range(workers):
            home = folder / f"worker{number}"
            log = folder / f"worker{number}.log"
            started.append(Worker(_start("worker.Worker", log, "-c", "1", "-m", "1g", "-d", str(home), url)))
        _logged(folder / "master.log", r"Registering worker ", master, times=workers)
        yield Cluster(url, tuple(started[1:]))
    finally:
        for item in reversed(started):
            with suppress(psutil.NoSuchProcess):
                item.die()


def _start(role: str, log: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a part of the cluster. `spark-class` ends in an exec, so the process is the JVM itself."""
    home = Path(pyspark.__file__).parent
    environment = os.environ | {
        "SPARK_HOME": str(home),
        "JAVA_HOME": str(find_java().home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "512m",
        "SPARK_DAEMON_JAVA_OPTS": SHORT_LIVED,
    }
    command = [home / "bin" / "spark-class", f"org.apache.spark.deploy.{role}"]
    with log.open("wb") as file:
        return subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--webui-port", "0", *arguments],
            env=environment,
            stdout=file,
            stderr=subprocess.STDOUT,
        )


def _logged(log: Path, pattern: str, process: subprocess.Popen[bytes], times: int = 1) -> list[str]:
    """Wait until a log holds a pattern so many times, and return what was found."""
    deadline = time.monotonic() + START_SECONDS
    while len(actual := re.findall(pattern, log.read_text())) < times:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)  # a process says what it does only in its log
    return actual
