"""Verify every file of a checkpoint.

The logs are checked by their content and the manifest, all files by their checksums, the state by what the next start
needs. Read-only; the flow may be running. Hadoop and Spark write these checksum files:

| file        | checksum of                       | written by                                                    |
|-------------|-----------------------------------|---------------------------------------------------------------|
| `.NAME.crc` | every file on a local disk        | Hadoop: CRC-32 of each 512 bytes                              |
| `NAME.crc`  | state files                       | Spark, with version 2 of the state format: CRC-32C, as JSON   |
"""

import hashlib
import json
import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from headrace.operate.checkpoint.state import state_flaws, version_of
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.checkpoint.integrity import CheckpointProblem, find_log_flaws
from headrace.runtime.checkpoint.manifest import Manifest

_HADOOP_HEADER = struct.Struct(">4si")
_CASTAGNOLI = 0x82F63B78

# What Spark writes before it renames it to its name: `.NAME.UUID.tmp`. A driver that is killed leaves them.
_LEFTOVER = re.compile(r"(.*/)?\.[^/]+\.tmp(\.crc)?")


@dataclass(frozen=True)
class CheckpointVerdict:
    """The verified files and their flaws, damage first. `summed` files have a checksum file or one in the manifest."""

    flow: str
    folder: str
    files: int
    bytes: int
    summed: int
    flaws: tuple[CheckpointProblem, ...]

    @property
    def damages(self) -> tuple[CheckpointProblem, ...]:
        """The flaws with which the flow must not be started."""
        return tuple(flaw for flaw in self.flaws if flaw.level == "damage")

    def as_dict(self) -> dict[str, object]:
        """The verdict as `--json` prints it."""
        return asdict(self)


def verify(checkpoint: Checkpoint) -> CheckpointVerdict:
    """Verify everything. Does not raise for flaws; a checkpoint that does not exist has none."""
    flaws = {flaw.path: flaw for flaw in find_log_flaws(checkpoint)}
    # Read after the logs: the state of the last commit then exists.
    committed = checkpoint.committed_batches()
    version = committed[-1] + 1 if committed else 0
    checksums = Manifest(checkpoint).read().sums
    sizes = checkpoint.files.sizes(checkpoint.location)
    for flaw in (*_checksum_flaws(checkpoint, sizes, checksums, version), *state_flaws(checkpoint, sizes, version)):
        earlier = flaws.get(flaw.path)
        if earlier is None or earlier.level == "note":
            flaws[flaw.path] = flaw
    checked = [path for path in sizes if not is_checksum_file(path)]
    with_checksum = [
        path for path in checked if path in checksums or any(name in sizes for name in checksum_files(path))
    ]
    return CheckpointVerdict(
        flow=checkpoint.flow,
        folder=checkpoint.folder,
        files=len(checked),
        bytes=sum(sizes.values()),
        summed=len(with_checksum),
        flaws=tuple(sorted(flaws.values(), key=lambda flaw: flaw.level)),
    )


def _checksum_flaws(
    checkpoint: Checkpoint, sizes: Mapping[str, int], checksums: Mapping[str, str], version: int
) -> Iterator[CheckpointProblem]:
    """Yield the files that do not match their checksum, and leftovers of a killed driver."""
    for path in sorted(sizes):
        if _LEFTOVER.fullmatch(path):
            yield CheckpointProblem(
                "note",
                f"spark/{path}",
                "was never completed",
                "A driver that ended while it wrote left it. Spark does not read it.",
                "Nothing to do. It may be deleted while the flow is stopped.",
            )
        elif not is_checksum_file(path):
            yield from _compare_with_checksum(checkpoint, path, sizes, checksums, version)


def _compare_with_checksum(
    checkpoint: Checkpoint, path: str, sizes: Mapping[str, int], checksums: Mapping[str, str], version: int
) -> Iterator[CheckpointProblem]:
    hadoop_file, spark_file = checksum_files(path)
    checksum_file = next((name for name in (hadoop_file, spark_file) if name in sizes), None)
    content = checkpoint.files.read_bytes(f"{checkpoint.location}/{path}")
    expected = checkpoint.files.read_bytes(f"{checkpoint.location}/{checksum_file}") if checksum_file else None
    if content is None:  # deleted since the folder was listed
        return
    if not content:
        problem = "is empty"
    elif expected is None or (matches_hadoop_checksum if checksum_file == hadoop_file else matches_spark_checksum)(
        content, expected
    ):
        return
    else:
        problem = f"does not match its checksum {checksum_file}"
    backup = f"Restore a backup: `headrace checkpoint restore {checkpoint.flow} --from BACKUP`."
    state_version = version_of(path)
    if state_version is not None and state_version > version:
        yield CheckpointProblem(
            "note",
            f"spark/{path}",
            problem,
            f"It contains state of a batch that was not committed; the next start begins at version {version}.",
            "Nothing to do: the batch writes it again.",
        )
    elif checksums.get(path) == hashlib.sha256(content).hexdigest():
        yield CheckpointProblem(
            "damage",
            f"spark/{checksum_file}",
            f"is not the checksum of {path}, which matches the manifest",
            "Spark does not read a file that does not match its checksum.",
            "Delete this checksum: Spark reads the file without it.",
        )
    else:
        yield CheckpointProblem("damage", f"spark/{path}", problem, _consequence(path, version), backup)


def _consequence(path: str, version: int) -> str:
    if not path.startswith("state/"):
        return "It is a part of the flow's progress."
    return f"It is a part of the flow's state; the next start needs version {version}."


def checksum_files(path: str) -> tuple[str, str]:
    """Return the paths of Hadoop's and of Spark's checksum of a file."""
    folder, slash, name = path.rpartition("/")
    return f"{folder}{slash}.{name}.crc", f"{path}.crc"


def is_checksum_file(path: str) -> bool:
    """Whether a path is a checksum of another file."""
    return path.endswith(".crc")


def matches_hadoop_checksum(content: bytes, checksum_file: bytes) -> bool:
    """Whether a file matches Hadoop's checksums."""
    if len(checksum_file) < _HADOOP_HEADER.size:
        return False
    magic, step = _HADOOP_HEADER.unpack_from(checksum_file)
    if magic != b"crc\0" or step <= 0:
        return False
    checksums = [zlib.crc32(content[start : start + step]) for start in range(0, len(content), step)]
    return checksum_file[_HADOOP_HEADER.size :] == struct.pack(f">{len(checksums)}I", *checksums)


def matches_spark_checksum(content: bytes, checksum_file: bytes) -> bool:
    """Whether a file matches Spark's checksum. Slow, about 5 MB per second: Python has no CRC-32C."""
    try:
        expected = json.loads(checksum_file)
        size, value = int(expected["mainFileSize"]), int(expected["value"])
    except (ValueError, KeyError, TypeError):
        return False
    return size == len(content) and value & 0xFFFFFFFF == _crc32c(content)


def _crc32c(content: bytes) -> int:
    value = 0xFFFFFFFF
    for byte in content:
        value = _TABLE[(value ^ byte) & 0xFF] ^ (value >> 8)
    return value ^ 0xFFFFFFFF


def _crc32c_table_entry(value: int) -> int:
    for _ in range(8):
        value = (value >> 1) ^ (_CASTAGNOLI if value & 1 else 0)
    return value


_TABLE = tuple(map(_crc32c_table_entry, range(256)))
