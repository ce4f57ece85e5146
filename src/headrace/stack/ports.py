"""Ports on the loopback: choose free ones, and reuse those of the last start.

The ports are stored in the part's folder, so that a restart uses the same address unless another process
has taken it. If a port is taken between the choice and the start, the stack notices that the part failed
for this reason and chooses again.
"""

import json
import socket
from collections.abc import Mapping
from pathlib import Path

from headrace.errors import StackError

LOOPBACK = "127.0.0.1"

# How far a port moves upward before giving up: a hundred stacks on one machine are somebody's mistake.
REACH = 100


def is_free(port: int) -> bool:
    """Whether nobody listens on the port, on the loopback or on every address."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(0.5)
        # Asked first because macOS lets a second process bind the loopback next to a wildcard listener.
        if probe.connect_ex((LOOPBACK, port)) == 0:
            return False
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As Kafka does: connections of an ended process (TIME_WAIT) do not make a port taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def choose_ports(path: Path, part: str, first: Mapping[str, int]) -> dict[str, int]:
    """Choose one free port per purpose, store the choice in the file at `path`, and return it.

    `first` gives each purpose the port to begin at. Raises HR-407 when a whole range is taken.
    """
    previous = previous_ports(path)
    chosen_ports: dict[str, int] = {}
    for purpose, start in first.items():
        candidates = [previous[purpose]] if purpose in previous else []
        candidates += range(start, start + REACH)
        port = next((port for port in candidates if port not in chosen_ports.values() and is_free(port)), None)
        if port is None:
            raise StackError(
                f"No port is free for {part}: {start} to {start + REACH - 1} are all taken.",
                why="Other programs, or other local stacks, listen on them.",
                state="Nothing was started, and what was there is untouched.",
                remedy="Stop one of them (`headrace down --home <folder>` for another stack) and run `headrace up` "
                "again.",
                code="HR-407",
            )
        chosen_ports[purpose] = port
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(chosen_ports) + "\n")
    fresh.replace(path)
    return chosen_ports


def previous_ports(path: Path) -> dict[str, int]:
    """Return the ports of the last start, or an empty dict."""
    try:
        return {str(purpose): int(port) for purpose, port in json.loads(path.read_text()).items()}
    except (FileNotFoundError, NotADirectoryError, ValueError, AttributeError, TypeError):
        return {}
