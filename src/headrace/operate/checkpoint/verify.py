"""Look at every file of a checkpoint, and say what is wrong with it.

The logs are judged by their text and by the manifest, all files by the sums beside them, the state by what the next
start needs of it. Reads only; a flow may run meanwhile.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from headrace.operate.checkpoint.checksums import hadoop_agrees, is_side_file, side_files, spark_agrees
from headrace.operate.checkpoint.state import state_flaws, version_of
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.checkpoint.integrity import Flaw, find_log_flaws
from headrace.runtime.checkpoint.manifest import Manifest

# What Spark writes before it renames it to its name: `.NAME.UUID.tmp`. A driver that is killed leaves them.
_LEFTOVER = re.compile(r"(.*/)?\.[^/]+\.tmp(\.crc)?")


@dataclass(frozen=True)
class Verdict:
    """What was looked at, and every flaw, damage first. `summed` files have a sum beside them or in the manifest."""

    flow: str
    folder: str
    files: int
    bytes: int
    summed: int
    flaws: tuple[Flaw, ...]

    @property
    def damages(self) -> tuple[Flaw, ...]:
        """The flaws with which the flow must not be started."""
        return tuple(flaw for flaw in self.flaws if flaw.level == "damage")

    def as_dict(self) -> dict[str, object]:
        """The verdict as `--json` prints it."""
        return {
            "flow": self.flow,
            "folder": self.folder,
            "files": self.files,
            "bytes": self.bytes,
            "summed": self.summed,
            "flaws": [flaw.as_dict() for flaw in self.flaws],
        }


def verify(checkpoint: Checkpoint) -> Verdict:
    """Look at everything. Raises nothing for what it finds; a checkpoint that is not there has no flaws."""
    found = {flaw.path: flaw for flaw in find_log_flaws(checkpoint)}
    # After the logs: the commit that was read is there, and so is the state that it speaks of.
    done = checkpoint.committed_batches()
    version = done[-1] + 1 if done else 0
    noted = Manifest(checkpoint).read().sums
    sizes = checkpoint.files.sizes(checkpoint.location)
    for flaw in (*_sum_flaws(checkpoint, sizes, noted, version), *state_flaws(checkpoint, sizes, version)):
        known = found.get(flaw.path)
        if known is None or known.level == "note":
            found[flaw.path] = flaw
    checked = [path for path in sizes if not is_side_file(path)]
    summed = [path for path in checked if path in noted or any(side in sizes for side in side_files(path))]
    return Verdict(
        flow=checkpoint.flow,
        folder=checkpoint.folder,
        files=len(checked),
        bytes=sum(sizes.values()),
        summed=len(summed),
        flaws=tuple(sorted(found.values(), key=lambda flaw: flaw.level)),
    )


def _sum_flaws(
    checkpoint: Checkpoint, sizes: Mapping[str, int], noted: Mapping[str, str], version: int
) -> Iterator[Flaw]:
    """Yield the files that are not what the sum beside them was taken of, and what a killed driver left."""
    for path in sorted(sizes):
        if _LEFTOVER.fullmatch(path):
            yield Flaw(
                "note",
                f"spark/{path}",
                "was never finished",
                "A driver that ended while it wrote left it. Spark does not read it.",
                "Nothing to do. It may be deleted while the flow is stopped.",
            )
        elif not is_side_file(path):
            yield from _against_side_file(checkpoint, path, sizes, noted, version)


def _against_side_file(
    checkpoint: Checkpoint, path: str, sizes: Mapping[str, int], noted: Mapping[str, str], version: int
) -> Iterator[Flaw]:
    of_hadoop, of_spark = side_files(path)
    side = next((each for each in (of_hadoop, of_spark) if each in sizes), None)
    content = checkpoint.files.read_bytes(f"{checkpoint.location}/{path}")
    sums = checkpoint.files.read_bytes(f"{checkpoint.location}/{side}") if side else None
    if content is None:  # purged since the folder was listed
        return
    if not content:
        wrong = "is empty"
    elif sums is None or (hadoop_agrees if side == of_hadoop else spark_agrees)(content, sums):
        return
    else:
        wrong = f"is not what its checksum {side} was taken of"
    backup = f"Restore a backup: `headrace checkpoint restore {checkpoint.flow} --from BACKUP`."
    of_state = version_of(path)
    if of_state is not None and of_state > version:
        yield Flaw(
            "note",
            f"spark/{path}",
            wrong,
            f"It holds state of a batch that was not committed; the next start begins at version {version}.",
            "Nothing to do: the batch writes it again.",
        )
    elif noted.get(path) == hashlib.sha256(content).hexdigest():
        yield Flaw(
            "damage",
            f"spark/{side}",
            f"is not the checksum of {path}, which is as the manifest holds it",
            "Spark does not read a file whose checksum is another one.",
            "Delete this checksum: Spark reads the file without it.",
        )
    else:
        yield Flaw("damage", f"spark/{path}", wrong, _meaning(path, version), backup)


def _meaning(path: str, version: int) -> str:
    if not path.startswith("state/"):
        return "It is a part of the flow's progress."
    return f"It is a part of the flow's state; the next start needs version {version}."
