"""How Headrace sends rows to a receiver over HTTP: to an address that was looked at first, and again until it is taken.

The name of a receiver is resolved once per batch, every address is checked, and the connection goes to the address that
was checked: a name that points somewhere else a moment later leads nowhere. Redirects are not followed, proxies of the
environment are not used.
"""

from __future__ import annotations

import ipaddress
import random
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from urllib3 import BaseHTTPResponse, HTTPConnectionPool, HTTPSConnectionPool, Retry, Timeout
from urllib3.exceptions import HTTPError, InvalidHeader, MaxRetryError

from headrace.errors import ConfigError, PartUnavailable
from headrace.flow.secret import revealed
from headrace.flow.target import Service

# Worth another try: too slow, too early, too many, the same request under way, or a fault of the receiver.
_AGAIN = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 507})

# The first pause is at most this long, each further one twice the one before, up to the longest.
_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 60.0
# A receiver that asks for a longer pause than this is asked again all the same: the batch and its state wait.
_LONGEST_RETRY_AFTER_SECONDS = 600

# A receiver that takes longer to connect is not there.
_CONNECT_SECONDS = 10.0

# How much of a refusal is kept: enough for a message, not enough to fill a table.
_ANSWER_BYTES = 1_000


@dataclass(frozen=True)
class Answer:
    """The last answer to a request, and how often it was sent."""

    status: int
    attempts: int
    text: str

    @property
    def taken(self) -> bool:
        """Whether the receiver has the rows."""
        return 200 <= self.status < 300


class Receiver:
    """One service, at an address that was checked. Used by several threads at once; close it when the batch is done."""

    def __init__(
        self, service: Service, name: str, path: str, *, attempts: int, seconds: float, in_flight: int
    ) -> None:
        url = service_url(service, name, path)
        address = checked_address(url, service, name)
        self._name, self._seconds = name, seconds
        self._target = (url.path or "/") + (f"?{url.query}" if url.query else "")
        self._headers = {"Host": url.netloc} | {key: revealed(value) for key, value in service.headers.items()}
        self._retries = _Retries(
            total=attempts - 1,
            redirect=False,
            allowed_methods=None,
            status_forcelist=_AGAIN,
            raise_on_status=False,
            backoff_factor=_FIRST_PAUSE_SECONDS,
            backoff_max=_LONGEST_PAUSE_SECONDS,
            retry_after_max=_LONGEST_RETRY_AFTER_SECONDS,
        )
        timeout = Timeout(connect=_CONNECT_SECONDS, read=seconds)
        self._pool: HTTPConnectionPool
        if url.scheme == "https":
            self._pool = HTTPSConnectionPool(
                address,
                url.port or 443,
                timeout=timeout,
                maxsize=in_flight,
                block=True,
                ca_certs=service.ca,
                server_hostname=url.hostname,
                assert_hostname=url.hostname,
            )
        else:
            self._pool = HTTPConnectionPool(address, url.port or 80, timeout=timeout, maxsize=in_flight, block=True)

    def post(self, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Send a request until the receiver takes it, refuses it, or has had all attempts; return its last answer.

        Raises HR-610 when there was no answer at all.
        """
        try:
            response = self._pool.urlopen(
                "POST",
                self._target,
                body=body,
                headers=self._headers | dict(headers),
                retries=self._retries,
                redirect=False,
            )
        except HTTPError as error:
            raise self._silent(error) from error
        return Answer(response.status, _attempts(response), response.data[:_ANSWER_BYTES].decode(errors="replace"))

    def close(self) -> None:
        """Close the connections."""
        self._pool.close()

    def _silent(self, error: HTTPError) -> PartUnavailable:
        cause = error.reason if isinstance(error, MaxRetryError) and error.reason is not None else error
        # Messages of the client begin with a Python object's address and may go on with the cause.
        words = str(cause).rpartition(": ")[2].rstrip(".")
        return PartUnavailable(
            f"The service '{self._name}' does not answer.",
            why=f"{type(cause).__name__}: {words}.",
            state="Some rows of the batch may have been taken. It is sent again, under the same idempotency keys.",
            remedy=f"Nothing, if it comes back. Otherwise correct the URL of services.{self._name} in headrace.yml.",
            code="HR-610",
        )


class _Retries(Retry):
    """Pauses that grow and are spread at random, so that many senders do not come back at the same moment."""

    def get_backoff_time(self) -> float:
        """Return a random pause up to one that doubles with every failure."""
        longest = self.backoff_factor * 2.0 ** (len(self.history) - 1)
        return random.uniform(0, min(self.backoff_max, longest))  # noqa: S311 - spreads load, protects nothing

    def get_retry_after(self, response: BaseHTTPResponse) -> float | None:
        """Return how long the receiver asks to wait; nothing when it says it in words that nobody understands."""
        try:
            return super().get_retry_after(response)
        except InvalidHeader:
            return None


def service_url(service: Service, name: str, path: str) -> SplitResult:
    """Return the address of a request. Raises HR-117 for a URL that is none, or that holds a password."""
    url = urlsplit(service.url.rstrip("/") + path)
    problem = None
    if url.scheme not in ("http", "https") or not url.hostname:
        problem = "It has to begin with https:// and a host."
    elif url.username or url.password:
        problem = "It holds a user or a password, and URLs are printed. Use a header."
    elif url.scheme == "http" and not service.private:
        problem = "Rows go over the open network, so it has to be https."
    elif url.fragment:
        problem = "It has a fragment (#...), which is never sent."
    if problem:
        raise ConfigError(
            f"The URL of the service '{name}' cannot be used.",
            why=problem,
            state="Nothing was sent.",
            remedy=f"Correct services.{name}.url of the target in headrace.yml.",
            code="HR-117",
        )
    return url


def checked_address(url: SplitResult, service: Service, name: str) -> str:
    """Resolve the host and return its first address, when all of them may be sent to.

    A name that leads into the private network could make a pipeline send its rows to a machine's own services.
    """
    host = url.hostname or ""
    try:
        found = socket.getaddrinfo(host, url.port, type=socket.SOCK_STREAM)
    except (OSError, ValueError) as error:
        raise PartUnavailable(
            f"The host of the service '{name}' is not known.",
            why=f"{host}: {error}.",
            state="Nothing was sent.",
            remedy=f"Correct services.{name}.url of the target in headrace.yml, or repair the name service.",
            code="HR-610",
        ) from error
    addresses = [str(entry[4][0]) for entry in found]
    inside = [each for each in addresses if not _is_public(each)]
    if inside and not service.private:
        raise ConfigError(
            f"The service '{name}' is in a private network.",
            why=f"{host} leads to {inside[0]}, which is not an address of the public network.",
            state="Nothing was sent.",
            remedy=f"Set `private: true` for services.{name} of the target in headrace.yml, if that is meant.",
            code="HR-118",
        )
    return addresses[0]


def _is_public(address: str) -> bool:
    parsed = ipaddress.ip_address(address.partition("%")[0])
    # ::ffff:10.0.0.1 is 10.0.0.1 in another dress, and so are the two ways of tunnelling.
    inner = (getattr(parsed, "ipv4_mapped", None), getattr(parsed, "sixtofour", None))
    return all(each.is_global and not each.is_multicast for each in (parsed, *inner) if each is not None)


def _attempts(response: BaseHTTPResponse) -> int:
    return len(response.retries.history) + 1 if response.retries is not None else 1
