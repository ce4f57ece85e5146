"""Check that a machine has everything a local run needs, with a remedy for every problem.

Used by `headrace doctor`. Starts nothing, downloads nothing, writes nothing. A `fail` means that `headrace up` or a
flow cannot work; a `warn` that it works, but slower or at another place than expected.
"""

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from headrace.errors import HeadraceError
from headrace.stack import connect, errors, kafka, mariadb, ports, postgres
from headrace.stack.jars import JarCache
from headrace.stack.java import find_java
from headrace.stack.local import LocalStack
from headrace.stack.unprivileged import unprivileged_prefix

MIN_PYTHON = (3, 11)

# The broker's heap of 0.5 GB, a Spark driver's 1 GB and its Python workers.
MIN_MEMORY_BYTES = 2 * 2**30
GOOD_MEMORY_BYTES = 4 * 2**30

# An afternoon of generated records with their tables and checkpoints.
GOOD_FREE_BYTES = 5 * 2**30

# The live page; like the broker it takes the next free port.
PAGE_PORT = 8080


@dataclass(frozen=True)
class HealthCheck:
    """The result of one check. `remedy` is empty if it is ok."""

    name: str
    level: Literal["ok", "warn", "fail"]
    detail: str
    remedy: str = ""


def run_health_checks(home: Path) -> list[HealthCheck]:
    """Run all checks, in the order in which a run needs them. Does not raise for failed checks."""
    return [_python(), _java(), _jars(), _postgres(), _mariadb(), _folder(home), _disk(home), _memory(), *_ports(home)]


def _python() -> HealthCheck:
    version = sys.version.split()[0]
    if sys.version_info[:2] < MIN_PYTHON:
        return HealthCheck("python", "fail", version, "Install Python 3.11 or newer and make the environment again.")
    return HealthCheck("python", "ok", version)


def _java() -> HealthCheck:
    try:
        java = find_java()
    except HeadraceError as error:
        return HealthCheck("java", "fail", error.why, error.remedy)
    return HealthCheck("java", "ok", f"{java.version} ({java.binary})")


def _jars() -> HealthCheck:
    cache = JarCache()
    missing = [jar for conf in cache.confs for jar in cache.missing(conf)]
    if not missing:
        return HealthCheck("jars", "ok", f"{len(cache.lock)} verified in {cache.root}")
    megabytes = sum(jar.size for jar in missing) / 1e6
    summary = f"{len(missing)} of {len(cache.lock)} missing or damaged ({megabytes:.0f} MB to fetch)"
    return HealthCheck("jars", "warn", summary, "Run `headrace jars sync`; `headrace up` does it too.")


def _postgres() -> HealthCheck:
    try:
        folder = postgres.programs_folder()
        unprivileged_prefix()
    except HeadraceError as error:
        # Only flows that use this part need it.
        return HealthCheck("postgres", "warn", error.why, error.remedy)
    return HealthCheck("postgres", "ok", f"{postgres.RELEASE} ({folder})")


def _mariadb() -> HealthCheck:
    try:
        server = mariadb.find_program("mariadbd")
        unprivileged_prefix()
    except HeadraceError as error:
        # Only flows that use this part need it.
        return HealthCheck("mariadb", "warn", error.what, error.remedy)
    return HealthCheck("mariadb", "ok", str(server))


def _folder(home: Path) -> HealthCheck:
    nearest = _nearest_existing(home)
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        return HealthCheck("home", "fail", f"{nearest} cannot be written", "Choose another folder with `--home`.")
    return HealthCheck("home", "ok", str(home.absolute()))


def _disk(home: Path) -> HealthCheck:
    free = shutil.disk_usage(_nearest_existing(home)).free
    summary = f"{free / 1e9:.1f} GB free"
    if free < errors.LEAST_FREE_BYTES:
        return HealthCheck(
            "disk", "fail", summary, "Free some space, or choose a folder on another disk with `--home`."
        )
    if free < GOOD_FREE_BYTES:
        return HealthCheck("disk", "warn", summary, "Enough to try; free some space before a long run.")
    return HealthCheck("disk", "ok", summary)


def _memory() -> HealthCheck:
    memory = psutil.virtual_memory()
    summary = f"{memory.available / 2**30:.1f} GB available of {memory.total / 2**30:.1f} GB"
    if memory.total < MIN_MEMORY_BYTES:
        return HealthCheck("memory", "fail", summary, "A broker and a Spark driver need 2 GB together.")
    if memory.available < GOOD_MEMORY_BYTES:
        return HealthCheck("memory", "warn", summary, "Close something large: below 4 GB runs are slow or killed.")
    return HealthCheck("memory", "ok", summary)


def _ports(home: Path) -> list[HealthCheck]:
    running = {part.name: part.address for part in LocalStack(home).ps() if part.state == "running"}
    checks = []
    for part, name, first_ports in (
        ("kafka", "broker ports", kafka.FIRST_PORTS),
        ("postgres", "database port", postgres.FIRST_PORTS),
        ("mariadb", "mariadb port", mariadb.FIRST_PORTS),
        ("connect", "connect port", connect.FIRST_PORTS),
    ):
        if part in running:
            checks.append(HealthCheck(name, "ok", f"this folder's {part} runs at {running[part]}"))
        else:
            checks.append(_check_ports(name, tuple(first_ports.values())))
    return [*checks, _check_ports("page port", (PAGE_PORT,))]


def _check_ports(name: str, candidates: tuple[int, ...]) -> HealthCheck:
    occupied = [str(port) for port in candidates if not ports.is_free(port)]
    last = max(candidates) + ports.REACH - 1
    if occupied and not any(ports.is_free(port) for port in range(min(candidates), last + 1)):
        return HealthCheck(name, "fail", f"{min(candidates)} to {last} are taken", "Stop something that listens there.")
    if occupied:
        return HealthCheck(name, "warn", f"{', '.join(occupied)} taken", "Nothing to do: the next free port is used.")
    return HealthCheck(name, "ok", f"{', '.join(map(str, candidates))} free")


def _nearest_existing(path: Path) -> Path:
    """Return the nearest existing folder of a path."""
    path = path.absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return path
