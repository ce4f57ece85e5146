"""A pytest plugin: the parts that a test process starts get their ports from a separate range.

A part that is down for a moment would find its port taken by one that another test process starts in the meantime, and
come back elsewhere. Commands that tests run as processes begin at the usual ports, where no test process does.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import tempfile

import pytest

from headrace.stack import connect, kafka, mariadb, ports, postgres


def pytest_configure(config: pytest.Config) -> None:
    """Move the first ports of all parts into the range."""
    number = _range()
    for first in (kafka.FIRST_PORTS, postgres.FIRST_PORTS, mariadb.FIRST_PORTS, connect.FIRST_PORTS):
        for purpose in first:
            first[purpose] += number * ports.REACH


def _range() -> int:
    """Return the lowest number, from one on, that no other test process uses. It is locked until this one ends."""
    for number in itertools.count(1):
        path = os.path.join(tempfile.gettempdir(), f"headrace-test-ports-{os.getuid()}-{number}")
        lock = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
        else:
            return number
    raise AssertionError
