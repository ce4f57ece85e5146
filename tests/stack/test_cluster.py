"""Flows on a real standalone cluster, unchanged. `make certify` has a worker die in the middle."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.clients.topics import create_topics
from systems.cluster_run import ENVIRONMENT, require_results, send, target_for
from systems.standalone_cluster import standalone_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from conftest import Broker

pytestmark = [pytest.mark.stack, pytest.mark.spark]

READINGS = 2_000


def test_flows_run_on_the_executors_of_a_cluster(broker: Broker, spark: SparkSession, tmp_path: Path):
    name, kafka = "small-cluster", {"bootstrap.servers": broker.bootstrap}
    create_topics(kafka, {f"{name}-readings": 2, f"{name}-copy": 2})
    send(f"{name}-readings", broker.bootstrap, range(READINGS))

    with standalone_cluster(tmp_path / "cluster", workers=1) as cluster:
        target = target_for(tmp_path, broker.bootstrap, cluster.master)
        arguments = [name, str(READINGS), str(READINGS), tmp_path, broker.bootstrap, cluster.master]
        command = [sys.executable, "-m", "systems.cluster_run", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=ENVIRONMENT)

    assert done.returncode == 0, (done.stderr[-2000:], (tmp_path / "spark.log").read_text()[-4000:])
    require_results(spark, target, name, READINGS)
