"""How a driver and its Python workers report their position to the chain, and stop there.

Kafka's producers are stopped just before they commit, wherever they are made. So this is imported before anything that
makes one, and as a program it stands in for PySpark's own daemon, from which all workers are forked.
"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import confluent_kafka

# Set by the chain for its drivers, and in no other process.
FOLDER, PORT = "CRASH_ARMED", "CRASH_PORT"


def tell(wait: bool = False, **words: object) -> None:
    """Tell the chain something; with `wait`, return only when it hangs up, which it does after this process is dead."""
    with socket.create_connection(("127.0.0.1", int(os.environ[PORT]))) as line:
        line.sendall(json.dumps(words).encode() + b"\n")
        if wait:
            line.recv(1)


def arm(flow: str, passing: int) -> None:
    """Let so many transactions of a flow commit from now on, and stop those after them."""
    folder = Path(os.environ[FOLDER])
    for number in range(passing):
        (folder / f"{flow}.{number}").touch()
    (folder / flow).touch()


class StoppingProducer(confluent_kafka.Producer):
    """A producer that stops before the commit when its flow is armed."""

    def __init__(self, settings: dict[str, str | int], **rest: object) -> None:
        super().__init__(settings, **rest)
        self._id = str(settings.get("transactional.id", ""))

    def commit_transaction(self, timeout: float = -1) -> None:
        # hr.TARGET.FLOW.STEP
        flow = self._id.split(".")[2]
        if (Path(os.environ[FOLDER]) / flow).exists() and not self._may_pass(flow):
            tell(wait=True, case=flow, point="P2")
        super().commit_transaction(timeout)

    def _may_pass(self, flow: str) -> bool:
        for leave in Path(os.environ[FOLDER]).glob(f"{flow}.*"):
            try:
                leave.unlink()
            except FileNotFoundError:
                continue
            return True
        return False


if __name__ != "__main__" and FOLDER in os.environ:
    confluent_kafka.Producer = StoppingProducer  # type: ignore[misc]

if __name__ == "__main__":
    from pyspark.daemon import manager

    import crash.armed  # noqa: F401 - the same module as the workers import, so that there is one kind of producer

    manager()
