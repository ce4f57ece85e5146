"""What a checkpoint holds, for people and machines: how far the flow is, and what it would read if it were started now.

Everything comes from the files of the checkpoint; only how far behind a topic the flow is, is asked of the broker.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from headrace.flow.flow import Flow
from headrace.flow.target import Target
from headrace.operate.checkpoint.offsets import SourceReads, next_reads
from headrace.operate.checkpoint.state import operators, stores
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.checkpoint.integrity import Flaw, find_log_flaws
from headrace.runtime.checkpoint.lease_status import current_holder
from headrace.runtime.checkpoint.manifest import Manifest


@dataclass(frozen=True)
class StoreSize:
    """One store of one partition of a stateful operator. `rows` is None until Spark has counted them."""

    operator: int
    name: str
    store: str
    partition: int
    bytes: int
    rows: int | None = None


@dataclass(frozen=True)
class Anatomy:
    """A checkpoint at one moment.

    | field      | meaning                                                                                       |
    |------------|-----------------------------------------------------------------------------------------------|
    | declared   | whether the project has the flow; it may be gone from there                                   |
    | planned    | the batches in the offset log, first and last; None when there are none                       |
    | committed  | the batches in the commit log                                                                 |
    | unfinished | the batch that was begun and not committed: the next start runs exactly it again              |
    | reads      | what the next start reads first, per source                                                   |
    | watermark  | the event time that the next batch runs with; None without one                                |
    | begun_at   | when the last batch was planned                                                               |
    | holder     | who runs the flow, None when nobody does                                                      |
    | audited    | the last batch whose bad and late rows are filed                                              |
    | lost       | ranges of offsets that the flow went on without                                               |
    | noted      | how many files have a sum in the manifest                                                     |
    | damages    | what `verify` would say of the logs; with damage, `reads` is empty                            |
    """

    flow: str
    folder: str
    declared: bool
    query_id: str | None
    planned: tuple[int, int] | None
    committed: tuple[int, int] | None
    unfinished: int | None
    reads: tuple[SourceReads, ...]
    watermark: str | None
    begun_at: str | None
    state: tuple[StoreSize, ...]
    holder: Mapping[str, object] | None
    audited: int | None
    lost: tuple[Mapping[str, object], ...]
    noted: int
    damages: tuple[Flaw, ...]
    bytes: int

    def as_dict(self) -> dict[str, object]:
        """The anatomy as `--json` prints it."""
        return asdict(self) | {"reads": [each.as_dict() for each in self.reads]}


def show(checkpoint: Checkpoint, target: Target, flow: Flow | None) -> Anatomy:
    """Read the checkpoint of a flow; `flow` is None when the project does not declare it any more. Changes nothing."""
    damages = tuple(flaw for flaw in find_log_flaws(checkpoint) if flaw.level == "damage")
    # Commits first: a batch that is committed meanwhile then shows as unfinished.
    done, begun = checkpoint.committed_batches(), checkpoint.planned_batches()
    sizes = checkpoint.files.sizes(checkpoint.location)
    last = checkpoint.offset_entry(begun[-1]) if begun and not damages else None
    watermark = _next_watermark(checkpoint, done) if not damages else None
    return Anatomy(
        flow=checkpoint.flow,
        folder=checkpoint.folder,
        declared=flow is not None,
        query_id=None if damages else checkpoint.query_id(),
        planned=(begun[0], begun[-1]) if begun else None,
        committed=(done[0], done[-1]) if done else None,
        unfinished=begun[-1] if begun and begun[-1] not in done else None,
        reads=() if damages else tuple(next_reads(checkpoint, target, list(flow.named_inputs) if flow else [])),
        watermark=_iso(watermark) if watermark else None,
        begun_at=_iso(last.timestamp_ms) if last else None,
        state=tuple(_store_sizes(checkpoint, sizes)),
        holder=current_holder(checkpoint),
        audited=_audited(checkpoint) if not damages else None,
        lost=tuple(_lost(checkpoint)),
        noted=len(Manifest(checkpoint).read().sums),
        damages=damages,
        bytes=sum(sizes.values()),
    )


def _next_watermark(checkpoint: Checkpoint, done: Sequence[int]) -> int:
    """Return the watermark that the last commit handed on, in milliseconds; 0 without one."""
    if not done:
        return 0
    found = checkpoint.files.read(f"{checkpoint.location}/commits/{done[-1]}") or ""
    return int(json.loads(found.split("\n")[1])["nextBatchWatermarkMs"])


def _store_sizes(checkpoint: Checkpoint, sizes: Mapping[str, int]) -> Iterator[StoreSize]:
    names = {operator.id: operator.name for operator in operators(checkpoint, sizes)}
    for store in stores(sizes):
        name = names.get(store.operator, "unreadable")
        yield StoreSize(store.operator, name, store.name, store.partition, store.bytes)


def _audited(checkpoint: Checkpoint) -> int | None:
    note = _object(checkpoint, "audited.json")
    # A note of another checkpoint says nothing about this one.
    return int(note["batch"]) if note.get("query_id") == checkpoint.query_id() and "batch" in note else None


def _lost(checkpoint: Checkpoint) -> Iterator[Mapping[str, object]]:
    """Yield the ranges that the flow went on without, in the order of the batches."""
    names = [name for name in checkpoint.files.names(f"{checkpoint.metadata_dir}/lost") if name[:-5].isdigit()]
    for name in sorted(names, key=lambda each: int(each[:-5])):
        read = _object(checkpoint, f"lost/{name}")
        yield from ({"batch": int(name[:-5]), **each} for each in read.get("lost", [{"kind": "unreadable"}]))


def _object(checkpoint: Checkpoint, path: str) -> dict[str, Any]:
    """Read one of Headrace's own notes; what is not there or cannot be read is empty."""
    try:
        read = json.loads(checkpoint.files.read_bytes(f"{checkpoint.metadata_dir}/{path}") or b"{}")
    except ValueError:
        return {}
    return read if isinstance(read, dict) else {}


def _iso(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
