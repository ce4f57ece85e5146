"""Open the port of the page, and stop the server quickly.

`bind_port` finds a free port and keeps it open, so that no other process can take it in between.
`PageServer` is uvicorn with two additions: a callback when it listens, and it closes open event streams
when it stops instead of waiting for browsers to disconnect.
"""

import errno
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from headrace.errors import ConfigError

_PORTS_TRIED = 50  # enough for every sibling on one machine, few enough to fail quickly


def bind_port(host: str, port: int) -> socket.socket:
    """Return a socket bound to `port`, or to the next free port above it. Port 0 is any free port."""
    last = port if port == 0 else min(port + _PORTS_TRIED - 1, 65535)
    for candidate in range(port, last + 1):
        listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        try:
            if os.name == "posix":
                # A port of a server that stopped a moment ago counts as free; a listening one does not.
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, candidate))
            listener.listen(128)
        except OSError as failure:
            listener.close()
            if failure.errno != errno.EADDRINUSE:
                raise ConfigError(
                    f"The page cannot listen on {host}:{candidate}.",
                    why=f"The system says: {failure.strerror or failure}.",
                    state="No data is affected.",
                    remedy="Choose another --host or a --port above 1023.",
                    code="HR-180",
                ) from failure
        else:
            return listener
    raise ConfigError(
        f"The page cannot listen on {host}: every port from {port} to {last} is taken.",
        why="Other programs listen there.",
        state="No data is affected.",
        remedy="Stop one of them, or choose another --port; --port 0 takes any free one.",
        code="HR-181",
    )


def page_url(listener: socket.socket) -> str:
    """Return the URL under which a browser on this machine reaches the socket."""
    host, port = listener.getsockname()[:2]
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 compares, does not bind
    return f"http://[{reachable}]:{port}/" if ":" in reachable else f"http://{reachable}:{port}/"


class PageServer(uvicorn.Server):
    """Serve one application on one bound socket until `should_exit` is set."""

    def __init__(self, app: FastAPI, on_listen: Callable[[], None]) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                server_header=False,
                lifespan="off",
                # Event streams end immediately; this is for a response that is being written.
                timeout_graceful_shutdown=2,
            )
        )
        self._close_streams: Callable[[], None] = app.state.live.close
        self._on_listen = on_listen

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the server, then call `on_listen`."""
        await super().startup(sockets)
        if self.started:
            self._on_listen()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the event streams first: uvicorn would wait for them."""
        self._close_streams()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to whoever started the server: uvicorn would raise them again at the end."""
        yield
