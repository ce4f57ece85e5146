"""Check before a flow starts that a local folder is writable."""

import os
import tempfile

from headrace.clients.storage import is_local, local_path
from headrace.errors import ConfigError


def require_writable(location: str) -> None:
    """Raise unless the folder can be created and written. Other filesystems are not checked; Spark reports them."""
    if not is_local(location):
        return
    folder = local_path(location)
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        # os.access returns True for root on a read-only mount, so create a real file.
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
