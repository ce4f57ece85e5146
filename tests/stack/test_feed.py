"""The feed against a real broker."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Protocol

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, ClusterMetadata
from confluent_kafka.cimpl import NewPartitions, NewTopic

from headrace.clients import topic_feed as feed_module
from headrace.clients.topic_feed import FeedStatus, TopicFeed
from headrace.patterns.rides.board import BoardSnapshot, CityBoard
from headrace.patterns.rides.page import CityPage
from headrace.stack.local import LocalStack

pytestmark = pytest.mark.stack

PATIENCE = 90.0  # seconds: a busy machine is slow, a broken feed is slower


class Broker(Protocol):
    """What these tests need to know of the shared broker."""

    @property
    def bootstrap(self) -> str: ...


class Pipe:
    """Two topics of this test's own, the board behind them, and the means to write."""

    def __init__(self, bootstrap: str) -> None:
        name = uuid.uuid4().hex[:8]
        self.bootstrap = bootstrap
        self.board = CityBoard()
        self.page = CityPage(self.board, f"metrics-{name}", f"surge-{name}")
        self.feed = TopicFeed(bootstrap, self.page.topics, self.page.apply)
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        self.producer = Producer({"bootstrap.servers": bootstrap})

    def create(self, *names: str, partitions: int = 2) -> None:
        for future in self.admin.create_topics([NewTopic(name, partitions, 1) for name in names]).values():
            future.result(PATIENCE)

    def send(self, topic: str, value: bytes | None, *, key: str = "Lisbon", partition: int = -1) -> None:
        self.producer.produce(topic, value, key=key, partition=partition)
        assert self.producer.flush(PATIENCE) == 0

    def until(self, holds: str, count: int) -> BoardSnapshot:
        """Wait until the newest window of a city has this many rides."""
        reached = Event()

        def look() -> None:
            city = self.board.snapshot().cities.get(holds)
            if city and city.latest.rides.ride_count == count:
                reached.set()

        end = self.board.subscribe(look)
        look()
        assert reached.wait(PATIENCE), f"{holds} did not reach {count} rides: {self.feed.status}"
        end()
        return self.board.snapshot()


def wait_until(feed: TopicFeed, predicate: Callable[[FeedStatus], bool], timeout: float) -> bool:
    """Wait until the status is as expected; return whether it is, after `timeout` seconds at the latest."""
    deadline = time.monotonic() + timeout
    while not predicate(feed.status):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def metrics(city: str, count: int, window: int = 0) -> bytes:
    start = datetime(2026, 11, 16, 4, 20, tzinfo=UTC) + window * timedelta(minutes=5)
    row = {
        "window_start": start.strftime("%Y-%m-%dT%H:%M:%S.000Z"),
        "window_end": (start + timedelta(minutes=5)).strftime("%Y-%m-%dT%H:%M:%S.000Z"),
        "city": city,
        "ride_count": count,
        "completed_rides": count // 2,
        "avg_fare": 12.345678,
        "active_drivers": 37,
        "completion_rate": 0.5,
    }
    return json.dumps(row).encode()


def surge(city: str, multiplier: float) -> bytes:
    row = json.loads(metrics(city, 0)) | {
        "total_requests": 9,
        "active_rides": 5,
        "available_drivers": 2,
        "surge_multiplier": multiplier,
    }
    return json.dumps(row).encode()


@pytest.fixture
def pipe(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipe]:
    monkeypatch.setattr(feed_module, "_REFRESH_SECONDS", 0.2)
    monkeypatch.setattr(feed_module, "_RETRY_SECONDS", 0.2)
    pipe = Pipe(broker.bootstrap)
    yield pipe
    assert pipe.feed.stop(PATIENCE)
    pipe.admin.delete_topics([pipe.page.metrics_topic, pipe.page.surge_topic])


def test_rows_written_before_and_after_the_start_reach_the_board(pipe: Pipe) -> None:
    pipe.create(pipe.page.metrics_topic, pipe.page.surge_topic)
    pipe.send(pipe.page.metrics_topic, metrics("Lisbon", 100))
    pipe.send(pipe.page.surge_topic, surge("Lisbon", 2.0))
    pipe.feed.start()
    assert wait_until(pipe.feed, lambda status: status.state == "live" and status.rows == 2, PATIENCE)
    snapshot = pipe.until("Lisbon", 100)
    assert snapshot.cities["Lisbon"].latest.multiplier == 2.0
    assert snapshot.as_of is not None
    pipe.send(pipe.page.metrics_topic, metrics("Lisbon", 120))
    assert len(pipe.until("Lisbon", 120).cities["Lisbon"].windows) == 1


def test_topics_that_are_created_later_are_read(pipe: Pipe) -> None:
    pipe.feed.start()
    both = tuple(sorted((pipe.page.metrics_topic, pipe.page.surge_topic)))
    assert wait_until(pipe.feed, lambda s: s.state == "waiting" and s.missing_topics == both, PATIENCE)
    assert pipe.page.metrics_topic not in pipe.admin.list_topics(timeout=PATIENCE).topics, "the feed made the topic"
    pipe.create(pipe.page.metrics_topic)
    assert wait_until(pipe.feed, lambda s: s.missing_topics == (pipe.page.surge_topic,), PATIENCE)
    pipe.send(pipe.page.metrics_topic, metrics("Lisbon", 7))
    pipe.until("Lisbon", 7)
    pipe.create(pipe.page.surge_topic)
    assert wait_until(pipe.feed, lambda status: status.state == "live", PATIENCE)


