"""`headrace generate`: pacing, the command line, and what it says when something is missing."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from threading import Event

import pytest
import typer
from typer.testing import CliRunner

from headrace.cli.local.generate import parse_duration, parse_share
from headrace.cli.main import app
from headrace.demos.feeder import find_generator, generate, generators, pace
from headrace.errors import ConfigError, ServiceUnavailable
from headrace.flow.target import Target
from headrace.patterns.rides.generator import RideTraffic
from headrace.patterns.traffic import GeneratedRecord

runner = CliRunner()


@dataclass
class Clock:
    """A clock that only waiting moves."""

    now: float
    waits: list[float] = field(default_factory=list)

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds


def arriving(*milliseconds: int) -> Iterator[GeneratedRecord]:
    return (GeneratedRecord(b"k", b"v", ms, ms, "ride") for ms in milliseconds)


def test_records_of_the_past_are_sent_immediately_and_the_others_at_their_time() -> None:
    clock = Clock(now=10.0)
    sent = []
    for record in pace(arriving(1_000, 9_999, 10_000, 10_500, 10_501), clock=lambda: clock.now, wait=clock.wait):
        sent.append((record.arrival_ms, round(clock.now, 3)))
    assert sent == [(1_000, 10.0), (9_999, 10.0), (10_000, 10.0), (10_500, 10.5), (10_501, 10.501)]


def test_a_stop_ends_the_wait_for_a_record_that_is_far_away() -> None:
    stop = Event()
    clock = Clock(now=0.0)

    def wait_then_stop(seconds: float) -> None:
        clock.wait(seconds)
        stop.set()

    assert list(pace(arriving(3_600_000), stop=stop, clock=lambda: clock.now, wait=wait_then_stop)) == []
    assert sum(clock.waits) < 1


def test_a_stop_that_is_set_already_sends_nothing() -> None:
    stop = Event()
    stop.set()
    assert list(pace(arriving(0, 1), stop=stop)) == []


def test_patterns_with_a_generator_are_found_by_their_folder() -> None:
    assert generators()["rides"] is find_generator("rides")


def test_an_unknown_pattern_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'rides'"):
        find_generator("ride")


def test_a_pattern_that_fills_no_topic_is_refused_with_its_demo() -> None:
    assert "cdc" not in generators()
    with pytest.raises(ConfigError, match="headrace demo cdc") as refused:
        find_generator("cdc")
    assert refused.value.code == "HR-122"


@pytest.mark.parametrize(("text", "value"), [("2%", 0.02), ("0.02", 0.02), (" 0.5%", 0.005), ("100%", 1)])
def test_a_share_is_a_percentage_or_a_fraction(text: str, value: float) -> None:
    assert parse_share("--late", text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "2 percent", "%", "2", "-1%", "nan"])
def test_what_is_no_share_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(typer.BadParameter, match=r"2% or 0\.02"):
        parse_share("--late", text)


@pytest.mark.parametrize(
    ("text", "value"), [("90s", timedelta(seconds=90)), ("5 minutes", timedelta(minutes=5)), ("3h", timedelta(hours=3))]
)
def test_a_length_is_a_number_and_a_unit(text: str, value: timedelta) -> None:
    assert parse_duration("--for", text) == value


@pytest.mark.parametrize("text", ["", "5", "soon", "5 parsecs", "99999999999999 days"])
def test_what_is_no_length_of_time_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_duration("--for", text)


def test_history_is_printed_as_json_lines() -> None:
    clean = ["--late", "0", "--duplicates", "0%", "--malformed", "0"]
    done = runner.invoke(
        app, ["generate", "rides", "--stdout", "--backfill", "2s", "--for", "0s", "--rate", "50", *clean]
    )
    assert done.exit_code == 0
    assert len([json.loads(line) for line in done.stdout.splitlines()]) == 100


def test_the_counts_are_one_json_object_on_the_last_line() -> None:
    done = runner.invoke(app, ["generate", "rides", "--stdout", "--backfill", "10s", "--for", "0s", "--json"])
    counts = json.loads(done.stdout.splitlines()[-1])
    assert (counts["ok"], counts["records"]) == (True, 5000)
    assert sum(counts["kinds"].values()) == 5000


@pytest.mark.parametrize("option", [["--late", "3x"], ["--for", "5 parsecs"], ["--backfill", "yesterday"]])
def test_a_wrong_option_is_a_usage_error_that_names_the_option(option: list[str]) -> None:
    done = runner.invoke(app, ["generate", "rides", *option])
    assert done.exit_code == 2
    assert option[0] in done.output


def test_a_broker_that_is_down_is_named_and_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.clients.kafka._ANSWER_WITHIN_SECONDS", 0.5)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: a connection is refused
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        target = Target("test", lake=".", checkpoints=".", kafka={"bootstrap.servers": address})
        with pytest.raises(ServiceUnavailable, match="HR-601") as raised:
            generate(RideTraffic(rate=1), target, live=timedelta(0))
    assert address in raised.value.what
