"""What can be said of Kafka without a broker: that there is no address, and that nobody answers at one."""

from __future__ import annotations

import itertools
import pickle
import socket
import threading

import pytest
from confluent_kafka import KafkaError

from headrace import KafkaExactlyOnceSink, KafkaSink, KafkaSource, Target
from headrace.clients import kafka as client
from headrace.errors import ConfigError, RecoveryError, ServiceUnavailable
from headrace.flow.secret import Secret
from headrace.flow.sink import Batch, DeadLetters
from headrace.sinks.kafka.transaction import TransactionSlot


def login(address: str, secret: Secret) -> dict[str, str | Secret]:
    settings = {"bootstrap.servers": address, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    return {**settings, "sasl.username": "shop", "sasl.password": secret}


def target(**kafka: str | Secret) -> Target:
    return Target("prod", lake="lake", checkpoints="checkpoints", kafka=kafka)


@pytest.mark.parametrize("part", [KafkaSource("rides"), KafkaSink("rides")])
@pytest.mark.parametrize("kafka", [{}, {"bootstrap.servers": ""}])
def test_a_target_without_a_kafka_address_is_refused(
    part: KafkaSource | KafkaSink, kafka: dict[str, str | Secret]
) -> None:
    with pytest.raises(ConfigError, match=r"kafka\.bootstrap\.servers") as refused:
        part.preflight(target(**kafka))
    assert refused.value.code == "HR-110"
    assert "'prod'" in refused.value.what


def test_a_batch_cannot_be_written_in_no_slots() -> None:
    with pytest.raises(RecoveryError) as refused:
        KafkaExactlyOnceSink("rides", slots=0).preflight(target())
    assert refused.value.code == "HR-346"


def test_an_error_that_a_task_hands_to_the_driver_is_the_same_there() -> None:
    with pytest.raises(RecoveryError) as refused:
        KafkaExactlyOnceSink("rides", slots=0).preflight(target())
    there = pickle.loads(pickle.dumps(refused.value))  # noqa: S301 - our own bytes
    assert (type(there), str(there), there.as_dict()) == (RecoveryError, str(refused.value), refused.value.as_dict())


def test_a_batch_reaches_a_task_without_those_who_listen_on_the_driver() -> None:
    listening = threading.Lock()
    batch = Batch("flow", "q1", 3, target(), offsets="a1", on_dead_letters=lambda _logged: listening.release())
    there = pickle.loads(pickle.dumps(TransactionSlot(batch, "rides", "ledger")))  # noqa: S301 - our own bytes
    assert there == TransactionSlot(batch, "rides", "ledger")
    there.batch.on_dead_letters(DeadLetters("sink", 1, "why", "place"))


def test_a_broker_that_does_not_answer_is_named_by_its_address_and_nothing_else_of_its_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "_ANSWER_WITHIN_SECONDS", 0.5)
    with socket.socket() as bound:  # bound, never listening: connections are refused, and nobody else gets the port
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        secret = Secret("${env:SHOP_PASSWORD}", "canary-77aa")
        with pytest.raises(ServiceUnavailable, match=address) as refused:
            client.require_topics(target(**login(address, secret)), ["rides"])
    assert refused.value.code == "HR-601"
    assert "canary-77aa" not in str(refused.value)


def test_of_several_errors_that_of_the_handshake_is_reported_whichever_came_first() -> None:
    down = KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down")
    broken = KafkaError(KafkaError._TRANSPORT, "sasl_ssl://a:1/bootstrap: Disconnected (after 2ms in state CONNECT)")
    plain = KafkaError(KafkaError._TRANSPORT, "SSL handshake failed: Disconnected: connecting to a PLAINTEXT listener?")
    reset = KafkaError(KafkaError._TRANSPORT, "SSL handshake failed: Connection reset by peer (after 1ms)")
    trust = KafkaError(KafkaError._SSL, "SSL handshake failed: certificate verify failed")
    alert = KafkaError(KafkaError._TRANSPORT, "Receive failed: SSL alert number 116: certificate required")
    login = KafkaError(KafkaError._AUTHENTICATION, "SASL authentication error: Invalid credentials")
    # Each line from what says most to what says least.
    for reported in (
        [plain, reset, broken, down],
        [trust, broken, down],
        [alert, trust, broken],
        [login, trust, broken, down],
    ):
        for order in itertools.permutations(reported):
            assert client.most_specific_error(order) is reported[0]
    assert client.most_specific_error([alert, login]) is alert
    assert client.most_specific_error([login, alert]) is login


def test_an_address_that_is_a_secret_is_used_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_ANSWER_WITHIN_SECONDS", 0.2)
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(ServiceUnavailable, match="SHOP_KAFKA") as refused:
            client.require_topics(target(**{"bootstrap.servers": Secret("${env:SHOP_KAFKA}", address)}), ["rides"])
    assert address not in refused.value.what


def test_settings_reach_sparks_connector_under_its_prefix() -> None:
    assert client.connector_options(target(**{"bootstrap.servers": "a:1,b:2", "security.protocol": "SSL"})) == {
        "kafka.bootstrap.servers": "a:1,b:2",
        "kafka.security.protocol": "SSL",
    }
