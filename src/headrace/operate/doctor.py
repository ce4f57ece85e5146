"""Examine a machine before it is blamed: everything a local run needs, each with what to do about it.

Called by `headrace doctor`. Starts nothing, fetches nothing, writes nothing. A `fail` means that
`headrace up` or a flow cannot work; a `warn` that it works, but slower or elsewhere than expected.
"""

from __future__ import annotations

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
from headrace.stack.unprivileged import without_root

LEAST_PYTHON = (3, 11)

# The broker's heap of 0.5 GB, a Spark driver's 1 GB and its Python workers.
LEAST_MEMORY_BYTES = 2 * 2**30
GOOD_MEMORY_BYTES = 4 * 2**30

# An afternoon of generated records with their tables and checkpoints.
GOOD_FREE_BYTES = 5 * 2**30

# The live page; it shifts like the broker's ports do.
PAGE_PORT = 8080


@dataclass(frozen=True)
class Finding:
    """One thing that was examined. `remedy` is empty when it is fine."""

    name: str
    level: Literal["ok", "warn", "fail"]
    found: str
    remedy: str = ""


def examine(home: Path) -> list[Finding]:
    """Examine everything, in the order in which a run would need it. Never raises for a bad machine."""
    return [_python(), _java(), _jars(), _postgres(), _mariadb(), _folder(home), _disk(home), _memory(), *_ports(home)]


def _python() -> Finding:
    found = sys.version.split()[0]
    if sys.version_info[:2] < LEAST_PYTHON:
        return Finding("python", "fail", found, "Install Python 3.11 or newer and make the environment again.")
    return Finding("python", "ok", found)


def _java() -> Finding:
    try:
        java = find_java()
    except HeadraceError as error:
        return Finding("java", "fail", error.why, error.remedy)
    return Finding("java", "ok", f"{java.version} ({java.binary})")


def _jars() -> Finding:
    cache = JarCache()
    bad = [jar for conf in cache.confs for jar in cache.missing(conf)]
    if not bad:
        return Finding("jars", "ok", f"{len(cache.lock)} verified in {cache.root}")
    megabytes = sum(jar.size for jar in bad) / 1e6
    found = f"{len(bad)} of {len(cache.lock)} missing or damaged ({megabytes:.0f} MB to fetch)"
    return Finding("jars", "warn", found, "Run `headrace jars sync`; `headrace up` does it too.")


def _postgres() -> Finding:
    try:
        folder = postgres.programs()
        without_root()
    except HeadraceError as error:
        # Only who asks for this part needs it.
        return Finding("postgres", "warn", error.why, error.remedy)
    return Finding("postgres", "ok", f"{postgres.RELEASE} ({folder})")


def _mariadb() -> Finding:
    try:
        server = mariadb.program("mariadbd")
        without_root()
    except HeadraceError as error:
        # Only who asks for this part needs it.
        return Finding("mariadb", "warn", error.what, error.remedy)
    return Finding("mariadb", "ok", str(server))


def _folder(home: Path) -> Finding:
    nearest = _existing(home)
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        return Finding("home", "fail", f"{nearest} cannot be written", "Choose another folder with `--home`.")
    return Finding("home", "ok", str(home.absolute()))


def _disk(home: Path) -> Finding:
    free = shutil.disk_usage(_existing(home)).free
    found = f"{free / 1e9:.1f} GB free"
    if free < errors.LEAST_FREE_BYTES:
        return Finding("disk", "fail", found, "Free some space, or choose a folder on another disk with `--home`.")
    if free < GOOD_FREE_BYTES:
        return Finding("disk", "warn", found, "Enough to try; free some space before a long run.")
    return Finding("disk", "ok", found)


def _memory() -> Finding:
    memory = psutil.virtual_memory()
    found = f"{memory.available / 2**30:.1f} GB available of {memory.total / 2**30:.1f} GB"
    if memory.total < LEAST_MEMORY_BYTES:
        return Finding("memory", "fail", found, "A broker and a Spark driver need 2 GB together.")
    if memory.available < GOOD_MEMORY_BYTES:
        return Finding("memory", "warn", found, "Close something large: below 4 GB runs are slow or killed.")
    return Finding("memory", "ok", found)


def _ports(home: Path) -> list[Finding]:
    running = {part.name: part.address for part in LocalStack(home).ps() if part.state == "running"}
    findings = []
    for part, name, first in (
        ("kafka", "broker ports", kafka.FIRST_PORTS),
        ("postgres", "database port", postgres.FIRST_PORTS),
        ("mariadb", "mariadb port", mariadb.FIRST_PORTS),
        ("connect", "connect port", connect.FIRST_PORTS),
    ):
        if part in running:
            findings.append(Finding(name, "ok", f"this folder's {part} runs at {running[part]}"))
        else:
            findings.append(_port_finding(name, tuple(first.values())))
    return [*findings, _port_finding("page port", (PAGE_PORT,))]


def _port_finding(name: str, wanted: tuple[int, ...]) -> Finding:
    taken = [str(port) for port in wanted if not ports.is_free(port)]
    last = max(wanted) + ports.REACH - 1
    if taken and not any(ports.is_free(port) for port in range(min(wanted), last + 1)):
        return Finding(name, "fail", f"{min(wanted)} to {last} are taken", "Stop something that listens there.")
    if taken:
        return Finding(name, "warn", f"{', '.join(taken)} taken", "Nothing to do: the next free port is used.")
    return Finding(name, "ok", f"{', '.join(map(str, wanted))} free")


def _existing(path: Path) -> Path:
    """Return the nearest folder above a path that is there already."""
    path = path.absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return path
