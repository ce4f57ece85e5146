"""The live page as a process of its own: it reads topics, never live engine objects."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.errors import StackError

# An idle server needs well under a second for its exit; open streams of events are cut by then too.
_GRACE_SECONDS = 5.0


@contextmanager
def live_page(bootstrap: str, *, port: int, log: Path) -> Iterator[str]:
    """Serve the page while the block runs, and yield its address."""
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "headrace.serve", "--bootstrap", bootstrap, "--port", str(port)]
    with log.open("ab") as errors:
        # A session of its own: Ctrl-C in the terminal ends the flows first, and the page last.
        server = subprocess.Popen(  # noqa: S603 - our own module, no words from outside
            [*command, "--parent-pid", str(os.getpid())],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
    try:
        assert server.stdout is not None  # noqa: S101 - it was asked for
        said = server.stdout.readline()
        if not said:
            raise StackError(
                "The live page does not start.",
                why=f"Its server ended with code {server.wait()}; {log} has its last words.",
                state="The data is not touched.",
                remedy="Run `headrace doctor`. The extra `serve` has to be installed: pip install 'headrace[serve]'.",
                code="HR-420",
            )
        yield str(json.loads(said)["url"])
    finally:
        server.terminate()
        try:
            server.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
