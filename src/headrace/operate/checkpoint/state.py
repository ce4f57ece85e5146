"""Read the state in a checkpoint from its files: operators, stores, sizes, and the files that the next start needs.

    state/OPERATOR/PARTITION/[STORE/]        VERSION.zip, VERSION.changelog, SSTs/*     RocksDB
                                             VERSION.snapshot, VERSION.delta            in memory
    state/OPERATOR/_metadata/                the operator's name, stores and partitions

A batch N that was committed leaves version N + 1. A store is loaded from its newest snapshot and the changes since.
"""

import io
import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.checkpoint.integrity import CheckpointProblem

# Version 2 of the format adds an id to each name: 17_6a1f2b3c-....changelog
_VERSIONED = re.compile(r"(\d+)(?:_[0-9a-fA-F-]{36})?\.(zip|snapshot|changelog|delta)")
_SNAPSHOTS = ("zip", "snapshot")

# The name of the store of an operator that has only one. It has no folder of its own.
DEFAULT_STORE = "default"


@dataclass(frozen=True)
class StateOperator:
    """A stateful operator, from its metadata."""

    id: int
    name: str
    stores: tuple[str, ...]
    partitions: int


@dataclass(frozen=True)
class StateStore:
    """A state store of one partition of an operator: the sizes of its files, by their paths in its folder."""

    operator: int
    partition: int
    name: str
    files: Mapping[str, int]

    @property
    def folder(self) -> str:
        """The path of the store in Spark's checkpoint."""
        below = "" if self.name == DEFAULT_STORE else f"/{self.name}"
        return f"state/{self.operator}/{self.partition}{below}"

    @property
    def bytes(self) -> int:
        """The size of the store on disk."""
        return sum(self.files.values())


def state_operators(checkpoint: Checkpoint, sizes: Mapping[str, int]) -> list[StateOperator]:
    """Return the stateful operators. `sizes` has the files of Spark's checkpoint."""
    metadata: dict[int, str] = {}
    for path in sorted(sizes, key=lambda path: [int(part) if part.isdigit() else 0 for part in path.split("/")]):
        match = re.fullmatch(r"state/(\d+)/_metadata/(metadata|v2/\d+)", path)
        if match:
            metadata[int(match[1])] = path
    return [_operator(checkpoint, number, path) for number, path in sorted(metadata.items())]


def state_stores(sizes: Mapping[str, int]) -> list[StateStore]:
    """Return every store with its files."""
    files_by_store: dict[tuple[int, int, str], dict[str, int]] = {}
    for path, size in sizes.items():
        match = re.fullmatch(r"state/(\d+)/(\d+)/(?:([^/]+)/)?((?:SSTs/|logs/)?[^/]+)", path)
        if not match or match[3] == "_metadata":
            continue
        name = match[3] or DEFAULT_STORE
        if name in ("SSTs", "logs"):
            name, file = DEFAULT_STORE, f"{name}/{match[4]}"
        else:
            file = match[4]
        files_by_store.setdefault((int(match[1]), int(match[2]), name), {})[file] = size
    return [StateStore(*key, files) for key, files in sorted(files_by_store.items())]


def version_of(path: str) -> int | None:
    """Return the version that a file of a store belongs to, or None if it serves several."""
    match = _VERSIONED.fullmatch(path.rpartition("/")[2])
    return int(match[1]) if match and path.startswith("state/") else None


def state_flaws(checkpoint: Checkpoint, sizes: Mapping[str, int], version: int) -> Iterator[CheckpointProblem]:
    """Yield the flaws that prevent the next start from loading the stores at a version."""
    present = {(store.operator, store.partition, store.name): store for store in state_stores(sizes)}
    if not version:
        return
    operator_ids = {operator.id for operator in state_operators(checkpoint, sizes)}
    for number in sorted({store.operator for store in present.values()}):
        if number not in operator_ids:
            yield _missing_file(
                checkpoint, f"state/{number}/_metadata/metadata", "It names the operator and its stores."
            )
    for operator in state_operators(checkpoint, sizes):
        for partition in range(operator.partitions):
            for name in operator.stores:
                key = (operator.id, partition, name)
                store = present.get(key) or StateStore(*key, {})
                yield from _store_flaws(checkpoint, store, version)


