"""Serve the page within a test, on a thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from fastapi import FastAPI

from headrace.serve.listen import PageServer, bind_port, page_url

_START_TIMEOUT = 10.0  # seconds: starting takes a fraction of one, on a busy machine a few


@contextmanager
def serve_in_background(app: FastAPI, *, port: int = 0) -> Iterator[str]:
    """Serve `app` on this machine while the block runs, and yield its URL."""
    listener = bind_port("127.0.0.1", port)
    listening = threading.Event()
    server = PageServer(app, listening.set)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="page-server", daemon=True)
    thread.start()
    try:
        assert listening.wait(_START_TIMEOUT), "the page did not start: the application failed, see the log"
        yield page_url(listener)
    finally:
        server.should_exit = True
        thread.join(_START_TIMEOUT)
