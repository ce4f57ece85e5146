"""The checksums that others keep beside the files of a checkpoint.

| side file   | of                                | made by                                                       |
|-------------|-----------------------------------|---------------------------------------------------------------|
| `.NAME.crc` | every file on a local disk        | Hadoop: CRC-32 of each 512 bytes                              |
| `NAME.crc`  | state files                       | Spark, with version 2 of its state's format: CRC-32C, as JSON |
"""

from __future__ import annotations

import json
import struct
import zlib

_HADOOP_HEADER = struct.Struct(">4si")
_CASTAGNOLI = 0x82F63B78


def side_files(path: str) -> tuple[str, str]:
    """Return where Hadoop and where Spark keep the checksum of a file."""
    folder, slash, name = path.rpartition("/")
    return f"{folder}{slash}.{name}.crc", f"{path}.crc"


def is_side_file(path: str) -> bool:
    """Whether a path is a checksum of another file."""
    return path.endswith(".crc")


def hadoop_agrees(content: bytes, side: bytes) -> bool:
    """Whether a file is the one that Hadoop took its sums of."""
    if len(side) < _HADOOP_HEADER.size:
        return False
    magic, step = _HADOOP_HEADER.unpack_from(side)
    if magic != b"crc\0" or step <= 0:
        return False
    sums = [zlib.crc32(content[start : start + step]) for start in range(0, len(content), step)]
    return side[_HADOOP_HEADER.size :] == struct.pack(f">{len(sums)}I", *sums)


def spark_agrees(content: bytes, side: bytes) -> bool:
    """Whether a file is the one that Spark took its sum of. Slow, about 5 MB a second: Python has no CRC-32C."""
    try:
        noted = json.loads(side)
        size, value = int(noted["mainFileSize"]), int(noted["value"])
    except (ValueError, KeyError, TypeError):
        return False
    return size == len(content) and value & 0xFFFFFFFF == _crc32c(content)


def _crc32c(content: bytes) -> int:
    value = 0xFFFFFFFF
    for byte in content:
        value = _TABLE[(value ^ byte) & 0xFF] ^ (value >> 8)
    return value ^ 0xFFFFFFFF


def _row(value: int) -> int:
    for _ in range(8):
        value = (value >> 1) ^ (_CASTAGNOLI if value & 1 else 0)
    return value


_TABLE = tuple(map(_row, range(256)))
