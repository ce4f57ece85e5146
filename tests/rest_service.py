"""A real HTTP service on the loopback that takes batches and records them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread


class Ledger(ThreadingHTTPServer):
    """A service that honours idempotency keys: `taken` holds each accepted request once, `requests` every one."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Teller)
        self.lock = Lock()
        self.taken: dict[str, list[dict[str, object]]] = {}
        self.requests = 0
        self.judge: Callable[[list[dict[str, object]]], int] = lambda _rows: 200

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def ids(self) -> list[object]:
        return sorted(row["id"] for rows in self.taken.values() for row in rows)


class _Teller(BaseHTTPRequestHandler):
    server: Ledger

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        lines = self.headers["Content-Type"] == "application/x-ndjson"
        rows = [json.loads(line) for line in body.splitlines()] if lines else json.loads(body)
        status = self.server.judge(rows)
        with self.server.lock:
            self.server.requests += 1
            if status == 200:
                self.server.taken.setdefault(self.headers["Idempotency-Key"], rows)
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None: ...


@contextmanager
def serving() -> Iterator[Ledger]:
    """Run the service on a thread of its own."""
    server = Ledger()
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
