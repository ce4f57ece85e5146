"""The HTTP client of the REST sink: checked addresses, and retries with back-off.

The host name is resolved once per batch, every address is checked, and the connection goes to the checked address, so
that a DNS change in between has no effect. Redirects are not followed, and proxies of the environment are not used.
"""

import ipaddress
import random
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from urllib3 import BaseHTTPResponse, HTTPConnectionPool, HTTPSConnectionPool, Retry, Timeout
from urllib3.exceptions import HTTPError, InvalidHeader, MaxRetryError

from headrace.errors import ConfigError, ServiceUnavailable
from headrace.flow.secret import reveal_secret
from headrace.flow.target import HttpEndpoint

# Statuses to retry: timeout, too early, too many requests, a conflicting request in flight, or a server error.
_RETRY_STATUSES = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 507})

# The first back-off is at most this long, each further one twice the previous, up to the longest.
_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 60.0
# A longer Retry-After is cut to this, because the batch and its state wait.
_LONGEST_RETRY_AFTER_SECONDS = 600

# The timeout to connect.
_CONNECT_SECONDS = 10.0

# The part of an error response that is stored: enough for a message.
_ANSWER_BYTES = 1_000


@dataclass(frozen=True)
class HttpResponse:
    """The last response to a request, and how often the request was sent."""

    status: int
    attempts: int
    text: str

    @property
    def is_accepted(self) -> bool:
        """Whether the service has accepted the rows."""
        return 200 <= self.status < 300


class HttpClient:
    """Connections to one service at a checked address. Thread-safe; close it at the end of the batch."""

    def __init__(
        self, service: HttpEndpoint, name: str, path: str, *, attempts: int, seconds: float, in_flight: int
    ) -> None:
        url = service_url(service, name, path)
        address = resolve_address(url, service, name)
        self._name, self._seconds = name, seconds
        self._target = (url.path or "/") + (f"?{url.query}" if url.query else "")
        self._headers = {"Host": url.netloc} | {key: reveal_secret(value) for key, value in service.headers.items()}
        self._retries = _Retries(
            total=attempts - 1,
            redirect=False,
            allowed_methods=None,
            status_forcelist=_RETRY_STATUSES,
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

    def post(self, body: bytes, headers: Mapping[str, str]) -> HttpResponse:
        """Send a request until it is accepted, rejected, or out of attempts; return the last response.

        Raises HR-610 if there was no response at all.
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
            raise self._no_response(error) from error
        attempts = len(response.retries.history) + 1 if response.retries is not None else 1
        return HttpResponse(response.status, attempts, response.data[:_ANSWER_BYTES].decode(errors="replace"))

    def close(self) -> None:
        """Close the connections."""
        self._pool.close()

    def _no_response(self, error: HTTPError) -> ServiceUnavailable:
        cause = error.reason if isinstance(error, MaxRetryError) and error.reason is not None else error
        # Messages of urllib3 begin with the repr of an object; the cause may follow.
        words = str(cause).rpartition(": ")[2].rstrip(".")
        return ServiceUnavailable(
            f"The service '{self._name}' does not answer.",
            why=f"{type(cause).__name__}: {words}.",
            state="The service may have some rows of the batch. It is sent again with the same idempotency keys.",
            remedy=f"Nothing, if it comes back. Otherwise correct the URL of services.{self._name} in headrace.yml.",
            code="HR-610",
        )


class _Retries(Retry):
    """Exponential back-off with full jitter."""

    def get_backoff_time(self) -> float:
        """Return a random delay below a limit that doubles with every failure."""
        longest = self.backoff_factor * 2.0 ** (len(self.history) - 1)
        return random.uniform(0, min(self.backoff_max, longest))  # noqa: S311 - spreads load, protects nothing

    def get_retry_after(self, response: BaseHTTPResponse) -> float | None:
        """Return the delay of the Retry-After header; None if it is invalid."""
        try:
            return super().get_retry_after(response)
        except InvalidHeader:
            return None


def service_url(service: HttpEndpoint, name: str, path: str) -> SplitResult:
    """Return the URL of a request. Raises HR-125 for an invalid URL, or one that contains a password."""
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
            code="HR-125",
        )
    return url


def resolve_address(url: SplitResult, service: HttpEndpoint, name: str) -> str:
    """Resolve the host and return its first address; raise unless all of its addresses are allowed.

    A name that resolves to a private address could make a pipeline send its rows to internal services.
    """
    host = url.hostname or ""
    try:
        results = socket.getaddrinfo(host, url.port, type=socket.SOCK_STREAM)
    except (OSError, ValueError) as error:
        raise ServiceUnavailable(
            f"The host of the service '{name}' is not known.",
            why=f"{host}: {error}.",
            state="Nothing was sent.",
            remedy=f"Correct services.{name}.url of the target in headrace.yml, or repair the name service.",
            code="HR-610",
        ) from error
    addresses = [str(entry[4][0]) for entry in results]
    private = [address for address in addresses if not _is_public(address)]
    if private and not service.private:
        raise ConfigError(
            f"The service '{name}' is in a private network.",
            why=f"{host} leads to {private[0]}, which is not an address of the public network.",
            state="Nothing was sent.",
            remedy=f"Set `private: true` for services.{name} of the target in headrace.yml, if that is meant.",
            code="HR-118",
        )
    return addresses[0]


def _is_public(address: str) -> bool:
    parsed = ipaddress.ip_address(address.partition("%")[0])
    # Also check embedded IPv4 addresses, such as 10.0.0.1 in ::ffff:10.0.0.1 and in 6to4 addresses.
    inner = (getattr(parsed, "ipv4_mapped", None), getattr(parsed, "sixtofour", None))
    return all(
        candidate.is_global and not candidate.is_multicast for candidate in (parsed, *inner) if candidate is not None
    )
