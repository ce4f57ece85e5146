"""Brokers that ask for TLS, a password or a certificate: both clients connect, errors name the cause, nothing leaks."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from login_broker import CA, STORE, STORE_PASSWORD, LoginKafka

from headrace import AvailableNow, Console, Flow, HeadraceError, Input, KafkaSource, Target
from headrace.clients import kafka as client
from headrace.clients.kafka import admin_client, list_topics, read_topic
from headrace.clients.kafka_settings import librdkafka_settings
from headrace.clients.topics import create_topics
from headrace.flow.secret import Secret
from headrace.runtime.events import EventBus
from headrace.runtime.supervisor import Supervisor
from headrace.stack import ports
from headrace.stack.local import LocalStack

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.stack, pytest.mark.spark]

# Letters that JAAS lines, properties files and SCRAM give a meaning to, around a word to look for.
CANARY = "canary-7d1e"
SCRAM_PASSWORD = f"{CANARY} \"q\\b'; //=,ü"
PLAIN_PASSWORD = f"{CANARY} \"p\\b'; //=,"

Settings = dict[str, str | Secret]


@dataclass(frozen=True)
class Listeners:
    """The broker's three doors and the certificate to trust."""

    folder: Path
    plaintext: str
    login: str
    proof: str

    def sasl(self, mechanism: str = "SCRAM-SHA-512", password: str = SCRAM_PASSWORD) -> Settings:
        return {
            "bootstrap.servers": self.login,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": mechanism,
            "sasl.username": "shop",
            "sasl.password": Secret("${env:SHOP_PASSWORD}", password),
            "ssl.ca.location": str(self.folder / CA),
        }

    def certificate(self, spark: SparkSession) -> Settings:
        """Return the settings of a client that shows a certificate. Java alone can take the key out of the store."""
        gateway = spark.sparkContext._gateway
        assert gateway is not None
        java = gateway.jvm.java
        store = java.security.KeyStore.getInstance("PKCS12")
        letters = gateway.new_array(gateway.jvm.char, len(STORE_PASSWORD))
        for index, letter in enumerate(STORE_PASSWORD):
            letters[index] = letter
        store.load(java.io.FileInputStream(str(self.folder / STORE)), letters)
        pkcs8 = java.lang.Class.forName("java.security.spec.PKCS8EncodedKeySpec")
        spec = java.security.KeyFactory.getInstance("EC").getKeySpec(store.getKey("self", letters), pkcs8)
        encoded = base64.encodebytes(spec.getEncoded()).decode()
        key = self.folder / "key.pem"
        key.touch(mode=0o600)
        key.write_text(f"-----BEGIN PRIVATE KEY-----\n{encoded}-----END PRIVATE KEY-----\n")
        return {
            "bootstrap.servers": self.proof,
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.folder / CA),
            "ssl.certificate.location": str(self.folder / CA),
            "ssl.key.location": str(key),
        }


@pytest.fixture(scope="module")
def listeners(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listeners]:
    home = tmp_path_factory.mktemp("login-broker")
    stack = LocalStack(home, parts=[LoginKafka(users=(("shop", PLAIN_PASSWORD),))])
    try:
        bootstrap = stack.up().bootstrap
        folder = home / "stack" / "kafka"
        selected = ports.previous_ports(folder / "login-ports.json")
        created = Listeners(folder, bootstrap, *(f"{ports.LOOPBACK}:{selected[name]}" for name in ("login", "proof")))
        keeper = admin_client({"bootstrap.servers": bootstrap})
        strength = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        user = UserScramCredentialUpsertion("shop", strength, SCRAM_PASSWORD.encode())
        for answer in keeper.alter_user_scram_credentials([user]).values():
            answer.result(30)
        create_topics(created.sasl(), {"orders": 1, "answers": 1})
        producer = Producer(librdkafka_settings(created.sasl()))
        for number in range(3):
            producer.produce("orders", json.dumps({"id": number}), str(number))
        assert producer.flush(30) == 0
        yield created
    finally:
        stack.wipe()


def target(kafka: Settings, folder: Path) -> Target:
    return Target("test", lake=str(folder / "lake"), checkpoints=str(folder / "cp"), kafka=kafka)


@pytest.mark.parametrize("way", ["SCRAM-SHA-512", "PLAIN", "certificate"])
def test_both_clients_get_in_and_no_plan_shows_how(
    spark: SparkSession, listeners: Listeners, tmp_path: Path, way: str, capfd: pytest.CaptureFixture[str]
):
    ways = {
        "SCRAM-SHA-512": listeners.sasl,
        "PLAIN": lambda: listeners.sasl("PLAIN", PLAIN_PASSWORD),
        "certificate": lambda: listeners.certificate(spark),
    }
    place = target(ways[way](), tmp_path)
    assert {"orders", "answers"} <= list_topics(place).keys()
    rows = KafkaSource("orders").batch(spark, place, '{"orders":{"0":0}}', '{"orders":{"0":3}}')
    assert sorted(json.loads(row[0])["id"] for row in rows.select("value").collect()) == [0, 1, 2]
    rows.explain("extended")
    rows.explain("formatted")
    shown = capfd.readouterr().out
    assert "kafka" in shown.lower()
    assert CANARY not in shown
    key = listeners.folder / "key.pem"
    assert not key.exists() or key.read_text().splitlines()[1] not in shown


