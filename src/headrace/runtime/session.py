"""Builds Spark sessions: the only module that does.

`open_session` builds the session of the application from a target. `flow_session` creates a session per flow on the
same context, because a streaming query reads its settings (shuffle partitions, state store) from its session.
"""

import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession

from headrace.clients.spark.jvm_names import cache_jvm_classes
from headrace.errors import ConfigError
from headrace.flow.flow import Flow
from headrace.flow.levers import Continuous, RocksDB
from headrace.flow.target import Target
from headrace.ingest.flat_json import flat_json_jar
from headrace.runtime.checkpoint.pinned_settings import PARTITIONS, PROVIDER
from headrace.runtime.state.memory import MEMORY_LIMIT

_STATE_STORES = "org.apache.spark.sql.execution.streaming.state"

# Hadoop starts a process for each file that it creates or looks at on a local disk: over a hundred per batch. These
# classes behave alike and use system calls (see jvm/LocalDisk.java). The executors of a cluster do not have them; most
# of what they write goes to a store.
_LOCAL_DISK = {
    "spark.hadoop.fs.file.impl": "io.headrace.files.LocalDisk$WithChecksums",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "io.headrace.files.LocalDisk$ForContexts",
}
# Spark looks at `spark.jars` by the file system of `file:`, so that one has to be there before them.
_CLASS_PATH = "spark.driver.extraClassPath"

# How often Spark reports a trigger without data: its default, and the shortest interval without noticeable cost.
_DEFAULT_IDLE_REPORT_MS, _MIN_IDLE_REPORT_MS = 10_000, 200

_REDACTION = "spark.redaction.regex"
_APPLICATION = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Event times are UTC everywhere: a window must not move with the machine's zone.
    "spark.sql.session.timeZone": "UTC",
    # Each flow is a pool, so that one long batch does not keep the others waiting.
    "spark.scheduler.mode": "FAIR",
    # Small tables are the rule here; Delta's default of 50 tasks to read a snapshot costs seconds on a laptop.
    "spark.databricks.delta.snapshotPartitions": "2",
    # A version can be read for as long as its log and its files exist. Delta would refuse it after the time for
    # which the table remembers removed files, though nobody has deleted one.
    "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration": "false",
    # Spark forgets compiled code after 100 pieces. A batch of captured tables has more than that, and would compile all
    # of it again, every time.
    "spark.sql.codegen.cache.maxEntries": "1000",
    # Entries of the offset log are what audits and comparisons read; fewer than Spark's default would be too few.
    "spark.sql.streaming.minBatchesToRetain": "100",
    # Spark's own INT96 is deprecated, and other readers treat it as a time without a zone.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.ui.showConsoleProgress": "false",
    # Spark hides what looks like a secret in its UI, plans and logs. Keys by value and JAAS lines, which settings of
    # Kafka clients become, do not match its own pattern.
    _REDACTION: "(?i:secret|password|passwd|token|access[.]?key|keystore[.]key|jaas|credential)",
}


def open_session(
    target: Target, jars: Sequence[Path], *, app_name: str = "headrace", log: Path | None = None
) -> SparkSession:
    """Build the session of the application. Called once per process, before any flow starts.

    With `log`, everything that the JVM prints goes to that file and not to the terminal.
    """
    # Python workers would otherwise start with the system's Python and fail on their imports. On a cluster the workers'
    # interpreter may lie elsewhere: a setting of the user is not overridden.
    if target.master.startswith("local"):
        os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    _redirect_py4j_log(log)
    builder = SparkSession.builder.appName(app_name).master(target.master)
    settings, log4j = dict(_APPLICATION), Path(__file__).with_name("log4j2.properties")
    if target.master.startswith("local"):
        # A laptop: no UI port to collide, and the driver binds where nobody else can reach it.
        settings |= {
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "2g",
            "spark.sql.warehouse.dir": f"{target.lake.rstrip('/')}/_warehouse",
            "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{log4j} -Djava.net.preferIPv4Stack=true",
        }
    if local_cores(target.master) is not None:
        settings |= _LOCAL_DISK
        jars_on_class_path = [str(local_disk_jar()), target.spark.get(_CLASS_PATH, "")]
        target = replace(target, spark={**target.spark, _CLASS_PATH: os.pathsep.join(filter(None, jars_on_class_path))})
    settings["spark.jars"] = ",".join(str(jar) for jar in (*jars, flat_json_jar()))
    for key, value in with_redaction(settings | dict(target.spark)).items():
        builder = builder.config(key, value)
    try:
        with _redirect_stderr(log), _keep_interrupt_handler():
            spark = builder.getOrCreate()
    except Exception as error:
        raise ConfigError(
            f"Spark does not start with master '{target.master}'.",
            why=f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), 'no message')}.",
            remedy="Run `headrace doctor`, and check targets.<name>.master and .spark in headrace.yml.",
            code="HR-112",
        ) from error
    spark.conf.set("spark.sql.shuffle.partitions", str(spark.sparkContext.defaultParallelism))
    cache_jvm_classes(spark)
    return spark


