"""Requests to a real server on the loopback: sent again, refused, unanswered; and where rows may not be sent."""

from __future__ import annotations

import time
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from socket import socket
from threading import Thread
from urllib.parse import urlsplit

import pytest

from headrace.clients import http
from headrace.clients.http import HttpClient, resolve_address, service_url
from headrace.errors import ConfigError, ServiceUnavailable
from headrace.flow.secret import Secret
from headrace.flow.target import HttpEndpoint


class Desk(ThreadingHTTPServer):
    """Sends the declared answers in order, the last one forever, and records the requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Clerk)
        self.answers: list[tuple[int, dict[str, str]]] = [(200, {})]
        self.got: list[tuple[float, str, dict[str, str], bytes]] = []

    @property
    def service(self) -> HttpEndpoint:
        return HttpEndpoint(f"http://127.0.0.1:{self.server_port}/v1/", private=True)

    def will_answer(self, *statuses: int | tuple[int, dict[str, str]]) -> None:
        self.answers = [statuse if isinstance(statuse, tuple) else (statuse, {}) for statuse in statuses]

    def pauses(self) -> list[float]:
        times = [item[0] for item in self.got]
        return [later - earlier for earlier, later in pairwise(times)]


class _Clerk(BaseHTTPRequestHandler):
    server: Desk

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((time.monotonic(), self.path, dict(self.headers), body))
        answers = self.server.answers
        status, headers = answers.pop(0) if len(answers) > 1 else answers[0]
        if status == 0:
            self.connection.close()
            return
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", "6")
        self.end_headers()
        self.wfile.write(b"answer")

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def desk() -> Iterator[Desk]:
    server = Desk()
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_FIRST_PAUSE_SECONDS", 0.01)


def receiver(service: HttpEndpoint, attempts: int = 4, seconds: float = 5.0) -> HttpClient:
    return HttpClient(service, "crm", "/events", attempts=attempts, seconds=seconds, in_flight=2)


def test_a_request_arrives_with_its_path_headers_and_body(desk: Desk):
    secret = Secret("${env:TOKEN}", "s3cret")
    service = HttpEndpoint(desk.service.url, {"Authorization": secret}, private=True)
    answer = receiver(service).post(b"[1]", {"Idempotency-Key": "k1"})
    assert (answer.status, answer.attempts, answer.text, answer.is_accepted) == (200, 1, "answer", True)
    [(_time, path, headers, body)] = desk.got
    assert (path, body) == ("/v1/events", b"[1]")
    assert headers["Idempotency-Key"] == "k1"
    assert headers["Authorization"] == "s3cret"
    assert headers["Host"] == f"127.0.0.1:{desk.server_port}"


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 507, 0])
def test_a_request_is_sent_again_unchanged_after_a_transient_failure(desk: Desk, status: int):
    desk.will_answer(status, status, 201)
    answer = receiver(desk.service).post(b"[1]", {"Idempotency-Key": "k1"})
    assert (answer.status, answer.attempts) == (201, 3)
    assert {(item[2]["Idempotency-Key"], item[3]) for item in desk.got} == {("k1", b"[1]")}


@pytest.mark.parametrize("status", [301, 307, 400, 401, 403, 404, 413, 422])
def test_what_will_not_pass_is_sent_once_and_not_followed(desk: Desk, status: int):
    desk.will_answer((status, {"Location": f"http://127.0.0.1:{desk.server_port}/elsewhere"}), 200)
    answer = receiver(desk.service).post(b"[1]", {})
    assert (answer.status, answer.attempts, answer.is_accepted) == (status, 1, False)
    assert len(desk.got) == 1


def test_the_last_response_is_returned_when_all_attempts_are_used_up(desk: Desk):
    desk.will_answer(503)
    answer = receiver(desk.service, attempts=3).post(b"[1]", {})
    assert (answer.status, answer.attempts) == (503, 3)
    assert len(desk.got) == 3


def test_the_receiver_decides_how_long_to_wait(desk: Desk):
    soon = formatdate(time.time() + 2, usegmt=True)
    desk.will_answer((429, {"Retry-After": "1"}), (503, {"Retry-After": soon}), (503, {"Retry-After": "soon"}), 200)
    assert receiver(desk.service).post(b"[1]", {}).attempts == 4
    seconds, date, words = desk.pauses()
    assert seconds >= 1.0
    assert date > 0.0
    assert words < 1.0


def test_pauses_grow_and_differ_between_senders():
    def pauses() -> list[float]:
        retries = http._Retries(total=9, backoff_factor=0.5, backoff_max=60.0, allowed_methods=None)
        actual = []
        for _ in range(8):
            retries = retries.increment("POST", "/", error=OSError())
            actual.append(retries.get_backoff_time())
        return actual

    senders = [pauses() for _ in range(200)]
    for step in range(8):
        of_step = [sender[step] for sender in senders]
        longest = min(60.0, 0.5 * 2**step)
        assert 0 <= min(of_step) <= longest * 0.2
        assert longest * 0.8 <= max(of_step) <= longest


def test_a_receiver_that_does_not_answer_is_transient(desk: Desk):
    desk.will_answer(0)
    with pytest.raises(ServiceUnavailable) as silent:
        receiver(desk.service, attempts=2).post(b"[1]", {})
    assert silent.value.code == "HR-610"
    assert "'crm'" in silent.value.what
    assert " at 0x" not in str(silent.value)


def test_a_receiver_that_is_not_there_or_too_slow_is_transient():
    with socket() as busy:
        busy.bind(("127.0.0.1", 0))
        missing = HttpEndpoint(f"http://127.0.0.1:{busy.getsockname()[1]}", private=True)
        with pytest.raises(ServiceUnavailable, match="Connection refused"):
            receiver(missing, attempts=2).post(b"[1]", {})
        busy.listen()
        with pytest.raises(ServiceUnavailable, match="timed out"):
            receiver(missing, attempts=1, seconds=0.1).post(b"[1]", {})


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",  # noqa: S104
        "224.0.0.1",
        "[::1]",
        "[fe80::1]",
        "[fd00::1]",
        "[::ffff:10.0.0.1]",
        "[2002:7f00:1::]",
        "2130706433",
        "localhost",
    ],
)
def test_an_address_inside_the_network_is_refused_unless_it_is_allowed(address: str):
    url = urlsplit(f"https://{address}/")
    with pytest.raises(ConfigError) as refused:
        resolve_address(url, HttpEndpoint(url.geturl()), "crm")
    assert refused.value.code == "HR-118"
    assert resolve_address(url, HttpEndpoint(url.geturl(), private=True), "crm")


def test_a_public_address_is_not_refused():
    url = urlsplit("https://93.184.216.34/")
    assert resolve_address(url, HttpEndpoint(url.geturl()), "crm") == "93.184.216.34"


def test_one_private_address_among_several_is_enough_to_refuse(monkeypatch: pytest.MonkeyPatch):
    actual = [(2, 1, 6, "", ("93.184.216.34", 443)), (2, 1, 6, "", ("10.0.0.1", 443))]
    monkeypatch.setattr("headrace.clients.http.socket.getaddrinfo", lambda *_args, **_kwargs: actual)
    url = urlsplit("https://two-faced.example/")
    with pytest.raises(ConfigError, match=r"10\.0\.0\.1"):
        resolve_address(url, HttpEndpoint(url.geturl()), "crm")


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("ftp://crm.example", "https://"),
        ("crm.example/x", "https://"),
        ("https://", "https://"),
        ("https://me:pw@crm.example", "password"),
        ("http://crm.example", "https"),
        ("https://crm.example/#x", "fragment"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_without_being_printed(url: str, why: str):
    with pytest.raises(ConfigError, match=why) as refused:
        service_url(HttpEndpoint(url), "crm", "")
    assert refused.value.code == "HR-125"
    assert "pw" not in str(refused.value)
