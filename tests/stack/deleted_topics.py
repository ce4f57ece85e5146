"""Topics that tests delete."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

_ANSWER_SECONDS = 30.0


def delete_topic(client: AdminClient, name: str) -> None:
    """Delete a topic and return when the broker knows of it: the controller answers a moment before.

    Whoever makes the topic again within that moment would be shown the old one, and write to it.
    """
    client.delete_topics([name])[name].result(_ANSWER_SECONDS)
    deadline = time.monotonic() + _ANSWER_SECONDS
    while name in client.list_topics(timeout=_ANSWER_SECONDS).topics:
        assert time.monotonic() < deadline, f"{name} is still there"
        time.sleep(0.02)  # metadata follows the controller within milliseconds
