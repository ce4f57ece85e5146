"""The state in a checkpoint, read from its files alone: operators, stores, sizes, and what the next start needs.

    state/OPERATOR/PARTITION/[STORE/]        VERSION.zip, VERSION.changelog, SSTs/*     RocksDB
                                             VERSION.snapshot, VERSION.delta            in memory
    state/OPERATOR/_metadata/                the operator's name, stores and partitions

A batch N that was committed leaves version N + 1. A store is loaded from its newest snapshot and the changes since.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.checkpoint.integrity import Flaw

# Version 2 of the format adds an id to each name: 17_6a1f2b3c-....changelog
_VERSIONED = re.compile(r"(\d+)(?:_[0-9a-fA-F-]{36})?\.(zip|snapshot|changelog|delta)")
_SNAPSHOTS = ("zip", "snapshot")

# The name of the store of an operator that has only one. It has no folder of its own.
DEFAULT = "default"


@dataclass(frozen=True)
class Operator:
    """One stateful operator, as its metadata name it."""

    id: int
    name: str
    stores: tuple[str, ...]
    partitions: int


@dataclass(frozen=True)
class Store:
    """One store of one partition of an operator: its files and their sizes, by the path from its folder."""

    operator: int
    partition: int
    name: str
    files: Mapping[str, int]

    @property
    def folder(self) -> str:
        """Where it lies in Spark's checkpoint."""
        below = "" if self.name == DEFAULT else f"/{self.name}"
        return f"state/{self.operator}/{self.partition}{below}"

    @property
    def bytes(self) -> int:
        """What it takes on the disk."""
        return sum(self.files.values())


def operators(checkpoint: Checkpoint, sizes: Mapping[str, int]) -> list[Operator]:
    """Return the stateful operators. `sizes` are those of the files of Spark's checkpoint."""
    metadata: dict[int, str] = {}
    for path in sorted(sizes, key=lambda each: [int(part) if part.isdigit() else 0 for part in each.split("/")]):
        match = re.fullmatch(r"state/(\d+)/_metadata/(metadata|v2/\d+)", path)
        if match:
            metadata[int(match[1])] = path
    return [_operator(checkpoint, number, path) for number, path in sorted(metadata.items())]


def stores(sizes: Mapping[str, int]) -> list[Store]:
    """Return every store with its files."""
    found: dict[tuple[int, int, str], dict[str, int]] = {}
    for path, size in sizes.items():
        match = re.fullmatch(r"state/(\d+)/(\d+)/(?:([^/]+)/)?((?:SSTs/|logs/)?[^/]+)", path)
        if not match or match[3] == "_metadata":
            continue
        name = match[3] or DEFAULT
        if name in ("SSTs", "logs"):
            name, inner = DEFAULT, f"{name}/{match[4]}"
        else:
            inner = match[4]
        found.setdefault((int(match[1]), int(match[2]), name), {})[inner] = size
    return [Store(*key, files) for key, files in sorted(found.items())]


def version_of(path: str) -> int | None:
    """Return the version that a file of a store belongs to, or None for one that serves several."""
    match = _VERSIONED.fullmatch(path.rpartition("/")[2])
    return int(match[1]) if match and path.startswith("state/") else None


def state_flaws(checkpoint: Checkpoint, sizes: Mapping[str, int], version: int) -> Iterator[Flaw]:
    """Yield what keeps the stores from being loaded at a version, the one that the next start needs."""
    present = {(store.operator, store.partition, store.name): store for store in stores(sizes)}
    if not version:
        return
    named = {operator.id for operator in operators(checkpoint, sizes)}
    for number in sorted({store.operator for store in present.values()}):
        if number not in named:
            yield _lost(checkpoint, f"state/{number}/_metadata/metadata", "It names the operator and its stores.")
    for operator in operators(checkpoint, sizes):
        for partition in range(operator.partitions):
            for name in operator.stores:
                key = (operator.id, partition, name)
                store = present.get(key) or Store(*key, {})
                yield from _store_flaws(checkpoint, store, version)