FLOWS = """
from pyspark.sql.types import LongType, StructField, StructType

from headrace import Flow, Input, KafkaSource, KafkaExactlyOnceSink

ORDER = StructType([StructField("id", LongType(), nullable=False)])


def doubled(orders):
    return orders.selectExpr("id * 2 AS id")


orders = Flow("orders", Input(KafkaSource("orders"), schema=ORDER), doubled, KafkaExactlyOnceSink("answers", key="id"))
"""


def test_a_flow_runs_from_and_into_such_a_broker_and_the_password_is_nowhere(listeners: Listeners, tmp_path: Path):
    (tmp_path / "flows.py").write_text(FLOWS)
    (tmp_path / "events").mkdir()
    kafka = {name: str(value) for name, value in listeners.sasl().items()} | {"sasl.password": "${env:SHOP_PASSWORD}"}
    events = {"enabled": "true", "dir": f"file:{tmp_path / 'events'}", "compress": "false"}
    settings = {
        "name": "shop",
        "targets": {
            "dev": {
                "kafka": kafka,
                "master": "local[2]",
                "spark": {f"spark.eventLog.{name}": value for name, value in events.items()},
            }
        },
    }
    (tmp_path / "headrace.yml").write_text(json.dumps(settings))

    def headrace(*words: str, password: str = SCRAM_PASSWORD) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "SHOP_PASSWORD": password, "HEADRACE_SPARK_LOG_LEVEL": "INFO"}
        command = [sys.executable, "-m", "headrace", *words, "--project", str(tmp_path)]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)

    done = headrace("run", "--until-done", "--json")
    assert done.returncode == 0, done.stderr
    answers = read_topic(target(listeners.sasl(), tmp_path), "answers")
    assert sorted(json.loads(answer.value() or b"")["id"] for answer in answers) == [0, 2, 4]

    refused = headrace("run", "--until-done", "--json", password=f"not {SCRAM_PASSWORD}")
    assert refused.returncode == 3
    assert json.loads(refused.stdout.strip().splitlines()[-1])["code"] == "HR-114"
    judged = headrace("check", "--json")
    assert judged.returncode == 0
    for message in (done, refused, judged):
        assert CANARY not in message.stdout + message.stderr
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in files if CANARY.encode() in path.read_bytes()] == []
    # What was looked through holds the places where it would be.
    log = (tmp_path / ".headrace" / "logs" / "spark.log").read_text()
    assert "sasl.jaas.config" in log
    assert any(path.parent.name == "offsets" for path in files)
    assert any(
        "SparkListenerSQLExecutionStart" in path.read_text() for path in files if tmp_path / "events" in path.parents
    )


def test_a_wrong_password_stops_the_flow_permanently(
    spark: SparkSession, listeners: Listeners, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    place = target(listeners.sasl(password=f"{CANARY}, but wrong"), tmp_path)
    began = time.monotonic()
    # It is reported immediately, and not when all this time is over.
    with monkeypatch.context() as patched:
        patched.setattr(client, "_ANSWER_WITHIN_SECONDS", 300.0)
        with pytest.raises(HeadraceError) as refused:
            list_topics(place)
    assert time.monotonic() - began < 150
    assert refused.value.code == "HR-114"
    # The flow's own client is Java's, which is refused as well when the password is changed while the flow runs.
    flow = Flow("orders", Input(KafkaSource("orders")), lambda rows: rows, Console(), trigger=AvailableNow())
    error = Supervisor(spark, place, [flow], EventBus()).run()["orders"]
    assert error.code == "HR-114"
    assert CANARY not in str(refused.value) + str(error)


@pytest.mark.parametrize(
    ("case", "code", "message"),
    [
        ("no TLS at the port of TLS", "HR-605", "another security.protocol"),
        ("TLS at the port of no TLS", "HR-605", "PLAINTEXT"),
        ("a certificate that nobody trusts", "HR-114", "certificate"),
        ("no certificate where one is asked for", "HR-114", "certificate"),
    ],
)
def test_an_error_of_a_client_with_the_wrong_protocol_names_the_cause(
    listeners: Listeners, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str, code: str, message: str
):
    # Where the broker only hangs up, all of this time is taken: enough for a handshake on a busy machine.
    monkeypatch.setattr(client, "_ANSWER_WITHIN_SECONDS", 6.0)
    login = listeners.sasl()
    without_login = {"security.protocol": "SSL", "ssl.ca.location": str(listeners.folder / CA)}
    without_ca = {name: value for name, value in login.items() if name != "ssl.ca.location"}
    cases: dict[str, Settings] = {
        "no TLS at the port of TLS": {"bootstrap.servers": listeners.login},
        "TLS at the port of no TLS": {**login, "bootstrap.servers": listeners.plaintext},
        "a certificate that nobody trusts": without_ca,
        "no certificate where one is asked for": {**without_login, "bootstrap.servers": listeners.proof},
    }
    with pytest.raises(HeadraceError) as refused:
        list_topics(target(cases[case], tmp_path))
    assert refused.value.code == code
    assert message in refused.value.why