def local_disk_jar() -> Path:
    """Return the jar with Headrace's classes for local disks. `make jar` builds it from the source next to it."""
    return Path(__file__).with_name("jvm") / "local-disk.jar"


@contextmanager
def planning_session(jars: Sequence[Path], *, log: Path | None = None) -> Iterator[SparkSession]:
    """Open a small local session for query plans, and stop it afterwards.

    If a session is active already, use that one and leave it open.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    with TemporaryDirectory(prefix="headrace-plan-") as folder:
        # One core, and little memory: plans need no more.
        planning_target = Target("planning", folder, folder, master="local[1]", spark={"spark.driver.memory": "512m"})
        spark = open_session(planning_target, jars, app_name="headrace-plan", log=log)
        try:
            yield spark
        finally:
            spark.stop()


def with_redaction(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings with Headrace's redaction pattern; a pattern of the target is added to it."""
    default, configured = _APPLICATION[_REDACTION], settings[_REDACTION]
    return {**settings, _REDACTION: default if configured == default else f"{default}|(?:{configured})"}


def flow_session(application: SparkSession, flow: Flow, memory_mb: int | None = None) -> SparkSession:
    """Return a new session for a flow. Called once per start of the flow.

    `memory_mb` limits RocksDB; None keeps Spark's default, for sessions without state.
    """
    session = application.newSession()
    cores = application.sparkContext.defaultParallelism
    for key, value in flow_settings(flow, cores, memory_mb).items():
        session.conf.set(key, value)
    return session


def local_cores(master: str) -> int | None:
    """Return the number of cores of a local master, which are its task slots, or None for a cluster.

    `local[*]` has as many as the JVM counts: the CPUs that this process may use, not all of the machine.
    """
    local = re.fullmatch(r"local(?:\[(\d+|\*)(?:\s*,.*)?\])?", master)
    if local is None:
        return None
    if local[1] == "*":
        # Only Linux has an affinity.
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return int(local[1] or 1)


def flow_settings(flow: Flow, cores: int, memory_mb: int | None = None) -> dict[str, str]:
    """Return the Spark settings for the declaration of a flow.

    Spark's default of 200 shuffle partitions makes a window on two cores eight times slower; one per core is the
    most that can run concurrently. The first batch pins the number in the checkpoint.
    """
    settings = {
        "spark.sql.session.timeZone": "UTC",
        PARTITIONS: str(flow.state.shuffle_partitions or cores),
        # `max` would let one fast input drop the rows of a slow one.
        "spark.sql.streaming.multipleWatermarkPolicy": "min",
        "spark.sql.streaming.statefulOperator.checkCorrectness.enabled": "true",
        "spark.databricks.delta.snapshotPartitions": "2",
        # Two stateful operators with equal inputs would share an exchange. Spark then does not find the watermark of
        # the second: it accepts late rows, and its state is never evicted.
        "spark.sql.exchange.reuse": "false",
    }
    if isinstance(flow.trigger, Continuous):
        # One entry per second, and the audit needs them: ten minutes, in case it falls behind.
        settings["spark.sql.streaming.minBatchesToRetain"] = "600"
    if isinstance(flow.state, RocksDB):
        settings |= {
            PROVIDER: f"{_STATE_STORES}.RocksDBStateStoreProvider",
            # Upload the changes of a batch, not a snapshot of the store.
            "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        }
        if memory_mb is not None:
            # Without a limit each store has its own cache and buffers, outside of the heap that Spark counts.
            settings |= {
                "spark.sql.streaming.stateStore.rocksdb.boundedMemoryUsage": "true",
                MEMORY_LIMIT: str(memory_mb),
            }
    else:
        settings[PROVIDER] = f"{_STATE_STORES}.HDFSBackedStateStoreProvider"
    idle_timeouts = [
        input_.watermark.idle_timeout_duration for input_ in flow.named_inputs.values() if input_.watermark is not None
    ]
    shortest = min((timeout.ms for timeout in idle_timeouts if timeout is not None), default=None)
    if shortest is not None:
        # Spark reports triggers without data every ten seconds, too seldom for an idle_timeout of five.
        interval = min(max(shortest // 4, _MIN_IDLE_REPORT_MS), _DEFAULT_IDLE_REPORT_MS)
        settings["spark.sql.streaming.noDataProgressEventInterval"] = str(interval)
    return settings


@contextmanager
def _redirect_stderr(log: Path | None) -> Iterator[None]:
    """Redirect standard error of child processes to a file: the JVM keeps the one that it starts with."""
    if log is None:
        yield
        return
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr.flush()
    terminal = os.dup(2)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)


@contextmanager
def _keep_interrupt_handler() -> Iterator[None]:
    """Keep the handler of Ctrl-C: PySpark's own handler cancels the jobs of in-flight batches."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def _redirect_py4j_log(log: Path | None) -> None:
    """Send py4j's messages to the log. The supervisor reports a failed batch without a stack trace."""
    logger = logging.getLogger("py4j")
    if not logger.handlers:
        if log is not None:
            log.parent.mkdir(parents=True, exist_ok=True)
        logger.addHandler(logging.NullHandler() if log is None else logging.FileHandler(log, delay=True))
