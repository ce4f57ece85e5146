"""Check before a flow starts that a local folder is readable."""

import os

from headrace.clients.storage import is_local, local_path
from headrace.errors import DataError


def require_readable(location: str, *, within: str = "") -> None:
    """Raise unless the folder, or the subfolder `within`, exists and can be listed.

    Other filesystems are not checked; Spark reports them.
    """
    if not is_local(location):
        return
    folder = local_path(location) / within
    try:
        os.listdir(folder)
    except OSError as error:
        raise DataError(
            f"{location} cannot be read{' as a Delta table' if within else ''}.",
            why=f"{folder}: {os.strerror(error.errno or 0)}.",
            state="Nothing was started and nothing was written.",
            remedy=(
                "Run the flow that writes the table first, or correct the path."
                if within
                else "Create the folder, allow this user to read it, or correct the path."
            ),
            code="HR-510",
        ) from error
