"""Copies of a checkpoint, and the way back.

A backup is a folder that holds what the flow's folder held, and `backup.json` with the sha256 of every file:

    FOLDER/FLOW-20261116T080102Z/backup.json
                                 spark/...      Spark's checkpoint
                                 headrace/...   what Headrace keeps beside it, but for the lease

It is written beside and renamed when it is whole. The flow has to be stopped: state and logs of a running one are not
of one moment. Local disks only; other storage has snapshots of its own.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from headrace.clients.storage import is_local, local_path
from headrace.errors import ConfigError, RecoveryError
from headrace.flow.target import Lease
from headrace.operate.checkpoint.find import require_no_links
from headrace.operate.checkpoint.verify import verify
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.checkpoint.integrity import damaged_error
from headrace.runtime.checkpoint.lease import acquire_lease

NOTE = "backup.json"

# Leases only ever count up, also when progress goes back: a driver that was paused must not get its number again.
_OF_THE_LEASE = ("lease", "leases")


@dataclass(frozen=True)
class Backup:
    """What `backup.json` says. `files` holds the sha256 of each file, by its path in the backup; `lease` its number."""

    flow: str
    query_id: str
    committed: int | None
    planned: int
    lease: int
    made_at: str
    versions: Mapping[str, str]
    files: Mapping[str, str]

    @classmethod
    def read(cls, folder: Path) -> Backup:
        """Read the note of a backup, or raise when the folder is none."""
        try:
            return cls(**json.loads((folder / NOTE).read_bytes()))
        except FileNotFoundError as error:
            raise untrusted(folder, f"It has no {NOTE}, which a backup gets when it is whole.") from error
        except (OSError, ValueError, TypeError) as error:
            raise untrusted(folder, f"{NOTE} cannot be read: {error}.") from error

    def require_whole(self, folder: Path) -> None:
        """Compare every file with its sha256; raise on the first that differs, and on files that nobody noted."""
        present = {path for path in _files(folder) if path != NOTE}
        for path, noted in self.files.items():
            if path not in present:
                raise untrusted(folder, f"{path} is not there.")
            if _sha256(folder / path) != noted:
                raise untrusted(folder, f"{path} is not what was backed up: its sha256 is another one.")
        added = sorted(present - set(self.files))
        if added:
            raise untrusted(folder, f"{added[0]} was added since.")


def back_up(checkpoint: Checkpoint, into: Path, terms: Lease | None = None) -> tuple[Path, Backup]:
    """Copy a checkpoint into a new folder below `into`, and return that with its note. `terms` are the target's.

    1. The lease is taken: a running flow is refused, and cannot be started meanwhile.
    2. Every file is looked at: a damaged checkpoint is refused, for its backup would be damaged too.
    3. All files are copied, with their sums, into a hidden folder; then the note; then the disk is told to keep it.
    4. The folder is renamed.
    """
    require_local(checkpoint)
    begun = checkpoint.planned_batches()
    if not begun and checkpoint.query_id() is None:
        raise RecoveryError(
            f"Flow '{checkpoint.flow}' has nothing to back up.",
            why=f"It was never started: {checkpoint.location} holds no checkpoint.",
            state="Nothing was written.",
            remedy=f"Start it with `headrace run {checkpoint.flow}`, or name another target with --target.",
            code="HR-324",
        )
    with acquire_lease(checkpoint, terms) as holding:
        damages = verify(checkpoint).damages
        if damages:
            raise damaged_error(checkpoint, list(damages))
        now = datetime.now(UTC)
        final = into / f"{checkpoint.flow}-{now:%Y%m%dT%H%M%S%fZ}"
        with _written_beside(final) as beside:
            sums = _all_copied(checkpoint, beside)
            done = checkpoint.committed_batches()
            backup = Backup(
                flow=checkpoint.flow,
                query_id=str(checkpoint.query_id()),
                committed=done[-1] if done else None,
                planned=checkpoint.planned_batches()[-1] if checkpoint.planned_batches() else -1,
                lease=holding.token,
                made_at=now.isoformat(timespec="seconds"),
                versions={name: version(name) for name in ("headrace", "pyspark", "delta-spark")},
                files=sums,
            )
            (beside / NOTE).write_text(json.dumps(asdict(backup), indent=1))
    return final, backup


def _all_copied(checkpoint: Checkpoint, into: Path) -> dict[str, str]:
    """Copy the parts of a flow's folder, and return the sha256 of each file as it was read."""
    folder = local_path(checkpoint.folder)
    paths = [path for path in _files(folder) if not is_of_the_lease(path)]
    require_no_links(checkpoint, paths)
    return {path: copied(folder / path, into / path) for path in paths}


def copied(source: Path, copy: Path) -> str:
    """Copy one file, and return the sha256 of what was read."""
    copy.parent.mkdir(parents=True, exist_ok=True)
    content = hashlib.sha256()
    with source.open("rb") as reading, copy.open("wb") as writing:
        while chunk := reading.read(1 << 20):
            content.update(chunk)
            writing.write(chunk)
    return content.hexdigest()


@contextmanager
def _written_beside(final: Path) -> Iterator[Path]:
    """Yield a hidden folder that gets its name when the block ends well, and is deleted when it does not."""
    beside = final.with_name(f".{final.name}.unfinished")
    try:
        try:
            beside.mkdir(parents=True)
            yield beside
            # One call for all files: a checkpoint has thousands, and each alone would wait for the disk.
            os.sync()
            beside.rename(final)
        except OSError as error:
            raise ConfigError(
                f"The backup cannot be written to {final.parent}.",
                why=f"{os.strerror(error.errno or 0)}.",
                state="The checkpoint is untouched. Nothing is left of the backup.",
                remedy="Make room or make the folder writable, or name another one with --to.",
                code="HR-324",
            ) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def is_of_the_lease(path: str) -> bool:
    """Whether a path of a flow's folder belongs to the lease, which is never copied and never replaced."""
    part, _, rest = path.partition("/")
    return part == "headrace" and rest.partition("/")[0] in _OF_THE_LEASE


def _files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_symlink() or path.is_file())


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def require_local(checkpoint: Checkpoint) -> None:
    """Raise for a checkpoint on other storage than a disk: whole folders are not copied there."""
    if not is_local(checkpoint.folder):
        raise ConfigError(
            f"The checkpoint of flow '{checkpoint.flow}' cannot be backed up or restored by Headrace.",
            why=f"It is on other storage than a local disk: {checkpoint.folder}.",
            state="Nothing was read and nothing was changed.",
            remedy="Stop the flow and use the storage's own snapshot or copy of the whole folder.",
            code="HR-323",
        )


def untrusted(folder: Path, why: str) -> RecoveryError:
    """Return the error for a folder that is no backup, or not a whole one."""
    return RecoveryError(
        f"{folder} is not a backup that can be restored.",
        why=why,
        state="The present checkpoint is untouched.",
        remedy="Name another backup with --from.",
        code="HR-325",
    )
