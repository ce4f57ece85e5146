"""Back up a checkpoint.

A backup is a copy of the flow's folder, with `backup.json`, which has the sha256 of every file:

    FOLDER/FLOW-20261116T080102Z/backup.json
                                 spark/...      Spark's checkpoint
                                 headrace/...   Headrace's own metadata, without the lease

It is written to a hidden folder and renamed when it is complete. The flow has to be stopped: state and logs of a
running flow are not consistent. Local disks only; other storage has its own snapshots.
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

MANIFEST_NAME = "backup.json"

# Lease numbers only increase, also when a restore goes back: a paused driver must not get its number again.
_LEASE_FOLDERS = ("lease", "leases")


@dataclass(frozen=True)
class Backup:
    """The content of `backup.json`. `files` has the sha256 of each file by its path in the backup."""

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
        """Read `backup.json`, or raise if the folder is not a backup."""
        try:
            return cls(**json.loads((folder / MANIFEST_NAME).read_bytes()))
        except FileNotFoundError as error:
            raise invalid_backup(folder, f"It has no {MANIFEST_NAME}, which every complete backup has.") from error
        except (OSError, ValueError, TypeError) as error:
            raise invalid_backup(folder, f"{MANIFEST_NAME} cannot be read: {error}.") from error

    def require_complete(self, folder: Path) -> None:
        """Compare every file with its sha256; raise on the first difference, and on unlisted files."""
        present = {path for path in _files(folder) if path != MANIFEST_NAME}
        for path, expected in self.files.items():
            if path not in present:
                raise invalid_backup(folder, f"{path} is missing.")
            if _sha256(folder / path) != expected:
                raise invalid_backup(folder, f"{path} differs from what was backed up: its sha256 does not match.")
        added = sorted(present - set(self.files))
        if added:
            raise invalid_backup(folder, f"{added[0]} was added since.")


def back_up(checkpoint: Checkpoint, into: Path, lease_settings: Lease | None = None) -> tuple[Path, Backup]:
    """Copy a checkpoint into a new folder below `into`. Return the folder and the content of its `backup.json`.

    1. Take the lease: a running flow is refused, and none can start during the backup.
    2. Verify every file: a damaged checkpoint is refused, since its backup would be damaged too.
    3. Copy all files into a hidden folder and compute their checksums; write `backup.json`; sync the disk.
    4. Rename the folder.
    """
    require_local(checkpoint)
    planned_batches = checkpoint.planned_batches()
    if not planned_batches and checkpoint.query_id() is None:
        raise RecoveryError(
            f"Flow '{checkpoint.flow}' has nothing to back up.",
            why=f"It was never started: {checkpoint.location} has no checkpoint.",
            state="Nothing was written.",
            remedy=f"Start it with `headrace run {checkpoint.flow}`, or name another target with --target.",
            code="HR-324",
        )
    with acquire_lease(checkpoint, lease_settings) as active_lease:
        damages = verify(checkpoint).damages
        if damages:
            raise damaged_error(checkpoint, list(damages))
        now = datetime.now(UTC)
        final = into / f"{checkpoint.flow}-{now:%Y%m%dT%H%M%S%fZ}"
        with _staged_folder(final) as staging:
            checksums = _copy_all(checkpoint, staging)
            committed = checkpoint.committed_batches()
            backup = Backup(
                flow=checkpoint.flow,
                query_id=str(checkpoint.query_id()),
                committed=committed[-1] if committed else None,
                planned=checkpoint.planned_batches()[-1] if checkpoint.planned_batches() else -1,
                lease=active_lease.token,
                made_at=now.isoformat(timespec="seconds"),
                versions={name: version(name) for name in ("headrace", "pyspark", "delta-spark")},
                files=checksums,
            )
            (staging / MANIFEST_NAME).write_text(json.dumps(asdict(backup), indent=1))
    return final, backup


def _copy_all(checkpoint: Checkpoint, into: Path) -> dict[str, str]:
    """Copy a flow's folder, and return the sha256 of each file as it was read."""
    folder = local_path(checkpoint.folder)
    paths = [path for path in _files(folder) if not is_lease_file(path)]
    require_no_links(checkpoint, paths)
    return {path: copy_with_checksum(folder / path, into / path) for path in paths}


def copy_with_checksum(source: Path, copy: Path) -> str:
    """Copy one file, and return the sha256 of what was read."""
    copy.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with source.open("rb") as reading, copy.open("wb") as writing:
        while chunk := reading.read(1 << 20):
            digest.update(chunk)
            writing.write(chunk)
    return digest.hexdigest()


@contextmanager
def _staged_folder(final: Path) -> Iterator[Path]:
    """Yield a hidden folder that is renamed to `final` if the block succeeds, and deleted otherwise."""
    staging = final.with_name(f".{final.name}.unfinished")
    try:
        try:
            staging.mkdir(parents=True)
            yield staging
            # One call for all files: a checkpoint has thousands, and one sync per file would be slow.
            os.sync()
            staging.rename(final)
        except OSError as error:
            raise ConfigError(
                f"The backup cannot be written to {final.parent}.",
                why=f"{os.strerror(error.errno or 0)}.",
                state="The checkpoint is untouched. Nothing of the backup is left.",
                remedy="Make room or make the folder writable, or name another one with --to.",
                code="HR-328",
            ) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def is_lease_file(path: str) -> bool:
    """Whether a path of a flow's folder belongs to the lease, which is never copied or replaced."""
    part, _, rest = path.partition("/")
    return part == "headrace" and rest.partition("/")[0] in _LEASE_FOLDERS


def _files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_symlink() or path.is_file())


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def require_local(checkpoint: Checkpoint) -> None:
    """Raise for a checkpoint that is not on a local disk."""
    if not is_local(checkpoint.folder):
        raise ConfigError(
            f"The checkpoint of flow '{checkpoint.flow}' cannot be backed up or restored by Headrace.",
            why=f"It is on other storage than a local disk: {checkpoint.folder}.",
            state="Nothing was read and nothing was changed.",
            remedy="Stop the flow and use the storage's own snapshot or copy of the whole folder.",
            code="HR-323",
        )


def invalid_backup(folder: Path, why: str) -> RecoveryError:
    """Return the error for a folder that is not a complete backup."""
    return RecoveryError(
        f"{folder} is not a backup that can be restored.",
        why=why,
        state="The present checkpoint is untouched.",
        remedy="Name another backup with --from.",
        code="HR-325",
    )
