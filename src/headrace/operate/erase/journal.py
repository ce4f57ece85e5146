"""What an erasure looks for, kept while it is under way.

Once the rows are gone nobody could say any more which texts to look for. So they are written down before the first
table is changed, in a file that only its owner can read, and the file goes with the last step. An erasure that was cut
off finds it again.
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
    """The note of one erasure."""

    path: Path

    @classmethod
    def of(cls, folder: Path, subject: Subject) -> Journal:
        """Return the note of a subject, whether it is there or not."""
        name = hashlib.sha256(json.dumps([subject.table, dict(subject.key)], sort_keys=True).encode()).hexdigest()
        return cls(folder / f"{name[:16]}.unfinished")

    def read(self) -> tuple[str, ...] | None:
        """Return the texts of an erasure that was begun and not finished, or None."""
        try:
            return tuple(json.loads(self.path.read_text()))
        except FileNotFoundError:
            return None

    def write(self, texts: tuple[str, ...]) -> None:
        """Keep the texts. They are on the disk when this returns."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_suffix(".new")
        beside.unlink(missing_ok=True)
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(texts, file)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self.path)

    def forget(self) -> None:
        """Remove the note."""
        self.path.unlink(missing_ok=True)
