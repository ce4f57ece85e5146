"""Ports on the loopback: which are free, and which a part had last time.

A choice is remembered in the part's folder, so that a restart comes back at the same address unless
somebody else has taken it meanwhile. Between the choice and the use another process may be faster: the
stack notices that the part died of it, and chooses again.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from pathlib import Path

from headrace.stack import errors

LOOPBACK = "127.0.0.1"

# How far a port moves upward before giving up: a hundred stacks on one machine are somebody's mistake.
REACH = 100


def is_free(port: int) -> bool:
    """Whether nobody listens on the port, on the loopback or on every address."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(0.5)
        # Asked first because macOS lets a second process bind the loopback beside a wildcard listener.
        if probe.connect_ex((LOOPBACK, port)) == 0:
            return False
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As Kafka does: connections of a process just gone (TIME_WAIT) do not make a port taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def choose(path: Path, part: str, first: Mapping[str, int]) -> dict[str, int]:
    """Choose one free port per purpose, remember the choice in the file at `path`, and return it.

    `first` gives each purpose the port to begin at. Raises HR-407 when a whole range is taken.
    """
    before = remembered(path)
    chosen: dict[str, int] = {}
    for purpose, start in first.items():
        candidates = [before[purpose]] if purpose in before else []
        candidates += range(start, start + REACH)
        port = next((port for port in candidates if port not in chosen.values() and is_free(port)), None)
        if port is None:
            raise errors.no_free_port(part, start, start + REACH - 1)
        chosen[purpose] = port
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(chosen) + "\n")
    fresh.replace(path)
    return chosen


def remembered(path: Path) -> dict[str, int]:
    """Return the ports chosen last time, or none."""
    try:
        return {str(purpose): int(port) for purpose, port in json.loads(path.read_text()).items()}
    except (FileNotFoundError, NotADirectoryError, ValueError, AttributeError, TypeError):
        return {}
