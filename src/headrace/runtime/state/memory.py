"""Chooses how much memory RocksDB uses on an executor.

The limit applies per process. The first store that opens in an executor creates the cache that all later stores of all
flows share. So the limit is chosen once for all flows of an application: `check` refuses flows with different values
(HRC-120), and flows without a value use that of the others.

The limit is soft: a batch may exceed it temporarily. Half of it is for rows that are not on disk yet.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pyspark import SparkConf
from pyspark.sql import SparkSession

from headrace.flow.flow import Flow
from headrace.flow.levers import RocksDB
from headrace.flow.size import Size

MEMORY_LIMIT = "spark.sql.streaming.stateStore.rocksdb.maxMemoryUsageMB"

# The machine also runs the JVM and Python workers, and needs page cache. Above 4 GB reads of state hardly get faster.
_SHARE_OF_MACHINE = 4
_MIN_MB, _MAX_MB = 64, 4096

# Spark's defaults for the memory overhead of an executor, which includes RocksDB.
_OVERHEAD_FACTOR, _MIN_OVERHEAD_MB = 0.1, 384


def state_memory(flows: Sequence[Flow], application: SparkSession) -> int:
    """Return the limit for all flows together, in megabytes. Called once per application."""
    declared = [
        Size.parse(flow.state.memory) for flow in flows if isinstance(flow.state, RocksDB) and flow.state.memory
    ]
    if declared:
        return max(declared).megabytes
    settings = application.sparkContext.getConf()
    configured = settings.get(MEMORY_LIMIT)
    if configured is not None:
        return int(configured)
    if (application.sparkContext.master or "").startswith("local"):
        return min(max(machine_bytes() // _SHARE_OF_MACHINE // 1024**2, _MIN_MB), _MAX_MB)
    return max(_overhead_mb(settings) // 2, _MIN_MB)


def machine_bytes() -> int:
    """Return the memory of this machine, or of the container of the process."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):
        return min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return total


def _overhead_mb(settings: SparkConf) -> int:
    overhead = settings.get("spark.executor.memoryOverhead")
    if overhead is not None:
        return _megabytes(overhead)
    heap = _megabytes(settings.get("spark.executor.memory") or "1g")
    factor = float(settings.get("spark.executor.memoryOverheadFactor") or _OVERHEAD_FACTOR)
    return max(int(heap * factor), _MIN_OVERHEAD_MB)


def _megabytes(text: str) -> int:
    """Parse a size in Spark's format: `512m`, `2g`, `1024` megabytes."""
    text = text.strip().lower().removesuffix("b")
    if text.isdigit():
        return int(text)
    return Size.parse(f"{text[:-1]} {text[-1]}b").megabytes
