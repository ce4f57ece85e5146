"""Serve the live page: `python -m headrace.serve --bootstrap HOST:PORT`.

One line of JSON, `{"url": ...}`, appears on standard output once the page can be opened; everything
else goes to standard error. The process ends, cleanly and within seconds, on SIGTERM, on SIGINT and
when the process of --parent-pid has ended. Exit codes: 0 after a requested stop, 1 for a HeadraceError,
2 for an invalid command line.
"""

import argparse
import json
import logging
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Sequence

from headrace.errors import HeadraceError
from headrace.serve.cities.app import create_app
from headrace.serve.cities.board import DEFAULT_HISTORY, MAX_HISTORY, CityBoard
from headrace.serve.cities.feed import Feed, FeedTopics
from headrace.serve.guard import LOOPBACK_NAMES
from headrace.serve.listen import PageServer, bind_port, page_url

log = logging.getLogger("headrace.serve")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the server until it is asked to stop, and return the exit code."""
    options = _parser().parse_args(argv)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    try:
        return _serve(options)
    except HeadraceError as problem:
        sys.stderr.write(f"{problem}\n")
        return 1


def _serve(options: argparse.Namespace) -> int:
    board = CityBoard(history=options.history)
    feed = Feed(board, options.bootstrap, topics=FeedTopics(options.metrics_topic, options.surge_topic))
    if options.host not in LOOPBACK_NAMES:
        log.warning("The page listens on %s and has no login: whoever reaches it can read it.", options.host)
    app = create_app(
        board, feed_status=lambda: feed.status, allowed_hosts=(*LOOPBACK_NAMES, options.host, *options.allow_host)
    )
    listener = bind_port(options.host, options.port)

    def announce() -> None:
        sys.stdout.write(json.dumps({"url": page_url(listener)}) + "\n")
        sys.stdout.flush()

    server = PageServer(app, announce)

    def stop() -> None:
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop())
    if options.parent_pid is not None:
        _on_process_end(options.parent_pid, stop)
    with feed:
        server.run(sockets=[listener])
    return 0


def _on_process_end(pid: int, callback: Callable[[], None]) -> None:
    """Call `callback` on a thread when the process ends."""

    def watch() -> None:
        if hasattr(os, "pidfd_open"):
            try:
                handle = os.pidfd_open(pid)
            except ProcessLookupError:
                callback()
                return
            # Readable at the moment of the end, also while nobody has collected the exit code.
            select.select([handle], [], [])
        else:
            pause = threading.Event()
            while os.getppid() == pid:
                pause.wait(1.0)
        callback()

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def _parser() -> argparse.ArgumentParser:
    topics = FeedTopics()
    parser = argparse.ArgumentParser(
        prog="python -m headrace.serve",
        description="Serve the live page of ride analytics, and its API.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--bootstrap", required=True, metavar="HOST:PORT", help="a Kafka broker; several with commas")
    add("--host", default="127.0.0.1", help="address to listen on; the page has no login")
    add("--port", type=_number(0, 65535), default=8080, help="port, or the next free one above; 0 is any")
    add(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="additional accepted Host name (may be repeated)",
    )
    add("--history", type=_number(1, MAX_HISTORY), default=DEFAULT_HISTORY, help="windows kept per city")
    add("--metrics-topic", default=topics.metrics, help="topic of the ride metrics")
    add("--surge-topic", default=topics.surge, help="topic of the surge readings")
    add("--parent-pid", type=_number(1, 2**31 - 1), default=None, help="stop when this process ends")
    return parser


def _number(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            msg = f"{value} does not lie between {low} and {high}"
            raise argparse.ArgumentTypeError(msg)
        return value

    parse.__name__ = "number"
    return parse


if __name__ == "__main__":
    sys.exit(main())
