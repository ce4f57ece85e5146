"""Summarise a checkpoint: the progress of the flow, and what it would read if it started now.

Everything comes from the files of the checkpoint, except the lag behind a topic, which comes from the broker.
`count_rows` counts the rows in the state with Spark's state store reader.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headrace.flow.flow import Flow
from headrace.flow.target import Target
from headrace.operate.checkpoint.offsets import SourceReads, next_reads
from headrace.operate.checkpoint.state import DEFAULT_STORE, state_operators, state_stores
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.checkpoint.integrity import CheckpointProblem, find_log_flaws
from headrace.runtime.checkpoint.lease import current_holder
from headrace.runtime.checkpoint.manifest import Manifest


@dataclass(frozen=True)
class StoreSize:
    """The size of a state store of one partition. `rows` is None until Spark has counted them."""

    operator: int
    name: str
    store: str
    partition: int
    bytes: int
    rows: int | None = None


@dataclass(frozen=True)
class CheckpointSummary:
    """A checkpoint at one point in time.

    | field      | meaning                                                                                       |
    |------------|-----------------------------------------------------------------------------------------------|
    | declared   | whether the project declares the flow                                                         |
    | planned    | the batches in the offset log, first and last; None when there are none                       |
    | committed  | the batches in the commit log                                                                 |
    | unfinished | the batch that was planned and not committed: the next start retries exactly this one         |
    | reads      | what the next start reads first, per source                                                   |
    | watermark  | the event time that the next batch runs with; None without one                                |
    | begun_at   | when the last batch was planned                                                               |
    | holder     | who runs the flow, None when nobody does                                                      |
    | audited    | the last audited batch: its invalid and late rows are recorded                                |
    | lost       | ranges of offsets that the flow skipped because they were lost                                |
    | noted      | how many files have a checksum in the manifest                                                |
    | damages    | damage of the logs, as `verify` reports it; with damage, `reads` is empty                     |
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
    damages: tuple[CheckpointProblem, ...]
    bytes: int

    def as_dict(self) -> dict[str, object]:
        """The summary as `--json` prints it."""
        return asdict(self) | {"reads": [source.as_dict() for source in self.reads]}


def show(checkpoint: Checkpoint, target: Target, flow: Flow | None) -> CheckpointSummary:
    """Read the checkpoint of a flow; `flow` is None if the project does not declare it. Changes nothing."""
    damages = tuple(flaw for flaw in find_log_flaws(checkpoint) if flaw.level == "damage")
    # Commits first: a batch that is committed during this call then shows as unfinished.
    committed, planned = checkpoint.committed_batches(), checkpoint.planned_batches()
    sizes = checkpoint.files.sizes(checkpoint.location)
    last = checkpoint.offset_entry(planned[-1]) if planned and not damages else None
    watermark = _next_watermark(checkpoint, committed) if not damages else None
    return CheckpointSummary(
        flow=checkpoint.flow,
        folder=checkpoint.folder,
        declared=flow is not None,
        query_id=None if damages else checkpoint.query_id(),
        planned=(planned[0], planned[-1]) if planned else None,
        committed=(committed[0], committed[-1]) if committed else None,
        unfinished=planned[-1] if planned and planned[-1] not in committed else None,
        reads=() if damages else tuple(next_reads(checkpoint, target, list(flow.named_inputs) if flow else [])),
        watermark=_iso(watermark) if watermark else None,
        begun_at=_iso(last.timestamp_ms) if last else None,
        state=tuple(_store_sizes(checkpoint, sizes)),
        holder=current_holder(checkpoint),
        audited=_last_audited_batch(checkpoint) if not damages else None,
        lost=tuple(_lost_ranges(checkpoint)),
        noted=len(Manifest(checkpoint).read().sums),
        damages=damages,
        bytes=sum(sizes.values()),
    )


def _next_watermark(checkpoint: Checkpoint, committed: Sequence[int]) -> int:
    """Return the watermark in the last commit, in milliseconds; 0 without one."""
    if not committed:
        return 0
    commit = checkpoint.files.read(f"{checkpoint.location}/commits/{committed[-1]}") or ""
    return int(json.loads(commit.split("\n")[1])["nextBatchWatermarkMs"])


def _store_sizes(checkpoint: Checkpoint, sizes: Mapping[str, int]) -> Iterator[StoreSize]:
    names = {operator.id: operator.name for operator in state_operators(checkpoint, sizes)}
    for store in state_stores(sizes):
        name = names.get(store.operator, "unreadable")
        yield StoreSize(store.operator, name, store.name, store.partition, store.bytes)


def _last_audited_batch(checkpoint: Checkpoint) -> int | None:
    note = _read_note(checkpoint, "audited.json")
    # A note of another checkpoint does not count for this one.
    return int(note["batch"]) if note.get("query_id") == checkpoint.query_id() and "batch" in note else None


def _lost_ranges(checkpoint: Checkpoint) -> Iterator[Mapping[str, object]]:
    """Yield the lost ranges that the flow skipped, in the order of the batches."""
    names = [name for name in checkpoint.files.names(f"{checkpoint.metadata_dir}/lost") if name[:-5].isdigit()]
    for name in sorted(names, key=lambda name: int(name[:-5])):
        note = _read_note(checkpoint, f"lost/{name}")
        yield from ({"batch": int(name[:-5]), **range_} for range_ in note.get("lost", [{"kind": "unreadable"}]))


def _read_note(checkpoint: Checkpoint, path: str) -> dict[str, Any]:
    """Read one of Headrace's metadata files; a missing or unreadable one is empty."""
    try:
        note = json.loads(checkpoint.files.read_bytes(f"{checkpoint.metadata_dir}/{path}") or b"{}")
    except ValueError:
        return {}
    return note if isinstance(note, dict) else {}


def _iso(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def count_rows(spark: SparkSession, checkpoint: Checkpoint, state: Iterable[StoreSize]) -> tuple[StoreSize, ...]:
    """Return the stores with their row counts after the last committed batch. Reads every key of the state.

    Stores that Spark cannot read, such as those of custom state with several variables, keep `rows` None.
    """
    stores = list(state)
    rows: dict[tuple[int, str], dict[int, int]] = {}
    for operator, name in dict.fromkeys((store.operator, store.store) for store in stores):
        reader = spark.read.format("statestore").option("operatorId", operator)
        if name != DEFAULT_STORE:
            reader = reader.option("storeName", name)
        try:
            counts = reader.load(checkpoint.location).groupBy("partition_id").count().collect()
        except PySparkException:
            continue
        rows[operator, name] = {row["partition_id"]: row["count"] for row in counts}
    return tuple(
        replace(store, rows=rows[store.operator, store.store].get(store.partition, 0))
        if (store.operator, store.store) in rows
        else store
        for store in stores
    )
