"""One vocabulary of Kafka settings for two clients: what each is given, and what neither is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace.clients.kafka_settings import java_settings, librdkafka_settings, require_settings
from headrace.errors import ConfigError
from headrace.flow.secret import Secret
from headrace.runtime.session import _APPLICATION, with_redaction

CANARY = "canary-91c3"
PASSWORD = Secret("${env:SHOP_PASSWORD}", CANARY)
LOGIN: dict[str, str | Secret] = {
    "bootstrap.servers": "a:1,b:2",
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "shop",
    "sasl.password": PASSWORD,
}
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nQQ==\n-----END CERTIFICATE-----\n"
KEY = "-----BEGIN PRIVATE KEY-----\nQQ==\n-----END PRIVATE KEY-----\n"


def test_a_login_reaches_each_client_in_its_own_words() -> None:
    shared = {"bootstrap.servers": "a:1,b:2", "security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512"}
    assert librdkafka_settings(LOGIN) == {**shared, "sasl.username": "shop", "sasl.password": CANARY}
    assert java_settings(LOGIN) == {
        **shared,
        "sasl.jaas.config": f'{SCRAM} required username="shop" password="{CANARY}";',
    }


def test_certificates_and_keys_reach_java_by_value(tmp_path: Path) -> None:
    for name, text in {"ca.pem": CERTIFICATE, "client.pem": CERTIFICATE, "client.key": KEY}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "client.key").chmod(0o600)
    kafka: dict[str, str | Secret] = {
        "bootstrap.servers": "a:1",
        "security.protocol": "ssl",
        "ssl.ca.location": str(tmp_path / "ca.pem"),
        "ssl.certificate.location": str(tmp_path / "client.pem"),
        "ssl.key.location": str(tmp_path / "client.key"),
        "ssl.key.password": PASSWORD,
        "ssl.endpoint.identification.algorithm": "none",
    }
    assert java_settings(kafka) == {
        "bootstrap.servers": "a:1",
        "security.protocol": "SSL",
        "ssl.endpoint.identification.algorithm": "",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": CERTIFICATE,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": CERTIFICATE,
        "ssl.keystore.key": KEY,
        "ssl.key.password": CANARY,
    }
    assert librdkafka_settings(kafka)["ssl.ca.location"] == str(tmp_path / "ca.pem")


@pytest.mark.parametrize(
    ("password", "written"),
    [('a"b', r'"a\"b"'), ("a\\b", r'"a\\b"'), ('\\"; //', r'"\\\"; //"'), ("it's ü", '"it\'s ü"')],
)
def test_a_password_of_any_letters_is_one_value_of_the_jaas_line(password: str, written: str) -> None:
    created = java_settings({**LOGIN, "sasl.password": Secret("${env:P}", password)})
    assert created["sasl.jaas.config"] == f'{SCRAM} required username="shop" password={written};'


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"sasl.jaas.config": "com.sun.security.auth.module.JndiLoginModule required;"},
            "sasl.username and sasl.password",
        ),
        ({"sasl.oauthbearer.token.endpoint.url": "http://169.254.169.254/"}, "not among the settings"),
        ({"sasl.login.callback.handler.class": "x.Y"}, "not among the settings"),
        ({"plugin.library.paths": "/opt/x.so"}, "not among the settings"),
        ({"ssl.truststore.location": "/x.jks"}, "ssl.ca.location"),
        ({"enable.ssl.certificate.verification": "false"}, "ssl.ca.location"),
        ({"sasl.usernam": "shop"}, "Did you mean 'sasl.username'?"),
        ({"sasl.password": CANARY}, "everyone can read it here"),
        ({"sasl.password": Secret("${file:/x}", "")}, "asks for a login"),
        ({"sasl.password": Secret("${file:/x}", f"{CANARY}\nb")}, "control character"),
        ({"sasl.mechanism": "OAUTHBEARER"}, "one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
        ({"security.protocol": "TLS"}, "one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ({"security.protocol": "SSL"}, "has no effect"),
        ({"security.protocol": "SASL_PLAINTEXT", "ssl.ca.location": "/x"}, "has no effect"),
        ({"ssl.key.location": "/x"}, "belong together"),
    ],
)
def test_a_setting_that_is_unknown_dangerous_or_without_effect_is_refused(
    changes: dict[str, str | Secret], message: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        require_settings({**LOGIN, **changes}, "targets.prod.kafka")
    assert refused.value.code == "HR-113"
    assert message in str(refused.value)
    assert CANARY not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "mode", "message"),
    [
        (None, 0o600, "cannot be read: No such file"),
        ("nothing", 0o600, "contains no PEM block 'PRIVATE KEY'"),
        (KEY.replace("PRIVATE", "RSA PRIVATE"), 0o600, "openssl pkcs8 -topk8"),
        (KEY, 0o640, "chmod 600"),
    ],
)
def test_a_key_that_cannot_be_used_is_refused_and_not_shown(
    tmp_path: Path, text: str | None, mode: int, message: str
) -> None:
    (tmp_path / "ca.pem").write_text(CERTIFICATE)
    if text is not None:
        (tmp_path / "key.pem").write_text(text)
        (tmp_path / "key.pem").chmod(mode)
    files = {"ssl.certificate.location": str(tmp_path / "ca.pem"), "ssl.key.location": str(tmp_path / "key.pem")}
    with pytest.raises(ConfigError, match=re.escape(message)) as refused:
        require_settings({**LOGIN, **files})
    assert refused.value.code == "HR-113"
    assert "QQ==" not in str(refused.value)


@pytest.mark.parametrize("own", [None, "shop"])
def test_spark_redacts_every_secret_whatever_a_target_sets(own: str | None) -> None:
    declared = _APPLICATION if own is None else _APPLICATION | {"spark.redaction.regex": own}
    pattern = re.compile(with_redaction(declared)["spark.redaction.regex"])
    for name in ("kafka.sasl.jaas.config", "kafka.ssl.keystore.key", "kafka.ssl.key.password"):
        assert pattern.search(name)
    assert bool(pattern.search("spark.shop.name")) == (own is not None)
    assert not pattern.search("kafka.bootstrap.servers")
