"""Flows on a real standalone cluster, one of whose workers dies in the middle."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.clients.topics import create_topics
from systems.cluster_run import ENVIRONMENT, FLOWS, count, require_results, send, target_for
from systems.standalone_cluster import standalone_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from conftest import Broker

pytestmark = [pytest.mark.stack, pytest.mark.spark]

READINGS = 12_000
PER_BATCH = 1_500


def test_a_worker_that_dies_loses_nothing_and_doubles_nothing(broker: Broker, spark: SparkSession, tmp_path: Path):
    name, half = "cluster", READINGS // 2
    kafka = {"bootstrap.servers": broker.bootstrap}
    create_topics(kafka, {f"{name}-readings": 2, f"{name}-copy": 2})
    send(f"{name}-readings", broker.bootstrap, range(half))

    read = dict.fromkeys(FLOWS, 0)
    with standalone_cluster(tmp_path / "cluster", workers=2) as cluster:
        target = target_for(tmp_path, broker.bootstrap, cluster.master)
        arguments = [name, str(PER_BATCH), str(READINGS), tmp_path, broker.bootstrap, cluster.master]
        command = [sys.executable, "-m", "systems.cluster_run", *arguments]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT) as driver:
            assert driver.stdout is not None
            batches = (json.loads(line) for line in driver.stdout)
            try:
                while any(read[flow] < half for flow in FLOWS):
                    count(read, next(batches))
                send(f"{name}-readings", broker.bootstrap, range(half, READINGS))
                count(read, next(batches))
                cluster.workers[0].die()
                left = {flow: READINGS - read[flow] for flow in FLOWS}
                for batch in batches:
                    count(read, batch)
            except BaseException:
                driver.kill()
                raise
        assert driver.wait() == 0, (tmp_path / "spark.log").read_text()[-4000:]

    # The worker died in the middle: it had an executor, and every flow had records to read.
    assert "Lost executor" in (tmp_path / "spark.log").read_text()
    assert all(left[flow] > 0 for flow in FLOWS), left
    assert read == dict.fromkeys(FLOWS, READINGS)

    require_results(spark, target, name, READINGS)
