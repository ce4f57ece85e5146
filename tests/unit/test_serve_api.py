"""The API and the page's files, asked over a real loopback socket."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from headrace.clients.topic_feed import FeedStatus
from headrace.errors import ConfigError
from headrace.patterns.rides.board import CityBoard, RideMetrics, SurgeReading
from headrace.patterns.rides.page import CityPage
from headrace.serve.app import create_app
from headrace.serve.guard import host_name
from headrace.serve.listen import bind_port
from headrace.serve.live import LiveStreams, StreamIntervals
from headrace.serve.pages import find_page, page_names
from served_page import serve_in_background

NOON = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
FIVE = timedelta(minutes=5)
QUICK = StreamIntervals(coalesce=0.01, heartbeat=0.05)
# Seconds: a busy machine is slow, a broken server is slower.
PATIENCE = 60


def publish(board: CityBoard, city: str, window: int = 0, count: int = 120, multiplier: float | None = None) -> None:
    window_of_city = {"city": city, "window_start": NOON + window * FIVE, "window_end": NOON + (window + 1) * FIVE}
    metrics = RideMetrics.model_validate(
        {
            **window_of_city,
            "ride_count": count,
            "completed_rides": count // 2,
            "avg_fare": 12.345678,
            "active_drivers": 37,
            "completion_rate": 0.5,
        }
    )
    board.apply([(metrics, NOON)])
    if multiplier is not None:
        reading = SurgeReading.model_validate(
            {
                **window_of_city,
                "total_requests": 90,
                "active_rides": 40,
                "available_drivers": 15,
                "surge_multiplier": multiplier,
            }
        )
        board.apply([(reading, NOON)])


@pytest.fixture
def board() -> CityBoard:
    return CityBoard()


@pytest.fixture
def client(board: CityBoard) -> Iterator[httpx.Client]:
    with (
        serve_in_background(create_app(CityPage(board), pace=QUICK)) as url,
        httpx.Client(base_url=url, timeout=PATIENCE) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def idle() -> Iterator[httpx.Client]:
    """A server with an empty board, shared by the tests that only look at how it answers."""
    with (
        serve_in_background(create_app(CityPage(CityBoard()), pace=QUICK)) as url,
        httpx.Client(base_url=url, timeout=PATIENCE) as client,
    ):
        yield client


class Stream:
    """The events of one connection, one after the other."""

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines = lines

    def block(self) -> dict[str, str]:
        """Return the fields of the next block; a comment has the empty name."""
        fields: dict[str, str] = {}
        for line in self._lines:
            if line == "" and fields:
                return fields
            name, _, value = line.partition(":")
            fields[name] = value.strip()
        return fields

    def next(self, event: str) -> tuple[dict[str, object], str | None]:
        """Return data and id of the next event of this name."""
        while block := self.block():
            if block.get("event") == event:
                return json.loads(block["data"]), block.get("id")
        msg = f"the stream ended before {event!r}"
        raise AssertionError(msg)

    def ended(self) -> bool:
        """Read until the server ends the stream."""
        for _ in self._lines:
            pass
        return True


@contextmanager
def listening(client: httpx.Client) -> Iterator[Stream]:
    with client.stream("GET", "/api/v1/events") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        yield Stream(response.iter_lines())


# ---- cities


def test_cities_are_an_empty_list_before_the_first_row(idle: httpx.Client) -> None:
    answer = idle.get("/api/v1/cities").json()
    assert answer["cities"] == []
    assert answer["as_of"] is None
    assert answer["freshness_seconds"] is None
    assert answer["totals"] is None


def test_cities_show_the_newest_window_with_its_surge(board: CityBoard, client: httpx.Client) -> None:
    publish(board, "Porto", count=7)
    publish(board, "Lisbon", window=0, count=50)
    publish(board, "Lisbon", window=1, count=80, multiplier=2.0)
    answer = client.get("/api/v1/cities").json()
    lisbon, porto = answer["cities"]
    assert (lisbon["city"], lisbon["ride_count"], lisbon["surge_multiplier"]) == ("Lisbon", 80, 2.0)
    assert lisbon["window_start"] == "2026-11-16T12:05:00Z"
    assert [point["ride_count"] for point in lisbon["recent"]] == [50, 80]
    assert lisbon["available_drivers"] == 15
    assert (porto["surge_multiplier"], porto["available_drivers"]) == (1.0, None)
    assert answer["windows"] == 2
    assert answer["as_of"] == "2026-11-16T12:00:00Z"
    assert answer["totals"]["ride_count"] == 80


def test_freshness_is_the_age_of_the_newest_row(board: CityBoard, client: httpx.Client) -> None:
    publish(board, "Lisbon")
    age = (datetime.now(UTC) - NOON).total_seconds()
    assert client.get("/api/v1/cities").json()["freshness_seconds"] == pytest.approx(max(0.0, age), abs=30)


# ---- history


def test_history_returns_the_newest_windows_oldest_first(board: CityBoard, client: httpx.Client) -> None:
    for window in range(6):
        publish(board, "Lisbon", window, count=window)
    answer = client.get("/api/v1/cities/Lisbon/history", params={"limit": 3}).json()
    assert [window["ride_count"] for window in answer["windows"]] == [3, 4, 5]
    assert answer["available"] == 6


@pytest.mark.parametrize("limit", ["0", "-1", "2017", "many"])
def test_a_limit_out_of_bounds_is_rejected(board: CityBoard, client: httpx.Client, limit: str) -> None:
    publish(board, "Lisbon")
    answer = client.get("/api/v1/cities/Lisbon/history", params={"limit": limit})
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"] == ["query", "limit"]


def test_an_unknown_city_gets_the_nearest_name(board: CityBoard, client: httpx.Client) -> None:
    publish(board, "Lisbon")
    answer = client.get("/api/v1/cities/lisbonn/history")
    assert answer.status_code == 404
    body = answer.json()
    assert (body["code"], body["nearest"]) == ("HR-580", "Lisbon")
    assert "Did you mean 'Lisbon'?" in body["remedy"]


def test_a_city_on_an_empty_board_gets_a_remedy(idle: httpx.Client) -> None:
    body = idle.get("/api/v1/cities/Lisbon/history").json()
    assert body["nearest"] is None
    assert "Start the ride analytics flows" in body["remedy"]


@pytest.mark.parametrize("city", ["São Paulo", "Bill/Ted", "100% Town?"])
def test_any_city_name_can_be_asked_for(board: CityBoard, client: httpx.Client, city: str) -> None:
    publish(board, city)
    quoted = httpx.QueryParams({"c": city}).__str__()[2:].replace("+", "%20")
    assert client.get(f"/api/v1/cities/{quoted}/history").json()["city"] == city


# ---- events


def test_a_stream_starts_with_retry_the_snapshot_and_the_state_of_the_feed(
    board: CityBoard, client: httpx.Client
) -> None:
    publish(board, "Lisbon", count=5)
    with listening(client) as stream:
        assert stream.block() == {"retry": "2000"}
        snapshot, identity = stream.next("snapshot")
        assert [city["city"] for city in snapshot["cities"]] == ["Lisbon"]  # type: ignore[attr-defined]
        assert identity == str(snapshot["version"])
        assert stream.next("feed")[0]["state"] == "off"


def test_a_change_brings_only_the_cities_that_changed(board: CityBoard, client: httpx.Client) -> None:
    publish(board, "Lisbon")
    publish(board, "Porto")
    with listening(client) as stream:
        stream.next("snapshot")
        publish(board, "Porto", count=500)
        change, _ = stream.next("change")
        cities: list[dict[str, object]] = change["cities"]  # type: ignore[assignment]
        assert [(city["city"], city["ride_count"]) for city in cities] == [("Porto", 500)]
        assert change["totals"]["ride_count"] == 620  # type: ignore[index]


def test_a_client_that_reads_late_gets_the_last_state_and_not_every_step(board: CityBoard) -> None:
    pace = StreamIntervals(coalesce=0.3)
    with (
        serve_in_background(create_app(CityPage(board), pace=pace)) as url,
        httpx.Client(base_url=url, timeout=PATIENCE) as client,
        listening(client) as stream,
    ):
        stream.next("snapshot")
        began = time.monotonic()
        for count in range(1000):
            publish(board, "Lisbon", count=count)
        counts = []
        while 999 not in counts:
            change, _ = stream.next("change")
            counts.append(change["cities"][0]["ride_count"])  # type: ignore[index]
        # One at the beginning, one in each of the pauses, one at the end.
        assert len(counts) <= 2 + (time.monotonic() - began) / pace.coalesce
        assert len(counts) < 1000


def test_an_idle_stream_sends_heartbeats(idle: httpx.Client) -> None:
    with listening(idle) as stream:
        stream.next("snapshot")
        stream.next("feed")
        block = stream.block()
        assert block[""] == "heartbeat"
        assert stream.block()["event"] == "feed"


def test_streams_beyond_the_limit_are_refused(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LiveStreams, "MAX_CONNECTIONS", 1)
    with listening(client) as stream:
        stream.next("snapshot")
        refused = client.get("/api/v1/events")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "10")


def test_a_server_that_stops_ends_its_streams(board: CityBoard) -> None:
    with httpx.Client(timeout=PATIENCE) as client:
        server = serve_in_background(create_app(CityPage(board)))
        url = server.__enter__()
        with client.stream("GET", f"{url}api/v1/events") as response:
            stream = Stream(response.iter_lines())
            stream.next("snapshot")
            server.__exit__(None, None, None)
            assert stream.ended()


# ---- health


@pytest.mark.parametrize(
    ("feed", "rows", "status"),
    [
        (FeedStatus("live", rows=9, malformed=2), True, "ok"),
        (FeedStatus("waiting", missing_topics=("city-surge",)), False, "waiting"),
        (FeedStatus("unreachable", last_error="_TRANSPORT"), True, "degraded"),
    ],
)
def test_health_reports_whether_the_data_is_current(
    board: CityBoard, feed: FeedStatus, rows: bool, status: str
) -> None:
    if rows:
        publish(board, "Lisbon")
    with serve_in_background(create_app(CityPage(board), feed_status=lambda: feed)) as url:
        answer = httpx.get(f"{url}api/v1/health").json()
    assert answer["status"] == status
    assert answer["feed"]["state"] == feed.state
    assert answer["feed"]["malformed"] == feed.malformed


# ---- documents and files


def test_the_openapi_document_describes_every_call_and_every_field_type(idle: httpx.Client) -> None:
    document = idle.get("/api/v1/openapi.json").json()
    assert set(document["paths"]) == {
        "/api/v1/cities",
        "/api/v1/cities/{city}/history",
        "/api/v1/events",
        "/api/v1/health",
    }
    for methods in document["paths"].values():
        assert methods["get"]["summary"]
        assert methods["get"]["description"]


@pytest.mark.parametrize("page", ["/", "/api/v1/docs"])
def test_pages_contain_no_external_address_and_no_inline_script(idle: httpx.Client, page: str) -> None:
    html = idle.get(page).text
    assert "{{" not in html
    assert re.findall(r"""(?:src|href)=["'](?!/|#)""", html) == []
    assert re.findall(r"<script(?![^>]*\ssrc=)", html) == []
    assert re.findall(r"<style|\sstyle=|\son\w+=", html) == []


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/assets/x/app.js", "/assets/../app.py"])
def test_nothing_else_is_served(idle: httpx.Client, path: str) -> None:
    assert idle.get(path).status_code == 404


