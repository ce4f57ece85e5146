"""Verify the checksum files that Hadoop and Spark write for the files of a checkpoint.

| file        | checksum of                       | written by                                                    |
|-------------|-----------------------------------|---------------------------------------------------------------|
| `.NAME.crc` | every file on a local disk        | Hadoop: CRC-32 of each 512 bytes                              |
| `NAME.crc`  | state files                       | Spark, with version 2 of the state format: CRC-32C, as JSON   |
"""

import json
import struct
import zlib

_HADOOP_HEADER = struct.Struct(">4si")
_CASTAGNOLI = 0x82F63B78


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