def required_files(store: StateStore, version: int) -> tuple[set[str], list[str]]:
    """Return the files that load a store at a version, and the names of missing ones."""
    files_by_version: dict[tuple[int, bool], set[str]] = {}
    for name in store.files:
        match = _VERSIONED.fullmatch(name)
        if match:
            files_by_version.setdefault((int(match[1]), match[2] in _SNAPSHOTS), set()).add(name)
    base = max((number for number, snapshot in files_by_version if snapshot and number <= version), default=0)
    required = set(files_by_version.get((base, True), ()))
    missing = []
    for number in range(base + 1, version + 1):
        change = files_by_version.get((number, False))
        if change:
            required |= change
        else:
            missing.append(
                f"{number}.{'delta' if any(file.endswith('.delta') for file in store.files) else 'changelog'}"
            )
    return required, missing


def _store_flaws(checkpoint: Checkpoint, store: StateStore, version: int) -> Iterator[CheckpointProblem]:
    names, missing = required_files(store, version)
    consequence = f"The next start loads version {version} of operator {store.operator}, partition {store.partition}."
    for name in missing:
        yield _missing_file(checkpoint, f"{store.folder}/{name}", consequence)
    for name in sorted(name for name in names if name.endswith(".zip")):
        yield from _zip_flaws(checkpoint, store, name, consequence)


def _zip_flaws(checkpoint: Checkpoint, store: StateStore, name: str, consequence: str) -> Iterator[CheckpointProblem]:
    """Yield the flaws of a snapshot: of the archive, and of the files that it names."""
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
                (f"SSTs/{file['dfsSstFileName']}", int(file["sizeBytes"])) for file in metadata.get("sstFiles", ())
            ]
            tables += [
                (f"logs/{file['dfsLogFileName']}", int(file["sizeBytes"])) for file in metadata.get("logFiles") or ()
            ]
    except Exception as error:  # damage of an archive raises many kinds of errors, all with the same meaning
        yield CheckpointProblem(
            "damage", f"spark/{store.folder}/{name}", f"is torn: {error}", consequence, _restore_hint(checkpoint)
        )
        return
    for path, size in tables:
        actual_size = store.files.get(path)
        if actual_size is None:
            yield _missing_file(checkpoint, f"{store.folder}/{path}", consequence)
        elif actual_size != size:
            yield CheckpointProblem(
                "damage",
                f"spark/{store.folder}/{path}",
                f"has {actual_size:,} bytes; the snapshot {name} names {size:,}",
                consequence,
                _restore_hint(checkpoint),
            )


def _operator(checkpoint: Checkpoint, number: int, path: str) -> StateOperator:
    """Read an operator's metadata; if they are damaged, return only its number."""
    try:
        content = checkpoint.files.read_bytes(f"{checkpoint.location}/{path}") or b""
        metadata = json.loads(content.decode().partition("\n")[2])
        stores = metadata["stateStoreInfo"]
        names = tuple(dict.fromkeys(str(store["storeName"]) for store in stores))
        return StateOperator(
            number, str(metadata["operatorInfo"]["operatorName"]), names, int(stores[0]["numPartitions"])
        )
    except (ValueError, KeyError, TypeError, IndexError, OverflowError):
        return StateOperator(number, "unreadable", (), 0)


def _missing_file(checkpoint: Checkpoint, path: str, consequence: str) -> CheckpointProblem:
    return CheckpointProblem("damage", f"spark/{path}", "is missing", consequence, _restore_hint(checkpoint))


def _restore_hint(checkpoint: Checkpoint) -> str:
    return f"Restore a backup: `headrace checkpoint restore {checkpoint.flow} --from BACKUP`."
