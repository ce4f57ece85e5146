"""The CDC demo's own part: a shop in Postgres that is captured, mirrored, and compared with its mirrors."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from threading import Event
from typing import TYPE_CHECKING

from headrace.cdc.capture.catalogue import position_now, read_tables
from headrace.cdc.capture.declaration import Capture
from headrace.cdc.capture.lifecycle import connect_worker, start_capture
from headrace.cdc.capture.source_table import SourceTable
from headrace.cdc.capture.wait import PATIENCE_SECONDS, await_position, await_topics
from headrace.cdc.flows import CdcSettings, mirror
from headrace.cdc.reconcile.compare import TableComparison, compare
from headrace.clients.kafka import first_timestamps
from headrace.clients.kafka_connect import ConnectClient
from headrace.clients.positions import Partition, end_offsets
from headrace.clients.postgres import database_of, session
from headrace.clients.storage import file_store
from headrace.demos.feeder import Sent
from headrace.demos.protocol import Scene
from headrace.errors import Transient
from headrace.flow.flow import Flow
from headrace.flow.levers import Every
from headrace.operate.checkpoint.offsets import committed_offsets
from headrace.patterns.cdc import shop
from headrace.patterns.cdc.generator import KEYS, Shop
from headrace.patterns.cdc.model import differences, replay
from headrace.runtime.checkpoint.checkpoint import Checkpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Rows that differ are told by name up to so many per table; `--json` has all.
_FEW = 10
_RETRY_SECONDS = 2.0
# A batch is many small queries, most of them planned for the first time: compiling their code for speed takes the cores
# from running it, for longer than a demo lasts.
_QUICK_START = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"

CAPTURE = Capture(
    "postgres",
    tuple(f"{shop.SCHEMA}.{table}" for table in KEYS),
    prefix=shop.SCHEMA,
    # The end of a run waits for the position that the next one of these brings.
    heartbeat="1 second",
)


@dataclass(frozen=True)
class CdcVerdict:
    """Each mirror beside its table, and the tables beside the model."""

    tables: Mapping[str, TableComparison]
    transactions: int
    from_model: Sequence[str]

    @property
    def equal(self) -> bool:
        """Whether no row differs, neither from the source nor from the model."""
        return bool(self.tables) and all(each.equal for each in self.tables.values()) and not self.from_model

    def as_dict(self) -> Mapping[str, object]:
        """Return `tables` and `model`."""
        told = {"equal": not self.from_model, "transactions": self.transactions, "differences": list(self.from_model)}
        return {"tables": {name: each.as_dict() for name, each in self.tables.items()}, "model": told}

    def lines(self) -> Sequence[str]:
        """Return a line per table, and the keys of rows that differ."""
        lines = ["Every mirror equals its table." if self.equal else "Something differs:"]
        for name, each in self.tables.items():
            verdict = (
                "equal"
                if each.equal
                else f"{len(each.differences)} rows differ, {len(each.missing_columns)} columns lack"
            )
            lines.append(f"  {name}: {verdict}. {each.rows:,} rows at position {each.position}.")
            lines += [f"    {row.kind} {row.key} {', '.join(row.columns)}" for row in each.differences[:_FEW]]
        history = f"the source holds what {self.transactions:,} transactions make in plain Python"
        return [*lines, *([f"  model: {history}."] if not self.from_model else self.from_model[:_FEW])]


@dataclass(frozen=True)
class CdcDemo:
    """The shop with a trigger of five seconds: its changes are few, and a person looks at it."""

    title: str = "Change data capture: a shop in Postgres, mirrored into Delta, row for row"
    parts: tuple[str, ...] = ("kafka", "postgres", "connect")
    has_page: bool = False
    spark: Mapping[str, str] = field(default_factory=lambda: {"spark.driver.defaultJavaOptions": _QUICK_START})
    settings: CdcSettings = field(
        default_factory=lambda: CdcSettings(CAPTURE, path="silver/shop", trigger=Every("5 seconds"))
    )

    def prepare(self, scene: Scene) -> None:
        """Make the shop and what it opens with, then begin the capture: its snapshot meets a shop that lives."""
        source = database_of(scene.target, CAPTURE.database)
        shop.open_shop(source, seed=scene.settings.seed)
        worker = connect_worker(scene.target, CAPTURE.database)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                tables = start_capture(CAPTURE, source, worker)
                break
            except Transient:
                # After a stop of everything the connector may have started before the database answered.
                if time.monotonic() > deadline:
                    raise
                time.sleep(_RETRY_SECONDS)
        await_topics(CAPTURE, tables, scene.target)

    def feed(self, scene: Scene, stop: Event) -> Sent:
        """Go on with the shop's history."""
        started = time.monotonic()
        wanted = scene.settings
        source = database_of(scene.target, CAPTURE.database)
        counts = shop.live(source, seed=wanted.seed, rate=wanted.rate, stop=stop)
        return Sent(counts.total(), dict(counts), time.monotonic() - started)

    def flows(self) -> Sequence[Flow]:
        """Return the one flow that mirrors all tables."""
        return [mirror(self.settings)]

    def status(self, scene: Scene, spark: SparkSession) -> Sequence[str]:
        """Return a line per table: rows at the source, rows in the mirror, and how far that one is behind."""
        source = database_of(scene.target, CAPTURE.database)
        tables = read_tables(source, CAPTURE.selection)
        behind = self._behind(scene, tables)
        with session(source) as connection:
            counts = shop.counts(connection)
        return [
            f"{table!s:<20} {counts[table.name]:>6,} rows at the source, "
            f"{_mirrored(spark, scene.target.table(f'{self.settings.path}/{table.name}')):>6,} in the mirror, "
            f"{behind[str(table)]}"
            for table in tables
        ]

    def awaited(self, scene: Scene) -> Mapping[str, Mapping[Partition, int]]:
        """Return the ends of the topics, once they hold everything that the source has committed."""
        source = database_of(scene.target, CAPTURE.database)
        connect = ConnectClient(connect_worker(scene.target, CAPTURE.database).url)
        await_position(CAPTURE, source, connect, position_now(source))
        return {self._flow: end_offsets(scene.target, _partitions(read_tables(source, CAPTURE.selection)).values())}

    def compare(self, scene: Scene, spark: SparkSession) -> CdcVerdict:
        """Compare every row of every mirror with its table, and every table with the model."""
        source = database_of(scene.target, CAPTURE.database)
        found = {
            str(table): compare(spark, source, table, scene.target.table(f"{self.settings.path}/{table.name}"))
            for table in read_tables(source, CAPTURE.selection)
        }
        with session(source) as connection:
            seed, done = shop.progress(connection)
            held = shop.table_rows(connection)
        return CdcVerdict(found, done, differences(replay(islice(Shop(seed).history(), done)), held))

    @property
    def _flow(self) -> str:
        return self.flows()[0].name

    def _behind(self, scene: Scene, tables: Sequence[SourceTable]) -> Mapping[str, str]:
        """Return, by table, how many changes are not in its mirror, and for how long the first of them is not."""
        target, places = scene.target, _partitions(tables)
        reached = committed_offsets(Checkpoint.of(self._flow, target, file_store(target.checkpoints)))
        ends = end_offsets(target, places.values())
        first = first_timestamps(target, {each: reached.get(each, 0) for each in ends})
        told = {}
        for name, each in places.items():
            left = ends[each] - reached.get(each, 0)
            seconds = (datetime.now(UTC) - first[each]).total_seconds() if each in first else 0.0
            told[name] = f"{left:,} changes on their way, for {seconds:.1f} s" if left else "nothing on its way"
        return told


def _partitions(tables: Sequence[SourceTable]) -> dict[str, Partition]:
    """Return the one partition of each table's topic."""
    return {str(table): (CAPTURE.topic(table), 0) for table in tables}


def _mirrored(spark: SparkSession, location: str) -> int:
    """Return the rows of a mirror, 0 before its first batch."""
    from pyspark.errors import AnalysisException  # noqa: PLC0415 - only callers with a session come here

    try:
        return spark.read.format("delta").load(location).count()
    except AnalysisException:
        return 0


DEMO = CdcDemo()
