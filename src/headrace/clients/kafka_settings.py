"""The settings of Kafka clients: one vocabulary for users, translated for the two clients that take part.

Users write librdkafka's names, which are the shorter ones and need no files of Java's own kind. librdkafka (topics,
ledgers, transactions) takes them as they are; Java's client inside Spark gets the same connection in its own words:

| user                                           | Java's client                                              |
|------------------------------------------------|------------------------------------------------------------|
| sasl.mechanism, sasl.username, sasl.password   | sasl.mechanism, sasl.jaas.config                           |
| ssl.ca.location                                | ssl.truststore.type=PEM, ssl.truststore.certificates       |
| ssl.certificate.location, ssl.key.location     | ssl.keystore.type=PEM, .certificate.chain, .key            |
| ssl.key.password                               | ssl.key.password                                           |
| ssl.endpoint.identification.algorithm=none     | the same, empty                                            |
| the rest                                       | the same                                                   |

Only what stands in the table of names below is passed on. Java's client runs code that a setting names (login modules,
callback handlers) and opens addresses that it names (tokens), so a name that nobody has looked at is refused.
Certificates and keys are read here, on the driver, and handed over by value: executors need no files.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from headrace.errors import ConfigError, nearest
from headrace.flow.secret import Secret, revealed

Settings = Mapping[str, str | Secret]

_MECHANISMS = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_CHOICES = {
    "security.protocol": _PROTOCOLS,
    "sasl.mechanism": tuple(_MECHANISMS),
    "ssl.endpoint.identification.algorithm": ("https", "none"),
}
_SECRET = ("sasl.password", "ssl.key.password")
# PEM files, and the kind of block that each has to hold.
_FILES = {
    "ssl.ca.location": "CERTIFICATE",
    "ssl.certificate.location": "CERTIFICATE",
    "ssl.key.location": "PRIVATE KEY",
}
# The same words with the same meaning in both clients.
_SHARED = (
    "bootstrap.servers",
    "client.dns.lookup",
    "client.id",
    "client.rack",
    "connections.max.idle.ms",
    "metadata.max.age.ms",
    "reconnect.backoff.max.ms",
    "reconnect.backoff.ms",
    "socket.connection.setup.timeout.ms",
)
_KNOWN = (*_SHARED, *_CHOICES, "sasl.username", *_SECRET, *_FILES)
# Names that people bring from Java's client, or that hold another spelling, and what stands for them here.
_ELSEWHERE = {
    "sasl.mechanisms": "sasl.mechanism",
    "sasl.jaas.config": "sasl.username and sasl.password",
    "ssl.truststore.location": "ssl.ca.location, a PEM file",
    "ssl.truststore.certificates": "ssl.ca.location, a PEM file",
    "ssl.keystore.location": "ssl.certificate.location and ssl.key.location, PEM files",
    "ssl.keystore.key": "ssl.key.location, a PEM file",
    "ssl.keystore.certificate.chain": "ssl.certificate.location, a PEM file",
    "enable.ssl.certificate.verification": "ssl.ca.location, with the certificate to trust",
}


def require_settings(kafka: Settings, place: str = "kafka") -> None:
    """Raise HR-113 unless both clients can be given the settings; reads the PEM files. `place` begins the names."""
    for name, value in kafka.items():
        where = f"{place}.{name}"
        if name not in _KNOWN:
            instead = f" Write {_ELSEWHERE[name]}." if name in _ELSEWHERE else nearest(name, _KNOWN)
            why = f"It is not among the settings that Headrace passes on to Kafka clients.{instead}"
            raise unusable(f"The setting {where} is refused.", why)
        if name in _SECRET and not isinstance(value, Secret):
            why = (
                "It is a secret, and stands there for everyone to read. Write a reference: ${env:NAME} or ${file:PATH}."
            )
            raise unusable(f"The setting {where} is refused.", why)
        choices = _CHOICES.get(name)
        if choices is not None and _chosen(name, value) not in choices:
            raise unusable(f"The setting {where} is refused.", f"It is one of {', '.join(choices)}.")
    protocol = _chosen("security.protocol", kafka.get("security.protocol", "PLAINTEXT"))
    for kind, speaks in (("sasl.", protocol.startswith("SASL_")), ("ssl.", protocol.endswith("SSL"))):
        idle = next((name for name in kafka if name.startswith(kind)), None)
        if idle and not speaks:
            # Data and passwords would go over the network in the clear, unsaid.
            why = f"security.protocol is {protocol}, which makes no use of it."
            raise unusable(f"The setting {place}.{idle} has no effect.", why)
    if protocol.startswith("SASL_"):
        _require_login(kafka, place)
    if ("ssl.certificate.location" in kafka) != ("ssl.key.location" in kafka):
        why = "A client shows a certificate and proves with the key that it is its own: it needs both."
        raise unusable(f"{place}.ssl.certificate.location and {place}.ssl.key.location belong together.", why)
    for name in _FILES:
        if name in kafka:
            _pem(kafka, name, place)


def librdkafka(kafka: Settings) -> dict[str, str]:
    """Return the settings for a client of confluent-kafka, secrets revealed. Call it when the client is made."""
    require_settings(kafka)
    return {name: _chosen(name, value) if name in _CHOICES else revealed(value) for name, value in kafka.items()}


def java(kafka: Settings) -> dict[str, str]:
    """Return the settings for Java's client, without Spark's prefix, secrets revealed; reads the PEM files."""
    require_settings(kafka)
    made = {name: revealed(value) for name, value in kafka.items() if name in _SHARED}
    made |= {name: _chosen(name, kafka[name]) for name in _CHOICES if name in kafka}
    if made.get("ssl.endpoint.identification.algorithm") == "none":
        made["ssl.endpoint.identification.algorithm"] = ""
    if "sasl.mechanism" in made:
        module = _MECHANISMS[made["sasl.mechanism"]]
        user, password = _quoted(kafka["sasl.username"]), _quoted(kafka["sasl.password"])
        made["sasl.jaas.config"] = f"{module} required username={user} password={password};"
    if "ssl.ca.location" in kafka:
        made["ssl.truststore.type"] = "PEM"
        made["ssl.truststore.certificates"] = _pem(kafka, "ssl.ca.location")
    if "ssl.key.location" in kafka:
        made["ssl.keystore.type"] = "PEM"
        made["ssl.keystore.certificate.chain"] = _pem(kafka, "ssl.certificate.location")
        made["ssl.keystore.key"] = _pem(kafka, "ssl.key.location")
        if "ssl.key.password" in kafka:
            made["ssl.key.password"] = revealed(kafka["ssl.key.password"])
    return made


def _chosen(name: str, value: str | Secret) -> str:
    return revealed(value).lower() if name.startswith("ssl.") else revealed(value).upper()


def _require_login(kafka: Settings, place: str) -> None:
    # The mechanism too: both clients take Kerberos where none is named.
    for name in ("sasl.mechanism", "sasl.username", "sasl.password"):
        if not revealed(kafka.get(name, "")):
            raise unusable(f"The setting {place}.{name} is missing.", "security.protocol asks for a login.")
    for name in ("sasl.username", "sasl.password"):
        if any(ord(letter) < ord(" ") or letter == "\x7f" for letter in revealed(kafka[name])):
            raise unusable(
                f"The setting {place}.{name} is refused.", "It holds a line break or another control character."
            )


def _quoted(value: str | Secret) -> str:
    """Write a text as a JAAS line takes it: in double quotes, a backslash before each quote and backslash."""
    return '"' + revealed(value).replace("\\", "\\\\").replace('"', '\\"') + '"'


def _pem(kafka: Settings, name: str, place: str = "kafka") -> str:
    """Return the text of a PEM file; raise unless it holds its kind of block in a form that both clients read."""
    path, kind = Path(revealed(kafka[name])), _FILES[name]
    try:
        text, mode = path.read_text(), path.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        why = f"The file {path} cannot be read: {getattr(error, 'strerror', None) or 'it is not text'}."
        raise unusable(f"The setting {place}.{name} cannot be used.", why) from error
    if name == "ssl.key.location" and mode & 0o077:
        why = f"Other users of this machine can read {path}. Run `chmod 600 {path}`."
        raise unusable(f"The setting {place}.{name} is refused.", why)
    if f"-----BEGIN {kind}-----" in text or f"-----BEGIN ENCRYPTED {kind}-----" in text:
        return text
    why = f"The file {path} holds no PEM block '{kind}'."
    if "PRIVATE KEY-----" in text:
        why += " A key in an older form becomes one by `openssl pkcs8 -topk8 -in OLD -out NEW`."
    raise unusable(f"The setting {place}.{name} cannot be used.", why)


def unusable(what: str, why: str) -> ConfigError:
    """Return the error for settings that no client can be given."""
    return ConfigError(
        what,
        why=why,
        state="Nothing was started.",
        remedy="Correct `kafka:` of the target in headrace.yml; docs/operate/kafka-login.md lists the settings.",
        code="HR-113",
    )
