"""Store the search terms of an erasure while it is in progress.

Once the rows are deleted, the texts to search for cannot be found again. So they are written before the first table is
changed, to a file that only its owner can read, and deleted with the last step. An interrupted erasure reads them.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from headrace.operate.erase.subject import Subject


@dataclass(frozen=True)
class Journal:
    """The file with the search terms of an erasure."""

    path: Path

    @classmethod
    def of(cls, folder: Path, subject: Subject) -> Journal:
        """Return the journal of a subject, whether it exists or not."""
        name = hashlib.sha256(json.dumps([subject.table, dict(subject.key)], sort_keys=True).encode()).hexdigest()
        return cls(folder / f"{name[:16]}.unfinished")

    def read(self) -> tuple[str, ...] | None:
        """Return the texts of an unfinished erasure, or None."""
        try:
            return tuple(json.loads(self.path.read_text()))
        except FileNotFoundError:
            return None

    def write(self, texts: tuple[str, ...]) -> None:
        """Write the texts. They are on disk when this returns."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new_file = self.path.with_suffix(".new")
        new_file.unlink(missing_ok=True)
        with os.fdopen(os.open(new_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(texts, file)
            file.flush()
            os.fsync(file.fileno())
        new_file.replace(self.path)

    def delete(self) -> None:
        """Delete the journal."""
        self.path.unlink(missing_ok=True)
