"""How much memory RocksDB takes on an executor.

The bound is one per process. The first store that is opened in an executor makes the cache that all later ones share,
whichever flow they belong to and whatever that flow says. So it is worked out once for all flows of an application:
`check` refuses flows that name different bounds (HRC-120), and those that name none get what the others say.

It is soft: what a batch touches at once may exceed it for that batch. Half of it is for rows that are not on the disk
yet.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.flow.flow import Flow
from headrace.flow.levers import RocksDB
from headrace.flow.size import Size

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

BOUND = "spark.sql.streaming.stateStore.rocksdb.maxMemoryUsageMB"

# A machine holds the JVM, its page cache and Python workers too. Past 4 GB reads of state hardly gain.
_SHARE_OF_MACHINE = 4
_LEAST_MB, _MOST_MB = 64, 4096

# Spark's own defaults for the memory of an executor beside its heap, where RocksDB's is taken from.
_OVERHEAD_FACTOR, _OVERHEAD_LEAST_MB = 0.1, 384


def state_memory(flows: Sequence[Flow], application: SparkSession) -> int:
    """Return the bound of all flows together, in megabytes. Called once per application."""
    declared = [
        Size.parse(flow.state.memory) for flow in flows if isinstance(flow.state, RocksDB) and flow.state.memory
    ]
    if declared:
        return max(declared).megabytes
    settings = application.sparkContext.getConf()
    of_target = settings.get(BOUND)
    if of_target is not None:
        return int(of_target)
    if (application.sparkContext.master or "").startswith("local"):
        return min(max(machine_bytes() // _SHARE_OF_MACHINE // 1024**2, _LEAST_MB), _MOST_MB)
    return max(_overhead_mb(settings) // 2, _LEAST_MB)


def machine_bytes() -> int:
    """Return the memory of this machine, or of the container that the process is held in."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):
        return min(whole, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return whole


def _overhead_mb(settings: SparkConf) -> int:
    given = settings.get("spark.executor.memoryOverhead")
    if given is not None:
        return _megabytes(given)
    heap = _megabytes(settings.get("spark.executor.memory") or "1g")
    factor = float(settings.get("spark.executor.memoryOverheadFactor") or _OVERHEAD_FACTOR)
    return max(int(heap * factor), _OVERHEAD_LEAST_MB)


def _megabytes(text: str) -> int:
    """Read an amount as Spark writes it: `512m`, `2g`, `1024` megabytes."""
    text = text.strip().lower().removesuffix("b")
    if text.isdigit():
        return int(text)
    return Size.parse(f"{text[:-1]} {text[-1]}b").megabytes
