"""Serve the live page in a separate process, which reads topics and no engine objects."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.errors import StackError

# An idle server exits in well under a second; open event streams are closed by then too.
_GRACE_SECONDS = 5.0


@contextmanager
def serve_page(bootstrap: str, *, port: int, log: Path) -> Iterator[str]:
    """Serve the page while the block runs, and yield its address."""
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "headrace.serve", "--bootstrap", bootstrap, "--port", str(port)]
    with log.open("ab") as errors:
        # A separate session: Ctrl-C in the terminal stops the flows first and the page last.
        server = subprocess.Popen(  # noqa: S603 - our own module, no external input
            [*command, "--parent-pid", str(os.getpid())],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
    try:
        assert server.stdout is not None  # noqa: S101 - requested above
        line = server.stdout.readline()
        if not line:
            raise StackError(
                "The live page does not start.",
                why=f"Its server ended with code {server.wait()}; {log} has its last words.",
                state="The data is not touched.",
                remedy="Run `headrace doctor`. The extra `serve` has to be installed: pip install 'headrace[serve]'.",
                code="HR-420",
            )
        yield str(json.loads(line)["url"])
    finally:
        server.terminate()
        try:
            server.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
