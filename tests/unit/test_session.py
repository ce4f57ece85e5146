"""The settings that a flow's levers set, and a session that does not start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace import Console, Flow, InMemory, Input, KafkaSource, RocksDB
from headrace.flow.levers import State
from headrace.runtime.session import _redirect_stderr, flow_settings
from headrace.stack.java import find_java

STORES = "org.apache.spark.sql.execution.streaming.state"


def settings(state: State, cores: int = 2) -> dict[str, str]:
    flow = Flow("rides", Input(KafkaSource("t")), lambda rows: rows, Console(), state=state)
    return flow_settings(flow, cores)


def test_state_in_rocksdb_uploads_changes_and_not_snapshots() -> None:
    created = settings(RocksDB())
    assert created["spark.sql.streaming.stateStore.providerClass"] == f"{STORES}.RocksDBStateStoreProvider"
    assert created["spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"] == "true"


def test_state_in_memory_names_its_provider_and_nothing_of_rocksdb() -> None:
    created = settings(InMemory())
    assert created["spark.sql.streaming.stateStore.providerClass"] == f"{STORES}.HDFSBackedStateStoreProvider"
    assert [key for key in created if "rocksdb" in key] == []


@pytest.mark.parametrize("state", [RocksDB, InMemory])
def test_shuffle_partitions_default_to_the_number_of_cores(state: type[RocksDB | InMemory]) -> None:
    assert settings(state(), cores=6)["spark.sql.shuffle.partitions"] == "6"
    assert settings(state(shuffle_partitions=48), cores=6)["spark.sql.shuffle.partitions"] == "48"


def test_every_flow_runs_in_utc_with_the_watermark_of_the_slowest_input() -> None:
    created = settings(InMemory())
    assert created["spark.sql.session.timeZone"] == "UTC"
    assert created["spark.sql.streaming.multipleWatermarkPolicy"] == "min"


def test_what_children_print_while_spark_starts_goes_into_the_log_and_comes_back_after(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def shout(word: str) -> None:
        subprocess.run(["sh", "-c", f"echo {word} >&2"], check=True)

    log = tmp_path / "logs" / "spark.log"
    with _redirect_stderr(log):
        shout("quiet")
    shout("loud")
    assert log.read_text() == "quiet\n"
    assert capfd.readouterr().err == "loud\n"


# On one CPU: what `headrace check` finds in a flow that reads one partition, and the error with which its start fails.
ON_ONE_CPU = """
import json, os
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
from types import SimpleNamespace
from pyspark.java_gateway import launch_gateway
from headrace import Flow, HeadraceError, Input, KafkaSink, KafkaSource, RealTime, Target
from headrace.operate.preflight import plans
from headrace.runtime import continuous

flow = Flow("rides", Input(KafkaSource("t")), lambda rows: rows, KafkaSink("u"), trigger=RealTime())
target = Target("dev", "/lake", "/checkpoints", master="local[*]")
continuous.count_tasks = plans.count_tasks = lambda flow, target: 1
found = [finding.code for finding in plans.task_slot_findings([flow], target)]
# Spark's own number of slots for this master.
slots = launch_gateway().jvm.java.lang.Runtime.getRuntime().availableProcessors()
application = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=slots))
try:
    continuous.require_task_slots(application, target, [flow])
    failed = None
except HeadraceError as error:
    failed = error.code
print(json.dumps([found, failed]))
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="only Linux has an affinity")
def test_check_and_run_count_the_same_task_slots_on_one_cpu_of_several() -> None:
    environment = {**os.environ, "JAVA_HOME": str(find_java().home)}
    run = subprocess.run(
        [sys.executable, "-c", ON_ONE_CPU], capture_output=True, text=True, check=True, env=environment
    )
    assert json.loads(run.stdout.splitlines()[-1]) == [["HRC-116"], "HR-222"]