@pytest.mark.parametrize("poison", [b"{", b"\xff\xfe", b"[]", b'{"city": "Lisbon"}', None])
def test_a_malformed_message_is_counted_and_skipped(pipe: Pipe, poison: bytes | None) -> None:
    pipe.create(pipe.page.metrics_topic, pipe.page.surge_topic)
    pipe.send(pipe.page.metrics_topic, poison)
    pipe.send(pipe.page.metrics_topic, metrics("Lisbon", 11))
    pipe.feed.start()
    pipe.until("Lisbon", 11)
    assert wait_until(pipe.feed, lambda status: (status.rows, status.malformed) == (1, 1), PATIENCE)


def test_rows_of_an_aborted_transaction_are_never_shown(pipe: Pipe) -> None:
    pipe.create(pipe.page.metrics_topic, pipe.page.surge_topic, partitions=1)
    writer = Producer({"bootstrap.servers": pipe.bootstrap, "transactional.id": f"t-{uuid.uuid4().hex[:8]}"})
    writer.init_transactions(PATIENCE)
    writer.begin_transaction()
    writer.produce(pipe.page.metrics_topic, metrics("Lisbon", 666), key="Lisbon")
    writer.flush(PATIENCE)
    writer.abort_transaction(PATIENCE)
    pipe.send(pipe.page.metrics_topic, metrics("Porto", 5), key="Porto")
    pipe.feed.start()
    assert "Lisbon" not in pipe.until("Porto", 5).cities


def test_a_partition_that_is_added_later_is_read_from_its_beginning(pipe: Pipe) -> None:
    pipe.create(pipe.page.metrics_topic, pipe.page.surge_topic, partitions=1)
    pipe.feed.start()
    assert wait_until(pipe.feed, lambda status: status.state == "live", PATIENCE)
    for future in pipe.admin.create_partitions([NewPartitions(pipe.page.metrics_topic, 2)]).values():
        future.result(PATIENCE)
    pipe.producer = Producer({"bootstrap.servers": pipe.bootstrap})
    pipe.send(pipe.page.metrics_topic, metrics("Lisbon", 42), partition=1)
    pipe.until("Lisbon", 42)


def test_a_feed_without_a_broker_is_unreachable_and_stops(pipe: Pipe) -> None:
    lost = TopicFeed("127.0.0.1:1", pipe.page.topics, pipe.page.apply)
    lost.start()
    assert wait_until(lost, lambda status: status.state == "unreachable", PATIENCE)
    assert lost.stop(PATIENCE)
    assert lost.status.state == "stopped"


class ForgetfulConsumer(Consumer):
    """Fails as librdkafka does after it has asked a broker that lists no brokers: in some restarts only."""

    has_forgotten = False

    def list_topics(self, *words: object, **named: object) -> ClusterMetadata:
        if self.has_forgotten:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        return super().list_topics(*words, **named)


def test_the_feed_replaces_a_client_that_has_forgotten_its_broker(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    clients: list[ForgetfulConsumer] = []
    monkeypatch.setattr(
        feed_module,
        "Consumer",
        lambda *words, **named: clients.append(ForgetfulConsumer(*words, **named)) or clients[-1],
    )
    pipe.create(pipe.page.metrics_topic, pipe.page.surge_topic)
    pipe.feed.start()
    assert wait_until(pipe.feed, lambda status: status.state == "live", PATIENCE), pipe.feed.status
    clients[0].has_forgotten = True
    assert wait_until(pipe.feed, lambda status: status.state == "unreachable", PATIENCE), pipe.feed.status
    assert wait_until(pipe.feed, lambda status: status.state == "live", PATIENCE), pipe.feed.status
    pipe.send(pipe.page.metrics_topic, metrics("Lisbon", 9))
    pipe.until("Lisbon", 9)
    assert len(clients) == 2


def test_the_feed_reconnects_to_a_restarted_broker(tmp_path: Path) -> None:
    stack = LocalStack(tmp_path)
    try:
        pipe = Pipe(stack.up().bootstrap)
        pipe.create(pipe.page.metrics_topic, pipe.page.surge_topic)
        pipe.send(pipe.page.metrics_topic, metrics("Lisbon", 1))
        with pipe.feed as feed:
            pipe.until("Lisbon", 1)
            stack.down()
            assert wait_until(feed, lambda status: status.state == "unreachable", PATIENCE), feed.status
            assert pipe.until("Lisbon", 1).cities, "the board keeps its last rows"
            assert stack.up().bootstrap == pipe.bootstrap
            assert wait_until(feed, lambda status: status.state == "live", PATIENCE), feed.status
            # A client that met the broker while it started would not send; the feed replaces its own.
            pipe.producer = Producer({"bootstrap.servers": pipe.bootstrap})
            pipe.send(pipe.page.metrics_topic, metrics("Lisbon", 2))
            pipe.until("Lisbon", 2)
    finally:
        stack.wipe()
