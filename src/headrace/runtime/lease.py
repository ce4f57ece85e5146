"""One driver per checkpoint.

A second driver on a checkpoint runs the pending batch's sink again before Spark notices the conflict. The lease is an
exclusive lock of the operating system on a file beside the checkpoint: it ends with the process, however that ends.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from headrace.clients.filesystem import is_local, local_path
from headrace.errors import ConfigError, RecoveryError
from headrace.runtime.checkpoint import Checkpoint


@contextmanager
def lease(checkpoint: Checkpoint) -> Iterator[None]:
    """Hold the checkpoint, or raise at once when another process holds it. Other storage than a disk is not locked."""
    if not is_local(checkpoint.house):
        yield
        return
    path = local_path(checkpoint.house) / "lease"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+")
    except OSError as error:
        raise ConfigError(
            f"The checkpoint of flow '{checkpoint.flow}' cannot be written.",
            why=f"{path}: {os.strerror(error.errno or 0)}.",
            state="Nothing was started and nothing was written.",
            remedy="Make the folder writable, or set another checkpoints root in headrace.yml.",
            code="HR-111",
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            raise RecoveryError(
                f"Flow '{checkpoint.flow}' is running already.",
                why=f"Its checkpoint {checkpoint.folder} is held by {file.read().strip() or 'another process'}.",
                state="Nothing was started; the running flow is not touched.",
                remedy="Stop the other process, or run this flow against another target.",
                code="HR-302",
            ) from error
        file.truncate(0)
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": datetime.now(UTC).isoformat()}
        file.write(json.dumps(holder))
        file.flush()
        yield