def needed(store: Store, version: int) -> tuple[set[str], list[str]]:
    """Return the files that load a store at a version, and the names of those that are not there."""
    at: dict[tuple[int, bool], set[str]] = {}
    for name in store.files:
        match = _VERSIONED.fullmatch(name)
        if match:
            at.setdefault((int(match[1]), match[2] in _SNAPSHOTS), set()).add(name)
    base = max((number for number, snapshot in at if snapshot and number <= version), default=0)
    found = set(at.get((base, True), ()))
    missing = []
    for number in range(base + 1, version + 1):
        change = at.get((number, False))
        if change:
            found |= change
        else:
            missing.append(
                f"{number}.{'delta' if any(each.endswith('.delta') for each in store.files) else 'changelog'}"
            )
    return found, missing


def _store_flaws(checkpoint: Checkpoint, store: Store, version: int) -> Iterator[Flaw]:
    names, missing = needed(store, version)
    because = f"The next start loads version {version} of operator {store.operator}, partition {store.partition}."
    for name in missing:
        yield _lost(checkpoint, f"{store.folder}/{name}", because)
    for name in sorted(each for each in names if each.endswith(".zip")):
        yield from _zip_flaws(checkpoint, store, name, because)


def _zip_flaws(checkpoint: Checkpoint, store: Store, name: str, because: str) -> Iterator[Flaw]:
    """Yield what is wrong with a snapshot: the archive itself, and the tables that it names."""
    content = checkpoint.files.read_bytes(f"{checkpoint.location}/{store.folder}/{name}")
    if content is None:  # replaced by a later one since the folder was listed
        return
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            broken = archive.testzip()
            if broken is not None:
                raise zipfile.BadZipFile(f"the CRC of {broken} in it is wrong")
            metadata = json.loads(archive.read("metadata").decode().partition("\n")[2])
            tables = [
                (f"SSTs/{each['dfsSstFileName']}", int(each["sizeBytes"])) for each in metadata.get("sstFiles", ())
            ]
            tables += [
                (f"logs/{each['dfsLogFileName']}", int(each["sizeBytes"])) for each in metadata.get("logFiles") or ()
            ]
    except Exception as error:  # the reader of archives trips over damage in a dozen ways, and each means the same
        yield Flaw(
            "damage",
            f"spark/{store.folder}/{name}",
            f"is torn: {error}",
            because,
            _backup(checkpoint),
        )
        return
    for path, size in tables:
        found = store.files.get(path)
        if found is None:
            yield _lost(checkpoint, f"{store.folder}/{path}", because)
        elif found != size:
            yield Flaw(
                "damage",
                f"spark/{store.folder}/{path}",
                f"has {found:,} bytes; the snapshot {name} names {size:,}",
                because,
                _backup(checkpoint),
            )


def _operator(checkpoint: Checkpoint, number: int, path: str) -> Operator:
    """Read an operator's metadata; without them, as after damage, only its number is known."""
    try:
        found = checkpoint.files.read_bytes(f"{checkpoint.location}/{path}") or b""
        read = json.loads(found.decode().partition("\n")[2])
        kept = read["stateStoreInfo"]
        names = tuple(dict.fromkeys(str(each["storeName"]) for each in kept))
        return Operator(number, str(read["operatorInfo"]["operatorName"]), names, int(kept[0]["numPartitions"]))
    except (ValueError, KeyError, TypeError, IndexError, OverflowError):
        return Operator(number, "unreadable", (), 0)


def _lost(checkpoint: Checkpoint, path: str, means: str) -> Flaw:
    return Flaw("damage", f"spark/{path}", "is not there", means, _backup(checkpoint))


def _backup(checkpoint: Checkpoint) -> str:
    return f"Restore a backup: `headrace checkpoint restore {checkpoint.flow} --from BACKUP`."
