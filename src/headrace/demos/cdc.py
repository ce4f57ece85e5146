"""The CDC demo: captures a shop in Postgres, mirrors it into Delta, and compares both."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from threading import Event

from pyspark.sql import SparkSession

from headrace.cdc.capture.catalogue import position_now, read_tables
from headrace.cdc.capture.declaration import Capture
from headrace.cdc.capture.lifecycle import connect_worker, start_capture
from headrace.cdc.capture.source_table import SourceTable
from headrace.cdc.capture.topics import PATIENCE_SECONDS, await_position, await_topics
from headrace.cdc.flows import CdcSettings, mirror
from headrace.cdc.reconcile.compare import TableComparison, compare
from headrace.clients.kafka import first_timestamps
from headrace.clients.kafka_connect import ConnectClient
from headrace.clients.positions import Partition, end_offsets
from headrace.clients.postgres import database_of, session
from headrace.demos.feeder import SendResult
from headrace.demos.protocol import DemoContext
from headrace.errors import Transient
from headrace.flow.flow import Flow
from headrace.flow.levers import Every
from headrace.operate.checkpoint.offsets import committed_offsets
from headrace.patterns.cdc import shop
from headrace.patterns.cdc.generator import KEYS, Shop
from headrace.patterns.cdc.model import differences, replay
from headrace.runtime.checkpoint.checkpoint import Checkpoint

# The maximum number of differing rows to print per table; `--json` has all.
_MAX_DIFFERENCES_SHOWN = 10
_RETRY_SECONDS = 2.0
# A batch is many small queries, most of them planned for the first time: optimising their code would occupy the cores
# for longer than a demo lasts.
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
    """The comparison of each mirror with its table, and of the tables with the model."""

    tables: Mapping[str, TableComparison]
    transactions: int
    from_model: Sequence[str]

    @property
    def equal(self) -> bool:
        """Whether no row differs from the source or from the model."""
        return bool(self.tables) and all(table.equal for table in self.tables.values()) and not self.from_model

    def as_dict(self) -> Mapping[str, object]:
        """Return `tables` and `model`."""
        model = {"equal": not self.from_model, "transactions": self.transactions, "differences": list(self.from_model)}
        return {"tables": {name: table.as_dict() for name, table in self.tables.items()}, "model": model}

    def lines(self) -> Sequence[str]:
        """Return a line per table, and the keys of differing rows."""
        lines = ["Every mirror equals its table." if self.equal else "Something differs:"]
        for name, table in self.tables.items():
            result = (
                "equal"
                if table.equal
                else f"{len(table.differences)} rows differ, {len(table.missing_columns)} columns lack"
            )
            lines.append(f"  {name}: {result}. {table.rows:,} rows at position {table.position}.")
            lines += [
                f"    {row.kind} {row.key} {', '.join(row.columns)}"
                for row in table.differences[:_MAX_DIFFERENCES_SHOWN]
            ]
        history = f"the source holds what {self.transactions:,} transactions make in plain Python"
        return [
            *lines,
            *([f"  model: {history}."] if not self.from_model else self.from_model[:_MAX_DIFFERENCES_SHOWN]),
        ]


@dataclass(frozen=True)
class CdcDemo:
    """The shop with a trigger of five seconds, short enough to watch."""

    title: str = "Change data capture: a shop in Postgres, mirrored into Delta, row for row"
    parts: tuple[str, ...] = ("kafka", "postgres", "connect")
    has_page: bool = False
    spark: Mapping[str, str] = field(default_factory=lambda: {"spark.driver.defaultJavaOptions": _QUICK_START})
    settings: CdcSettings = field(
        default_factory=lambda: CdcSettings(CAPTURE, path="silver/shop", trigger=Every("5 seconds"))
    )

    def prepare(self, context: DemoContext) -> None:
        """Create the shop with its first rows, then start the capture: the snapshot runs while the shop is busy."""
        source = database_of(context.target, CAPTURE.database)
        shop.open_shop(source, seed=context.settings.seed)
        worker = connect_worker(context.target, CAPTURE.database)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                tables = start_capture(CAPTURE, source, worker)
                break
            except Transient:
                # After a full stop the connector may have started before the database answered.
                if time.monotonic() > deadline:
                    raise
                time.sleep(_RETRY_SECONDS)
        await_topics(CAPTURE, tables, context.target)

    def feed(self, context: DemoContext, stop: Event) -> SendResult:
        """Continue the shop's history."""
        started = time.monotonic()
        settings = context.settings
        source = database_of(context.target, CAPTURE.database)
        counts = shop.live(source, seed=settings.seed, rate=settings.rate, stop=stop)
        return SendResult(counts.total(), dict(counts), time.monotonic() - started)

    def flows(self) -> Sequence[Flow]:
        """Return the flow that mirrors all tables."""
        return [mirror(self.settings)]

    def status(self, context: DemoContext, spark: SparkSession) -> Sequence[str]:
        """Return a line per table: rows at the source, rows in the mirror, and the lag of the mirror."""
        source = database_of(context.target, CAPTURE.database)
        tables = read_tables(source, CAPTURE.selection)
        behind = self._replication_lag(context, tables)
        with session(source) as connection:
            counts = shop.counts(connection)
        return [
            f"{table!s:<20} {counts[table.name]:>6,} rows at the source, "
            f"{_mirrored(spark, context.target.table(f'{self.settings.path}/{table.name}')):>6,} in the mirror, "
            f"{behind[str(table)]}"
            for table in tables
        ]

    def awaited_offsets(self, context: DemoContext) -> Mapping[str, Mapping[Partition, int]]:
        """Return the end offsets of the topics, once they contain everything that the source has committed."""
        source = database_of(context.target, CAPTURE.database)
        connect = ConnectClient(connect_worker(context.target, CAPTURE.database).url)
        await_position(CAPTURE, source, connect, position_now(source))
        return {self._flow: end_offsets(context.target, _partitions(read_tables(source, CAPTURE.selection)).values())}

    def compare(self, context: DemoContext, spark: SparkSession) -> CdcVerdict:
        """Compare every row of every mirror with its table, and every table with the model."""
        source = database_of(context.target, CAPTURE.database)
        tables = {
            str(table): compare(spark, source, table, context.target.table(f"{self.settings.path}/{table.name}"))
            for table in read_tables(source, CAPTURE.selection)
        }
        with session(source) as connection:
            seed, done = shop.progress(connection)
            rows = shop.table_rows(connection)
        return CdcVerdict(tables, done, differences(replay(islice(Shop(seed).history(), done)), rows))

    @property
    def _flow(self) -> str:
        return self.flows()[0].name

    def _replication_lag(self, context: DemoContext, tables: Sequence[SourceTable]) -> Mapping[str, str]:
        """Return, by table, how many changes its mirror lacks, and since when."""
        target, partitions = context.target, _partitions(tables)
        reached = committed_offsets(Checkpoint.of(self._flow, target))
        ends = end_offsets(target, partitions.values())
        first = first_timestamps(target, {partition: reached.get(partition, 0) for partition in ends})
        lags = {}
        for name, partition in partitions.items():
            pending = ends[partition] - reached.get(partition, 0)
            seconds = (datetime.now(UTC) - first[partition]).total_seconds() if partition in first else 0.0
            lags[name] = f"{pending:,} changes on their way, for {seconds:.1f} s" if pending else "nothing on its way"
        return lags


def _partitions(tables: Sequence[SourceTable]) -> dict[str, Partition]:
    """Return the partition of each table's topic."""
    return {str(table): (CAPTURE.topic(table), 0) for table in tables}


def _mirrored(spark: SparkSession, location: str) -> int:
    """Return the number of rows of a mirror, 0 before its first batch."""
    from pyspark.errors import AnalysisException  # noqa: PLC0415 - only callers with a session come here

    try:
        return spark.read.format("delta").load(location).count()
    except AnalysisException:
        return 0


DEMO = CdcDemo()