def test_static_files_are_compressed_and_cached_without_limit(idle: httpx.Client) -> None:
    html = idle.get("/")
    assert html.headers["cache-control"] == "no-cache"
    paths = re.findall(r'"(/assets/[^"]+)"', html.text)
    assert any(path.endswith("app.js") for path in paths)
    for path in paths:
        answer = idle.get(path)
        assert answer.status_code == 200
        assert answer.headers["content-encoding"] == "gzip"
        assert "immutable" in answer.headers["cache-control"]
        unpacked = idle.get(path, headers={"accept-encoding": "identity"})
        assert unpacked.content == answer.content
        assert "content-encoding" not in unpacked.headers


def test_an_unchanged_page_is_not_sent_again(idle: httpx.Client) -> None:
    etag = idle.get("/").headers["etag"]
    again = idle.get("/", headers={"if-none-match": etag})
    assert (again.status_code, again.content) == (304, b"")


# ---- the guard


@pytest.mark.parametrize("path", ["/", "/api/v1/cities", "/api/v1/cities/Nowhere/history", "/nothing"])
def test_every_answer_carries_the_security_headers(idle: httpx.Client, path: str) -> None:
    headers = idle.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert "server" not in headers


def test_api_responses_are_never_cached(idle: httpx.Client) -> None:
    assert idle.get("/api/v1/cities").headers["cache-control"] == "no-store"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil"])
