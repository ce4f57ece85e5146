"""The settings of Kafka clients: librdkafka's names, translated for the Java client.

Users write librdkafka's names, which are shorter and need no Java keystores. librdkafka (topics, ledgers, transactions)
uses them as they are; the Java client inside Spark gets the equivalent settings:

| user                                           | Java client                                                |
|------------------------------------------------|------------------------------------------------------------|
| sasl.mechanism, sasl.username, sasl.password   | sasl.mechanism, sasl.jaas.config                           |
| ssl.ca.location                                | ssl.truststore.type=PEM, ssl.truststore.certificates       |
| ssl.certificate.location, ssl.key.location     | ssl.keystore.type=PEM, .certificate.chain, .key            |
| ssl.key.password                               | ssl.key.password                                           |
| ssl.endpoint.identification.algorithm=none     | the same, empty                                            |
| the rest                                       | the same                                                   |

Only the settings in the allow-list below are passed on. The Java client runs code that a setting names (login modules,
callback handlers) and connects to URLs that it names (tokens), so any other setting is rejected. Certificates and keys
are read on the driver and passed by value: executors need no files.
"""

from collections.abc import Mapping
from pathlib import Path

from headrace.errors import ConfigError, did_you_mean
from headrace.flow.secret import Secret, reveal_secret

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
# PEM files and their required kind of block.
_FILES = {
    "ssl.ca.location": "CERTIFICATE",
    "ssl.certificate.location": "CERTIFICATE",
    "ssl.key.location": "PRIVATE KEY",
}
# Settings with the same name and meaning in both clients.
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
_ALLOWED = (*_SHARED, *_CHOICES, "sasl.username", *_SECRET, *_FILES)
# Names of the Java client or other spellings, and the settings to use instead.
_ALTERNATIVES = {
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
    """Raise HR-113 unless the settings are valid for both clients; reads the PEM files. `place` prefixes the names."""
    for name, value in kafka.items():
        where = f"{place}.{name}"
        if name not in _ALLOWED:
            instead = f" Write {_ALTERNATIVES[name]}." if name in _ALTERNATIVES else did_you_mean(name, _ALLOWED)
            why = f"It is not among the settings that Headrace passes on to Kafka clients.{instead}"
            raise invalid_settings(f"The setting {where} is refused.", why)
        if name in _SECRET and not isinstance(value, Secret):
            why = "It is a secret, and everyone can read it here. Write a reference: ${env:NAME} or ${file:PATH}."
            raise invalid_settings(f"The setting {where} is refused.", why)
        choices = _CHOICES.get(name)
        if choices is not None and _normalized(name, value) not in choices:
            raise invalid_settings(f"The setting {where} is refused.", f"It is one of {', '.join(choices)}.")
    protocol = _normalized("security.protocol", kafka.get("security.protocol", "PLAINTEXT"))
    for kind, is_used in (("sasl.", protocol.startswith("SASL_")), ("ssl.", protocol.endswith("SSL"))):
        unused = next((name for name in kafka if name.startswith(kind)), None)
        if unused and not is_used:
            # Data and passwords would silently go over the network in clear text.
            why = f"security.protocol is {protocol}, which does not use it."
            raise invalid_settings(f"The setting {place}.{unused} has no effect.", why)
    if protocol.startswith("SASL_"):
        _require_sasl_credentials(kafka, place)
    if ("ssl.certificate.location" in kafka) != ("ssl.key.location" in kafka):
        why = "A client shows a certificate and proves with the key that it is its own: it needs both."
        raise invalid_settings(f"{place}.ssl.certificate.location and {place}.ssl.key.location belong together.", why)
    for name in _FILES:
        if name in kafka:
            _pem(kafka, name, place)


def librdkafka_settings(kafka: Settings) -> dict[str, str]:
    """Return the settings for confluent-kafka, with secrets in clear text. Call it when the client is created."""
    require_settings(kafka)
    return {
        name: _normalized(name, value) if name in _CHOICES else reveal_secret(value) for name, value in kafka.items()
    }


def java_settings(kafka: Settings) -> dict[str, str]:
    """Return the settings for the Java client, without Spark's prefix, with secrets in clear text."""
    require_settings(kafka)
    settings = {name: reveal_secret(value) for name, value in kafka.items() if name in _SHARED}
    settings |= {name: _normalized(name, kafka[name]) for name in _CHOICES if name in kafka}
    if settings.get("ssl.endpoint.identification.algorithm") == "none":
        settings["ssl.endpoint.identification.algorithm"] = ""
    if "sasl.mechanism" in settings:
        module = _MECHANISMS[settings["sasl.mechanism"]]
        user, password = _quoted(kafka["sasl.username"]), _quoted(kafka["sasl.password"])
        settings["sasl.jaas.config"] = f"{module} required username={user} password={password};"
    if "ssl.ca.location" in kafka:
        settings["ssl.truststore.type"] = "PEM"
        settings["ssl.truststore.certificates"] = _pem(kafka, "ssl.ca.location")
    if "ssl.key.location" in kafka:
        settings["ssl.keystore.type"] = "PEM"
        settings["ssl.keystore.certificate.chain"] = _pem(kafka, "ssl.certificate.location")
        settings["ssl.keystore.key"] = _pem(kafka, "ssl.key.location")
        if "ssl.key.password" in kafka:
            settings["ssl.key.password"] = reveal_secret(kafka["ssl.key.password"])
    return settings


def _normalized(name: str, value: str | Secret) -> str:
    return reveal_secret(value).lower() if name.startswith("ssl.") else reveal_secret(value).upper()


def _require_sasl_credentials(kafka: Settings, place: str) -> None:
    # Also require the mechanism: both clients default to Kerberos.
    for name in ("sasl.mechanism", "sasl.username", "sasl.password"):
        if not reveal_secret(kafka.get(name, "")):
            raise invalid_settings(f"The setting {place}.{name} is missing.", "security.protocol asks for a login.")
    for name in ("sasl.username", "sasl.password"):
        if any(ord(letter) < ord(" ") or letter == "\x7f" for letter in reveal_secret(kafka[name])):
            raise invalid_settings(
                f"The setting {place}.{name} is refused.", "It contains a line break or another control character."
            )


def _quoted(value: str | Secret) -> str:
    """Quote a string for JAAS: in double quotes, with a backslash before each quote and backslash."""
    return '"' + reveal_secret(value).replace("\\", "\\\\").replace('"', '\\"') + '"'


def _pem(kafka: Settings, name: str, place: str = "kafka") -> str:
    """Return the text of a PEM file; raise unless it contains its kind of block in a form that both clients read."""
    path, kind = Path(reveal_secret(kafka[name])), _FILES[name]
    try:
        text, mode = path.read_text(), path.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        why = f"The file {path} cannot be read: {getattr(error, 'strerror', None) or 'it is not text'}."
        raise invalid_settings(f"The setting {place}.{name} cannot be used.", why) from error
    if name == "ssl.key.location" and mode & 0o077:
        why = f"Other users of this machine can read {path}. Run `chmod 600 {path}`."
        raise invalid_settings(f"The setting {place}.{name} is refused.", why)
    if f"-----BEGIN {kind}-----" in text or f"-----BEGIN ENCRYPTED {kind}-----" in text:
        return text
    why = f"The file {path} contains no PEM block '{kind}'."
    if "PRIVATE KEY-----" in text:
        why += " A key in an older form becomes one by `openssl pkcs8 -topk8 -in OLD -out NEW`."
    raise invalid_settings(f"The setting {place}.{name} cannot be used.", why)


def invalid_settings(what: str, why: str) -> ConfigError:
    """Return HR-113: the Kafka settings are invalid."""
    return ConfigError(
        what,
        why=why,
        remedy="Correct `kafka:` of the target in headrace.yml; docs/operate/kafka-login.md lists the settings.",
        code="HR-113",
    )
