"""Serve the live page of a pattern: `python -m headrace.serve --bootstrap HOST:PORT`.

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

from headrace.clients.topic_feed import TopicFeed
from headrace.errors import HeadraceError
from headrace.patterns.page import Page, int_in_range
from headrace.serve.app import create_app
from headrace.serve.guard import LOOPBACK_NAMES
from headrace.serve.listen import PageServer, bind_port, page_url
from headrace.serve.pages import find_page, page_names

log = logging.getLogger("headrace.serve")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the server until it is asked to stop, and return the exit code."""
    page_class, options = _parse(argv)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    try:
        return _serve(page_class.from_options(options), options)
    except HeadraceError as problem:
        sys.stderr.write(f"{problem}\n")
        return 1


def _serve(page: Page, options: argparse.Namespace) -> int:
    feed = TopicFeed(options.bootstrap, page.topics, page.apply)
    if options.host not in LOOPBACK_NAMES:
        log.warning("The page listens on %s and has no login: whoever reaches it can read it.", options.host)
    allowed_hosts = (*LOOPBACK_NAMES, options.host, *options.allow_host)
    app = create_app(page, feed_status=lambda: feed.status, allowed_hosts=allowed_hosts)
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


def _parse(argv: Sequence[str] | None) -> tuple[type[Page], argparse.Namespace]:
    """Return the page that is asked for, and all options: which these are depends on the page."""
    names = page_names()
    choice = argparse.ArgumentParser(add_help=False)
    choice.add_argument("--page", choices=names, default=names[0], help="the pattern whose page is served")
    page_class = find_page(choice.parse_known_args(argv)[0].page)
    parser = argparse.ArgumentParser(
        prog="python -m headrace.serve",
        description=f"Serve a live page, and its API: {page_class.title}",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        parents=[choice],
    )
    add = parser.add_argument
    add("--bootstrap", required=True, metavar="HOST:PORT", help="a Kafka broker; several with commas")
    add("--host", default="127.0.0.1", help="address to listen on; the page has no login")
    add("--port", type=int_in_range(0, 65535), default=8080, help="port, or the next free one above; 0 is any")
    add(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="additional accepted Host name (may be repeated)",
    )
    add("--parent-pid", type=int_in_range(1, 2**31 - 1), default=None, help="stop when this process ends")
    page_class.add_options(parser)
    return page_class, parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