def test_a_foreign_host_name_is_refused(idle: httpx.Client, host: str) -> None:
    answer = idle.get("/api/v1/cities", headers={"host": host})
    assert answer.status_code == 421
    assert "--allow-host" in answer.json()["remedy"]
    assert "content-security-policy" in answer.headers


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1234", "127.0.0.1:9", "[::1]:8080"])
def test_names_of_loopback_are_answered(idle: httpx.Client, host: str) -> None:
    assert idle.get("/api/v1/health", headers={"host": host}).status_code == 200


def test_an_allowed_name_is_answered(board: CityBoard) -> None:
    with serve_in_background(create_app(CityPage(board), allowed_hosts=["page.internal"])) as url:
        answer = httpx.get(f"{url}api/v1/health", headers={"host": "Page.Internal:443"})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("header", "name"), [("A.b:80", "a.b"), ("[::1]:80", "::1"), ("[::1]", "::1"), ("", ""), ("x", "x")]
)
def test_a_host_header_yields_its_name(header: str, name: str) -> None:
    assert host_name(header) == name


# ---- the process


def test_a_page_is_found_by_the_name_of_its_pattern() -> None:
    assert page_names() == ["rides"]
    assert find_page("rides") is CityPage


def test_the_next_port_is_used_if_one_is_taken() -> None:
    with bind_port("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with bind_port("127.0.0.1", port) as other:
            assert other.getsockname()[1] > port


def test_an_address_of_another_machine_cannot_be_listened_on() -> None:
    with pytest.raises(ConfigError, match="HR-180"):
        bind_port("192.0.2.1", 8080)


@contextmanager
def page_process(*options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run `python -m headrace.serve` against a port where no broker is."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{unused.getsockname()[1]}"
        command = [sys.executable, "-m", "headrace.serve", "--bootstrap", nobody, "--port", "0", *options]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            yield process, json.loads(process.stdout.readline())["url"]
        finally:
            process.kill()
            process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_process_prints_its_url_and_ends_on_a_signal(number: signal.Signals) -> None:
    with page_process() as (process, url), httpx.Client(timeout=PATIENCE) as client:
        with client.stream("GET", f"{url}api/v1/events") as response:
            stream = Stream(response.iter_lines())
            stream.next("snapshot")
            process.send_signal(number)
            assert stream.ended()
        out, err = process.communicate(timeout=PATIENCE)
        assert (process.returncode, out) == (0, "")
        assert "Traceback" not in err


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="elsewhere the parent is polled, by its own child only")
def test_the_process_ends_with_its_parent() -> None:
    parent = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with page_process("--parent-pid", str(parent.pid)) as (process, _):
        parent.kill()
        parent.wait()
        assert process.wait(timeout=PATIENCE) == 0
