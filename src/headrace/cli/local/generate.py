"""`headrace generate PATTERN`: send realistic records to Kafka, or print them."""

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from threading import Event
from typing import Annotated

import typer

from headrace.cli.output import JsonOption, emit, err
from headrace.cli.project import DEFAULT_HOME, HomeOption, local_broker
from headrace.cli.signals import signal_handler
from headrace.demos.feeder import SendResult, find_generator, generate, pace, records_between
from headrace.errors import HeadraceError
from headrace.flow.duration import Duration
from headrace.flow.target import Target
from headrace.patterns.traffic import GeneratedRecord


def parse_share(option: str, text: str) -> float:
    """Read `2%` or `0.02`."""
    number = text.strip()
    try:
        value = float(number.removesuffix("%")) / (100 if number.endswith("%") else 1)
    except ValueError:
        raise typer.BadParameter(f"'{text}' is not a share. Write it like 2% or 0.02.", param_hint=option) from None
    if not 0 <= value <= 1:
        raise typer.BadParameter(
            f"'{text}' is not between 0% and 100%. For two percent write 2% or 0.02.", param_hint=option
        )
    return value


def parse_duration(option: str, text: str) -> timedelta:
    """Read `90s`, `5 minutes` or `3h`."""
    try:
        return timedelta(milliseconds=Duration.parse(text).ms)
    except HeadraceError as error:
        raise typer.BadParameter(f"{error.what} {error.remedy}", param_hint=option) from None
    except OverflowError:
        raise typer.BadParameter(f"'{text}' is longer than any calendar.", param_hint=option) from None


def generate_command(  # noqa: PLR0913 - one parameter for each option of the command
    pattern: Annotated[str, typer.Argument(help="The pattern whose records to generate, for example rides.")],
    *,
    rate: Annotated[float, typer.Option(help="Records per second.")] = 500.0,
    late: Annotated[str, typer.Option(metavar="SHARE", help="Share of late records.")] = "2%",
    duplicates: Annotated[str, typer.Option(metavar="SHARE", help="Share of records that are sent twice.")] = "1%",
    malformed: Annotated[str, typer.Option(metavar="SHARE", help="Share of malformed records.")] = "0.5%",
    seed: Annotated[int, typer.Option(help="Seed of the generated records.")] = 7,
    oversized: Annotated[bool, typer.Option("--oversized", help="Start with one record of 5 MB.")] = False,
    for_: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="Stop after this long. Default: at Ctrl-C.")
    ] = None,
    backfill: Annotated[str, typer.Option(metavar="TIME", help="Send this much history first, without delay.")] = "0s",
    bootstrap: Annotated[
        str | None, typer.Option(help="The Kafka brokers. Default: the broker of `headrace up` in this folder.")
    ] = None,
    topic: Annotated[str | None, typer.Option(help="The topic. Default: the topic that the pattern reads.")] = None,
    home: HomeOption = DEFAULT_HOME,
    stdout: Annotated[
        bool, typer.Option("--stdout", help="Print the values as lines instead of sending them.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Send realistic records of a pattern to Kafka: history without delay, then live records at a steady rate.

    The same seed and the same start time give the same records. `--for 0s --backfill 3h` sends history only.
    """
    live = None if for_ is None else parse_duration("--for", for_)
    history = parse_duration("--backfill", backfill)
    generator = find_generator(pattern)(
        rate=rate,
        late=parse_share("--late", late),
        duplicates=parse_share("--duplicates", duplicates),
        malformed=parse_share("--malformed", malformed),
        seed=seed,
        oversized=oversized,
    )
    # A signal ends the sending: sent records are acknowledged and counted before the exit.
    stop = Event()
    with signal_handler(lambda *_: stop.set()):
        if stdout:
            sent, destination = (
                _print_values(records_between(generator, backfill=history, live=live), stop),
                "standard output",
            )
        else:
            address = bootstrap or local_broker(home) or ""
            destination = f"topic {topic or generator.topic} at {address}"
            target = Target("generate", lake=".", checkpoints=".", kafka={"bootstrap.servers": address})
            if not json:
                err.print(f"Sending {pattern} to {destination}. Press Ctrl-C to stop.")
            sent = generate(generator, target, topic=topic, backfill=history, live=live, stop=stop)
    if json:
        emit({"ok": True, "records": sent.records, "seconds": round(sent.seconds, 3), "kinds": sent.by_kind})
    else:
        kinds = ", ".join(f"{kind} {number:,}" for kind, number in sorted(sent.by_kind.items()))
        err.print(f"Sent {sent.records:,} records to {destination} in {sent.seconds:.1f} s: {kinds or 'none'}.")


def _print_values(records: Iterator[GeneratedRecord], stop: Event) -> SendResult:
    """Write one value per line; a record without a value is an empty line."""
    counts: Counter[str] = Counter()
    started = time.monotonic()
    lines = sys.stdout.buffer

    def show_and_sleep(seconds: float) -> None:
        lines.flush()
        time.sleep(seconds)

    try:
        for record in pace(records, stop=stop, wait=show_and_sleep):
            lines.write((record.value or b"") + b"\n")
            counts[record.kind] += 1
        lines.flush()
    except BrokenPipeError:
        # The reader closed the pipe, like `head`. Python would fail again when it flushes the pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return SendResult(counts.total(), dict(counts), time.monotonic() - started)
