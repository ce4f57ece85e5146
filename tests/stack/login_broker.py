"""A broker that asks for TLS and a login, for tests: the local stack's own, with two further listeners.

    LOGIN   SASL_SSL, with SCRAM-SHA-512 and PLAIN
    PROOF   SSL, and the client has to show a certificate

The certificate is made by Java's keytool, at the time of the test.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from headrace.stack import kafka, ports
from headrace.stack.part import PartFiles, StartContext

STORE = "certificates.p12"
STORE_PASSWORD = "of-a-test"  # noqa: S105 - of a store that is made and deleted with the test
CA = "ca.pem"

SETTINGS = """
listeners=PLAINTEXT://{host}:{broker},CONTROLLER://{host}:{controller},LOGIN://{host}:{login},PROOF://{host}:{proof}
advertised.listeners=PLAINTEXT://{host}:{broker},LOGIN://{host}:{login},PROOF://{host}:{proof}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,LOGIN:SASL_SSL,PROOF:SSL
listener.name.login.sasl.enabled.mechanisms=SCRAM-SHA-512,PLAIN
listener.name.login.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.login.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required {users};
listener.name.proof.ssl.client.auth=required
ssl.keystore.type=PKCS12
ssl.keystore.location={store}
ssl.keystore.password={password}
ssl.truststore.type=PKCS12
ssl.truststore.location={store}
ssl.truststore.password={password}
"""


@dataclass(frozen=True)
class LoginKafka(kafka.KafkaService):
    """The broker. `users` are the names and passwords of the mechanism PLAIN; those of SCRAM are made by a client."""

    users: tuple[tuple[str, str], ...] = ()

    def prepare(self, files: PartFiles, context: StartContext) -> list[str]:
        command = super().prepare(files, context)
        broker_ports = ports.previous_ports(files.folder / "ports.json")
        login_ports = ports.choose_ports(files.folder / "login-ports.json", self.name, {"login": 19092, "proof": 19192})
        store = files.folder / STORE
        if not store.exists():
            make_certificate(context.java.home / "bin" / "keytool", store, files.folder / CA)
        users = " ".join(f"user_{name}={_as_property(password)}" for name, password in self.users)
        text = SETTINGS.format(
            host=ports.LOOPBACK,
            store=store.resolve(),
            password=STORE_PASSWORD,
            users=users,
            **broker_ports,
            **login_ports,
        )
        with (files.folder / "server.properties").open("a") as settings:
            settings.write(text)
        return command


def make_certificate(keytool: Path, store: Path, certificate: Path) -> None:
    """Make a key and a certificate that vouches for itself and for 127.0.0.1; write the certificate as PEM too."""
    shared = ["-alias", "self", "-keystore", str(store), "-storepass", STORE_PASSWORD]
    names = ["-dname", "CN=headrace-test", "-ext", "san=ip:127.0.0.1", "-ext", "bc=ca:true"]
    make = [str(keytool), "-genkeypair", "-keyalg", "EC", "-storetype", "PKCS12", "-validity", "2", *names, *shared]
    subprocess.run(make, check=True, capture_output=True)
    subprocess.run(
        [str(keytool), "-exportcert", "-rfc", "-file", str(certificate), *shared], check=True, capture_output=True
    )


def _as_property(password: str) -> str:
    """Write a password as a JAAS line takes it, and that as a properties file takes it."""
    quoted = '"' + password.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return quoted.replace("\\", "\\\\")
