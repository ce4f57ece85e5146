"""Whether a folder of this machine can be written, asked before a flow starts."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from headrace.errors import ConfigError


def require_writable(location: str) -> None:
    """Raise unless the folder can be made and written. A location on another filesystem is left to Spark."""
    parts = urlsplit(location)
    if parts.scheme not in ("", "file"):
        return
    folder = Path(parts.path)
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        # os.access says yes to root on a read-only mount; only a real file tells.
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigError(
            f"{location} cannot be written.",
            why=f"{folder}: {os.strerror(error.errno or 0)}.",
            state="Nothing was started and nothing was written.",
            remedy="Make the folder writable, or name another lake or checkpoints root in headrace.yml.",
            code="HR-111",
        ) from error
