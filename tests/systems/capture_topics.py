"""Reading the topic of a captured table in tests, until it holds what is waited for."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer, TopicPartition

Change = tuple[str, int | None]


@contextmanager
def changes(bootstrap: str, topic: str) -> Iterator[Callable[..., list[Change]]]:
    """Give a function that reads on until a change arrived, and returns all changes so far as (op, id)."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": uuid.uuid4().hex, "enable.auto.commit": False})
    observed: list[Change] = []

    def until(*expected: Change, seconds: float = 180.0) -> list[Change]:
        deadline = time.monotonic() + seconds
        assigned = False
        while not set(expected) <= set(observed):
            assert time.monotonic() < deadline, f"waited for {expected} and got {observed}"
            if not assigned and not consumer.assignment():
                # A topic is made with its first record.
                if topic not in consumer.list_topics(timeout=30).topics:
                    time.sleep(0.1)
                    continue
                consumer.assign([TopicPartition(topic, 0, 0)])
            assigned = True
            message = consumer.poll(0.5)
            if message is None or message.error():
                continue
            value = json.loads(message.value())
            row = value["after"] or value["before"] or {}
            observed.append((value["op"], row.get("id")))
        return list(observed)

    try:
        yield until
    finally:
        consumer.close()
