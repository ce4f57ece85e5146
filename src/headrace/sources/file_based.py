"""The base of the sources that read files: folders and Delta tables."""

import os

from headrace.clients.storage import is_local, local_path
from headrace.errors import DataError
from headrace.flow.source import Bound, Bounded, ReadsFolder
from headrace.flow.target import Target

# A file in a lake has at most about 100 MB, so each bound limits a batch to about 10 GB.
_DEFAULT_FILES = 100
_DEFAULT_BYTES = 10_000_000_000


class FileBasedSource(Bounded, ReadsFolder):
    """Files below the lake, unless `path` is absolute, read in batches that are bounded by files or bytes.

    Subclasses declare the fields, each in its own order.
    """

    path: str
    max_files_per_trigger: int | None
    max_bytes_per_trigger: int | None

    @property
    def carries_payload(self) -> bool:
        """False: files have columns, not a payload."""
        return False

    @property
    def bounds(self) -> tuple[Bound, ...]:
        """The two bounds of a batch. `check` reports a source that sets neither (HRC-110)."""
        return (
            Bound("max_files_per_trigger", "files", self.max_files_per_trigger, _DEFAULT_FILES),
            Bound("max_bytes_per_trigger", "bytes", self.max_bytes_per_trigger, _DEFAULT_BYTES),
        )

    def location(self, target: Target) -> str:
        """Return the location of the table or folder."""
        return target.table(self.path)

    def _bound_options(self) -> dict[str, str]:
        """Return the bounds that are set, as options of Spark's file and Delta sources."""
        options = {"maxFilesPerTrigger": self.max_files_per_trigger, "maxBytesPerTrigger": self.max_bytes_per_trigger}
        return {name: str(value) for name, value in options.items() if value is not None}


def require_readable(location: str, *, within: str = "") -> None:
    """Raise before a start unless a folder, or its subfolder `within`, exists and can be listed.

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
