"""The local stack with its real broker: started, adopted, killed, moved, retained and wiped."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from headrace.clients import topics
from headrace.clients.topics import create_topics
from headrace.errors import DataError, ServiceUnavailable, StackError
from headrace.stack import ports
from headrace.stack.kafka import KafkaService
from headrace.stack.local import LocalStack

pytestmark = pytest.mark.stack

UP = "import sys, pathlib; from headrace.stack.local import LocalStack; LocalStack(pathlib.Path(sys.argv[1])).up();"
UP_THEN_CRASH = f"{UP} import os, signal; os.kill(os.getpid(), signal.SIGKILL)"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A home whose parts are stopped when the test is over, whatever happened in it."""
    yield tmp_path / "home"
    LocalStack(tmp_path / "home").wipe()


def kafka_pid(home: Path) -> int:
    pid = LocalStack(home).ps()[0].pid
    assert pid is not None
    return pid


def send(bootstrap: str, topic: str, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "message.max.bytes": 10_000_000, "log_level": 0})
    answers: list[object] = []
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _record: answers.append(error))
    assert producer.flush(60) == 0
    assert answers == [None] * len(values)


def read_records(bootstrap: str, topic: str, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "test", "log_level": 0})
    consumer.assign([TopicPartition(topic, 0, 0)])
    records = [record.value() or b"" for record in consumer.consume(count, timeout=60)]
    consumer.close()
    return records


def test_a_broker_outlives_its_parents_crash_and_the_next_up_adopts_it(home: Path) -> None:
    crashed = subprocess.run([sys.executable, "-c", UP_THEN_CRASH, str(home)], check=False)
    assert crashed.returncode == -signal.SIGKILL
    stack = LocalStack(home)
    before = kafka_pid(home)

    running = stack.up()
    assert running.adopted == ("kafka",)
    assert kafka_pid(home) == before
    create_topics({"bootstrap.servers": running.bootstrap}, {"works": 1})

    # As if the parent had been killed between the start of the process and the writing of its record.
    (home / "stack" / "kafka" / "process.json").unlink()
    assert stack.ps()[0].state == "running"
    assert stack.up().adopted == ("kafka",)
    assert kafka_pid(home) == before


def test_a_killed_broker_is_crashed_and_up_restarts_it_with_its_data(home: Path) -> None:
    stack = LocalStack(home)
    running = stack.up()
    create_topics({"bootstrap.servers": running.bootstrap}, {"rides": 1})
    send(running.bootstrap, "rides", b"one", b"two")
    killed = psutil.Process(kafka_pid(home))
    killed.kill()
    killed.wait(timeout=30)

    status = stack.ps()[0]
    assert (status.state, status.pid) == ("crashed", None)

    again = stack.up()
    assert again.adopted == ()
    assert kafka_pid(home) != killed.pid
    assert read_records(again.bootstrap, "rides", 2) == [b"one", b"two"]


def test_down_retains_data_and_port_and_wipe_deletes_all(home: Path) -> None:
    stack = LocalStack(home)
    first = stack.up()
    create_topics({"bootstrap.servers": first.bootstrap}, {"kept": 1})
    send(first.bootstrap, "kept", b"still here")

    assert stack.down() == ("kafka",)
    assert stack.down() == ()
    stopped = stack.ps()[0]
    assert (stopped.state, stopped.address) == ("stopped", first.bootstrap)
    assert stopped.data_bytes > 0

    with socket.create_server((ports.LOOPBACK, int(first.bootstrap.partition(":")[2]))):
        shifted = stack.up()
        assert shifted.bootstrap != first.bootstrap
        assert read_records(shifted.bootstrap, "kept", 1) == [b"still here"]

    assert stack.wipe() == ("kafka",)
    wiped = stack.ps()[0]
    assert (wiped.state, wiped.data_bytes, wiped.address) == ("stopped", 0, "")
    assert [path.name for path in (home / "stack").iterdir()] == ["lock"]


def test_two_concurrent_ups_start_one_broker(home: Path) -> None:
    both = [subprocess.Popen([sys.executable, "-c", UP, str(home)]) for _ in range(2)]
    assert [process.wait(timeout=180) for process in both] == [0, 0]
    mark = f"-Dheadrace.part={home.resolve()}/stack/kafka"
    marked = [process.pid for process in psutil.process_iter(["cmdline"]) if mark in (process.info["cmdline"] or ())]
    assert marked == [kafka_pid(home)]


def test_a_broker_that_fails_to_start_is_hr_408_with_its_log(home: Path) -> None:
    stack = LocalStack(home, parts=[KafkaService(heap="1k")])
    with pytest.raises(StackError, match="Too small maximum heap") as caught:
        stack.up()
    assert caught.value.code == "HR-408"
    assert stack.ps()[0].state == "stopped"


def test_a_range_of_ports_that_is_taken_is_hr_407_and_nothing_starts(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ports, "REACH", 1)
    with socket.create_server((ports.LOOPBACK, 0)) as taken:
        monkeypatch.setattr("headrace.stack.kafka.FIRST_PORTS", {"broker": taken.getsockname()[1]})
        with pytest.raises(StackError) as caught:
            LocalStack(home).up()
    assert caught.value.code == "HR-407"
    assert LocalStack(home).ps()[0].state == "stopped"


def test_a_home_that_cannot_be_written_is_hr_405(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StackError) as caught:
        LocalStack(tmp_path / "file").up()
    assert caught.value.code == "HR-405"
    assert "--home" in caught.value.remedy


def test_an_unknown_part_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="Did you mean 'kafka'") as caught:
        LocalStack(tmp_path).up(("kafak",))
    assert caught.value.code == "HR-404"


def test_topics_are_created_once_and_never_changed(broker) -> None:  # type: ignore[no-untyped-def]
    assert set(create_topics({"bootstrap.servers": broker.bootstrap}, {"stack-a": 3, "stack-b": 1})) == {
        "stack-a",
        "stack-b",
    }
    assert create_topics({"bootstrap.servers": broker.bootstrap}, {"stack-a": 3, "stack-b": 1}) == ()
    with pytest.raises(DataError, match=r"3 partition\(s\) and the declaration has 4") as caught:
        create_topics({"bootstrap.servers": broker.bootstrap}, {"stack-a": 4})
    assert caught.value.code == "HR-503"


def test_a_record_of_five_megabytes_is_accepted(broker) -> None:  # type: ignore[no-untyped-def]
    create_topics({"bootstrap.servers": broker.bootstrap}, {"stack-large": 1})
    large = os.urandom(5_000_000)
    send(broker.bootstrap, "stack-large", large)
    assert read_records(broker.bootstrap, "stack-large", 1) == [large]


def test_a_broker_that_is_not_there_is_transient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "ANSWER_SECONDS", 1.0)
    with pytest.raises(ServiceUnavailable) as caught:
        create_topics({"bootstrap.servers": f"{ports.LOOPBACK}:1"}, {"nowhere": 1})
    assert caught.value.code == "HR-601"
