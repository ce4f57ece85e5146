"""State and watermarks as they are declared, what they become, and what is found about them without Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from pyspark.sql.types import StringType, StructField, StructType, TimestampType
from rich.console import Console
from typer.testing import CliRunner

from headrace import (
    AvailableNow,
    DeltaAppend,
    FileSource,
    Flow,
    FlowError,
    InMemory,
    Input,
    KafkaSource,
    RocksDB,
    SocketSource,
    StateBudget,
    Target,
    Watermark,
    check,
)
from headrace.cli.flow_events import metrics_table, print_event
from headrace.cli.main import app
from headrace.errors import HeadraceError
from headrace.flow.checks.backpressure import MeasuredRates
from headrace.flow.checks.finding import Severity
from headrace.flow.checks.operators import Operator, OperatorKind, QueryPlan
from headrace.flow.levers import State
from headrace.flow.size import Size, format_bytes
from headrace.operate.checkpoint.offsets import next_reads
from headrace.operate.preflight.state_findings import state_findings
from headrace.operate.run import FlowMetrics
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.checkpoint.pinned_settings import require_same_state_store
from headrace.runtime.checkpoint.source_order import read_source_order, require_same_source_order, source_index
from headrace.runtime.events import BatchCommitted, SettingPinned, StateNearBudget
from headrace.runtime.guards.guard import Progress
from headrace.runtime.guards.state_budget import StateBudgetGuard
from headrace.runtime.session import flow_settings, local_cores
from headrace.runtime.state.memory import _megabytes, machine_bytes
from headrace.runtime.state.size import OperatorState, count_removed_rows, write_state_size
from headrace.spark_plan.source_order import PlannedSource

SCHEMA = StructType([StructField("id", StringType()), StructField("at", TimestampType(), nullable=False)])
AT = Watermark("at", "10 minutes")


def flow(state: State | None = None, watermark: Watermark = AT, name: str = "rides", **changes: object) -> Flow:
    declared = Input(KafkaSource("t"), schema=SCHEMA, watermark=watermark)
    created: dict[str, object] = {
        "name": name,
        "inputs": declared,
        "transform": lambda rows: rows,
        "sink": DeltaAppend("x"),
        "state": state or RocksDB(),
    }
    return Flow(**(created | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "bytes_"), [("512 MB", 536_870_912), ("1.5gb", 1_610_612_736), (" 2 KB ", 2048), ("7 B", 7)]
)
def test_an_amount_is_a_number_and_a_unit_of_powers_of_1024(text: str, bytes_: int) -> None:
    assert Size.parse(text).bytes == bytes_


@pytest.mark.parametrize(("number", "text"), [(7, "7 B"), (1536, "1.5 KB"), (536_870_912, "512 MB"), (2**40, "1.0 TB")])
def test_a_number_of_bytes_is_formatted_for_people(number: int, text: str) -> None:
    assert format_bytes(number) == text


@pytest.mark.parametrize(
    ("created", "code"),
    [
        (lambda: Size.parse("512"), "HR-227"),
        (lambda: Size.parse("a lot"), "HR-227"),
        (lambda: Size.parse("0 MB"), "HR-227"),
        (StateBudget, "HR-224"),
        (lambda: StateBudget(rows=0), "HR-224"),
        (lambda: StateBudget(bytes="many"), "HR-227"),
        (lambda: RocksDB(memory="1 MB"), "HR-226"),
        (lambda: RocksDB(memory="512"), "HR-227"),
        (lambda: Watermark("at", "1 minute", idle_timeout="0 seconds"), "HR-225"),
    ],
)
def test_a_meaningless_declaration_is_refused_where_it_is_written(created: Callable[[], object], code: str) -> None:
    with pytest.raises(FlowError) as refused:
        created()
    assert refused.value.code == code


def test_rocksdb_gets_the_bound_of_the_application_and_state_in_memory_none() -> None:
    prefix = "spark.sql.streaming.stateStore.rocksdb."
    bound = flow_settings(flow(), cores=2, memory_mb=300)
    assert (bound[f"{prefix}boundedMemoryUsage"], bound[f"{prefix}maxMemoryUsageMB"]) == ("true", "300")
    assert f"{prefix}boundedMemoryUsage" not in flow_settings(flow(InMemory()), cores=2, memory_mb=300)


@pytest.mark.parametrize(("text", "megabytes"), [("512m", 512), ("2g", 2048), ("1024", 1024), ("1gb", 1024)])
def test_memory_of_executors_is_read_as_spark_writes_it(text: str, megabytes: int) -> None:
    assert _megabytes(text) == megabytes


def test_the_machine_has_some_memory() -> None:
    assert machine_bytes() > 64 * 1024**2


@pytest.mark.parametrize(("idle_timeout", "every"), [("5 minutes", "10000"), ("8 seconds", "2000"), ("100 ms", "200")])
def test_spark_reports_idle_triggers_often_enough_for_idle_timeouts(idle_timeout: str, every: str) -> None:
    created = flow_settings(flow(watermark=Watermark("at", "1 minute", idle_timeout=idle_timeout)), cores=2)
    assert created["spark.sql.streaming.noDataProgressEventInterval"] == every


@pytest.mark.parametrize(
    ("master", "cores"),
    [
        ("local", 1),
        ("local[3]", 3),
        ("local[2,4]", 2),
        ("local[3, 2]", 3),
        ("local[3 ,2]", 3),
        ("spark://host:7077", None),
        ("yarn", None),
    ],
)
def test_the_cores_of_a_local_master_are_known_without_spark(master: str, cores: int | None) -> None:
    assert local_cores(master) == cores


def test_flows_of_one_application_share_one_bound_of_memory() -> None:
    declared = [flow(RocksDB(memory="1 GB"), name="a"), flow(RocksDB(memory="1024 MB"), name="b"), flow(name="c")]
    assert check(declared) == []
    assert [finding.code for finding in check([*declared, flow(RocksDB(memory="2 GB"), name="d")])] == ["HRC-120"]


def test_an_idle_that_nobody_waits_for_is_found() -> None:
    quiet = Watermark("at", "1 minute", idle_timeout="5 minutes")
    assert [finding.code for finding in check([flow(watermark=quiet, trigger=AvailableNow())])] == ["HRC-210"]
    assert check([flow(watermark=quiet)]) == []


def test_a_finding_reports_that_future_rows_of_a_source_that_is_not_replayable_are_not_quarantined() -> None:
    socket = SocketSource("127.0.0.1", 9999)
    (actual,) = check([flow(inputs=Input(socket, watermark=AT))])
    assert (actual.code, actual.severity) == ("HRC-212", "info")
    assert check([flow(inputs=Input(socket))]) == []
    folder = FileSource("in", "json", SCHEMA, max_files_per_trigger=1)
    assert check([flow(inputs=Input(folder, watermark=AT))]) == []


@pytest.mark.parametrize(("rows", "codes"), [(599_999, ["HRC-214"]), (600_000, [])])
def test_a_budget_is_compared_with_what_arrives_within_the_delay(rows: int, codes: list[str]) -> None:
    # 1,000 records a second for 10 minutes.
    declared = flow(RocksDB(budget=StateBudget(rows=rows)))
    measured = {("rides", "rows"): MeasuredRates({"records": 1000.0})}
    assert [finding.code for finding in check([declared], measured)] == codes


def test_an_unbounded_join_is_reported_with_its_state_per_hour() -> None:
    two = flow(inputs={name: Input(KafkaSource(name), schema=SCHEMA) for name in ("a", "b")})
    plans = {two.name: QueryPlan((Operator(OperatorKind.INNER_JOIN_UNBOUNDED),))}
    measured = {(two.name, "a"): MeasuredRates({"records": 10.0}), (two.name, "b"): MeasuredRates({"records": 5.0})}
    (actual,) = (item for item in check([two], measured, plans) if item.code == "HRC-216")
    assert actual.severity is Severity.WARNING
    # 15 records a second; a text of 24, a time of 8 and 48 more are 80 bytes each, 4,320,000 in all.
    assert "grows by 54,000 rows every hour, about 4.1 MB" in actual.reason
    # Of a join that keeps one side forever, its rows alone: 5 a second.
    half = {two.name: QueryPlan((Operator(OperatorKind.OUTER_JOIN_HALF_BOUNDED, unbounded_inputs=("b",)),))}
    warned = {item.code: item.reason for item in check([two], measured, half)}
    assert "(b 5.0 a second) the state of the join grows by 18,000 rows every hour, about 1.4 MB" in warned["HRC-216"]
    assert "One side keeps every row forever" in warned["HRC-208"]
    ended = {two.name: QueryPlan((Operator(OperatorKind.INNER_JOIN),))}
    assert "HRC-216" not in {item.code for item in check([two], measured, ended)}
    assert "HRC-216" not in {item.code for item in check([two], {}, plans)}


# ---- what a checkpoint says ----


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target("test", lake=str(tmp_path / "lake"), checkpoints=str(tmp_path / "c"), master="local[2]")


def stateful(target: Target, *, provider: str = "RocksDBStateStoreProvider", partitions: int = 2) -> Checkpoint:
    """Write the files of a checkpoint with one committed batch and state, as Spark does."""
    checkpoint = Checkpoint.of("rides", target)
    conf = {
        "spark.sql.streaming.stateStore.providerClass": f"org.apache.spark.sql.execution.streaming.state.{provider}",
        "spark.sql.shuffle.partitions": str(partitions),
    }
    settings = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1, "conf": conf})
    files, root = checkpoint.files, checkpoint.location
    files.write(f"{root}/metadata", '{"id":"q"}')
    files.write(f"{root}/offsets/0", f'v1\n{settings}\n{{"t":{{"0":5}}}}')
    files.write(f"{root}/commits/0", 'v1\n{"nextBatchWatermarkMs":0}')
    files.write(f"{root}/state/0/_metadata/metadata", "v1\n{}")
    return checkpoint


def codes_of(created: Flow, target: Target) -> list[str]:
    return [finding.code for finding in state_findings([created], target)]


def test_a_checkpoint_that_fits_has_no_findings_and_one_that_is_not_there_neither(target: Target) -> None:
    assert codes_of(flow(), target) == []
    stateful(target)
    assert codes_of(flow(), target) == []


def test_another_kind_of_store_is_refused_before_spark_passes_over_it(target: Target) -> None:
    checkpoint = stateful(target)
    assert codes_of(flow(InMemory()), target) == ["HRC-121"]
    with pytest.raises(HeadraceError) as refused:
        require_same_state_store(flow(InMemory()), checkpoint)
    assert refused.value.code == "HR-344"
    assert "RocksDB()" in refused.value.remedy


def test_a_flow_without_state_may_change_its_state_store(target: Target) -> None:
    checkpoint = stateful(target)
    checkpoint.files.delete(f"{checkpoint.location}/state/0/_metadata/metadata")
    for folder in ("state/0/_metadata", "state/0", "state"):
        Path(checkpoint.location, folder).rmdir()
    assert codes_of(flow(InMemory()), target) == []
    assert require_same_state_store(flow(InMemory()), checkpoint) is None


def test_another_number_of_partitions_than_declared_or_than_cores_is_found(target: Target) -> None:
    stateful(target, partitions=3)
    assert codes_of(flow(), target) == ["HRC-213"]
    assert codes_of(flow(RocksDB(shuffle_partitions=3)), target) == []
    assert codes_of(flow(RocksDB(shuffle_partitions=8)), target) == ["HRC-213"]


def test_an_idle_that_was_added_is_found(target: Target) -> None:
    quiet, checkpoint = flow(watermark=Watermark("at", "1 minute", idle_timeout="5 minutes")), stateful(target)
    assert codes_of(quiet, target) == ["HRC-122"]
    order = [PlannedSource("rows", "kafka:t"), PlannedSource("rows", "kafka:t", "idle ticks")]
    checkpoint.files.write(
        f"{checkpoint.metadata_dir}/order.json", json.dumps({"sources": [vars(item) for item in order]})
    )
    assert codes_of(quiet, target) == []


@pytest.mark.parametrize(("rows", "codes"), [(799, []), (800, ["HRC-215"]), (1000, ["HRC-215"]), (1001, ["HRC-123"])])
def test_the_state_of_the_last_run_is_compared_with_the_budget(target: Target, rows: int, codes: list[str]) -> None:
    write_state_size(stateful(target), 0, [OperatorState(0, "stateStoreSave", rows, 1, 0)])
    assert codes_of(flow(RocksDB(budget=StateBudget(rows=1000))), target) == codes


def test_a_checkpoint_without_a_record_has_its_sources_as_declared(target: Target) -> None:
    checkpoint = stateful(target)
    two = flow(inputs={name: Input(KafkaSource(name), schema=SCHEMA) for name in ("a", "b")})
    assert [source_index(checkpoint, two, name) for name in ("a", "b")] == [0, 1]
    require_same_source_order(
        Checkpoint.of("new", target), [PlannedSource("b", "kafka:b"), PlannedSource("a", "kafka:a")]
    )
    fresh = Checkpoint.of("new", target)
    assert [source_index(fresh, two, name) for name in ("a", "b")] == [1, 0]


def test_more_sources_or_others_are_refused_and_another_name_of_an_input_is_not(target: Target) -> None:
    checkpoint, first = stateful(target), PlannedSource("rows", "kafka:t")
    with pytest.raises(HeadraceError) as refused:
        require_same_source_order(checkpoint, [first, PlannedSource("rows", "kafka:t", "idle ticks")])
    assert refused.value.code == "HR-343"
    require_same_source_order(checkpoint, [first])
    require_same_source_order(checkpoint, [PlannedSource("rides", "kafka:t")])
    with pytest.raises(HeadraceError, match="other sources"):
        require_same_source_order(checkpoint, [PlannedSource("orders", "kafka:orders")])


def test_a_damaged_record_of_the_order_is_refused(target: Target) -> None:
    checkpoint = stateful(target)
    checkpoint.files.write(f"{checkpoint.metadata_dir}/order.json", "{")
    with pytest.raises(HeadraceError) as refused:
        read_source_order(checkpoint)
    assert refused.value.code == "HR-345"


# ---- the watch over a budget ----


class Watched:
    """A watch with its own clock, and its events."""

    def __init__(self, target: Target, budget: StateBudget) -> None:
        self.now, self.reported, self.stops = 0, [], []
        self.watch = StateBudgetGuard(
            flow(RocksDB(budget=budget), Watermark("at", "1 second")),
            stateful(target),
            lambda: self.now,
            self._on_event,
            self.stops.append,
        )

    def _on_event(self, event: object) -> None:
        self.reported.append(event)

    def batches(self, *rows: int, seconds: int = 10) -> HeadraceError | None:
        for number, count in enumerate(rows):
            self.now += seconds * 1000
            state = (OperatorState(0, "dedupe", count, 10 * count, 0),)
            self.watch.on_progress(Progress(BatchCommitted("f", number, 0, 0, {}, 0, 0, None, state)))
        return self.stops[0] if self.stops else None


def test_state_near_the_budget_is_reported_once_until_it_was_clearly_below(target: Target) -> None:
    watched = Watched(target, StateBudget(rows=1000))
    watched.batches(799, 800, 900, 790, 850, 710)
    assert [(event.used, event.limit, event.measure) for event in watched.reported] == [(800, 1000, "rows")]
    watched.batches(699, 801)
    assert [event.used for event in watched.reported] == [800, 801]


def test_growth_that_reaches_the_budget_within_an_hour_is_reported_once(target: Target) -> None:
    # One row a second: 100 after 100 s. To 3,000 it takes 2,900 s, to 8,000 more than two hours.
    growing = [10 * number for number in range(1, 16)]
    near, far = Watched(target, StateBudget(rows=3000)), Watched(target, StateBudget(rows=8000))
    near.batches(*growing)
    far.batches(*growing)
    assert len(near.reported) == 1
    assert near.reported[0].seconds_left == pytest.approx(3000 - near.reported[0].used, rel=0.01)
    assert far.reported == []


def test_over_the_budget_stops_and_names_the_operator_and_how_far(target: Target) -> None:
    watched = Watched(target, StateBudget(rows=5000, bytes="1000 B"))
    assert watched.batches(100) is None
    error = watched.batches(125)
    assert error is not None
    assert error.code == "HR-228"
    assert "25% over" in error.why
    assert "operator 0 (dedupe)" in error.why
    with pytest.raises(HeadraceError) as refused:
        watched.watch.before_start(None)
    assert refused.value.code == "HR-229"


def test_a_flow_starts_again_after_its_budget_was_raised(target: Target) -> None:
    Watched(target, StateBudget(rows=100)).batches(101)
    Watched(target, StateBudget(rows=101)).watch.before_start(None)


# ---- what a person and a program see ----

FLOWS = """
from headrace import DeltaSource, Flow, Input, Noop, RocksDB

rides = Flow("rides", Input(DeltaSource("in", max_files_per_trigger=1)), lambda rows: rows, Noop(), state=RocksDB(8))
"""


def test_the_check_of_a_project_looks_at_its_checkpoints(target: Target, tmp_path: Path) -> None:
    stateful(target)
    settings = f"name: shop\ntargets: {{dev: {{checkpoints: {target.checkpoints}, lake: {target.lake}}}}}\n"
    (tmp_path / "headrace.yml").write_text(settings)
    (tmp_path / "flows.py").write_text(FLOWS)
    result = CliRunner().invoke(app, ["check", "--project", str(tmp_path), "--json"])
    findings = json.loads(result.stdout)["findings"]
    assert [finding["code"] for finding in findings if finding["code"] == "HRC-213"] == ["HRC-213"]
    assert "8 shuffle partitions are declared, and the checkpoint has 2" in str(findings)


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (
            StateNearBudget("rides", 7, "rows", 900, 1000, 2400.0, "operator 0 (dedupe)"),
            "batch 7: state has 900 of a budget of 1,000 rows; at the current growth it will be reached in about 40 "
            "minutes. Most is in operator 0 (dedupe)",
        ),
        (
            StateNearBudget("rides", 7, "bytes", 1536, 2048, None, "operator 1 (symmetricHashJoin)"),
            "batch 7: state has 1.5 KB of a budget of 2.0 KB. Most is in operator 1 (symmetricHashJoin)",
        ),
        (
            SettingPinned("rides", "shuffle partitions", "8", "2"),
            "keeps 2 shuffle partitions from its checkpoint (declared: 8). Changing this needs a new checkpoint.",
        ),
    ],
)
def test_changes_of_the_state_are_described_in_words(
    event: StateNearBudget | SettingPinned, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_event(event)
    assert words in " ".join(capsys.readouterr().err.split())


def test_rows_that_leave_a_join_are_those_that_were_there_or_came_and_are_there_no_more() -> None:
    def join(rows: int, updated: int, removed: int = 0) -> OperatorState:
        return OperatorState(0, "symmetricHashJoin", rows, 1, removed, updated=updated)

    # Spark does not count the rows of an outer side.
    assert count_removed_rows((join(100, 100),), (join(90, 25, removed=5),)) == 35
    # After a restart nothing is known of the batch before.
    assert count_removed_rows((), (join(90, 25, removed=5),)) == 5
    # A window that is updated was there before: here Spark's own count is right.
    window = OperatorState(0, "stateStoreSave", 30, 1, 7, updated=20)
    assert count_removed_rows((window,), (window,)) == 7


def test_the_table_of_a_run_shows_the_state() -> None:
    stored = (OperatorState(0, "dedupe", 1200, 2048, 0), OperatorState(1, "stateStoreSave", 34, 1024, 0))
    table = metrics_table("This run", {"rides": FlowMetrics(rows_in=5, state=stored)})
    cells = {str(column.header): next(iter(column.cells)) for column in table.columns}
    assert (cells["state rows"], cells["state"]) == ("1,234", "3.0 KB")


def test_the_sources_of_a_checkpoint_are_shown_by_their_order_in_it(target: Target) -> None:
    checkpoint = stateful(target)
    entry = checkpoint.files.read(f"{checkpoint.location}/offsets/0")
    checkpoint.files.write(f"{checkpoint.location}/offsets/0", f'{entry}\n{{"logOffset":3}}')
    order = [PlannedSource("rides", "kafka:t"), PlannedSource("rides", "kafka:t", "idle ticks")]
    checkpoint.files.write(
        f"{checkpoint.metadata_dir}/order.json", json.dumps({"sources": [vars(item) for item in order]})
    )
    reads = list(next_reads(checkpoint, replace(target, kafka={}), ["something else"]))
    assert [(read.source, read.input) for read in reads] == [(0, "rides"), (1, "idle ticks of rides")]


def test_the_figures_of_a_run_fit_a_line_of_eighty_characters_and_rare_ones_are_shown_where_there_are_some() -> None:
    stored, invalid = (OperatorState(0, "dedupe", 51_123, 9_000_000, 0),), {"malformed_json": 1_105}
    many = FlowMetrics(rows_in=220_123, rows_out=25_812, batches=12, late=23, invalid=invalid, state=stored)
    console = Console(width=80, file=StringIO())
    console.print(metrics_table("This run", {"driver_metrics": many}))
    assert all(name in console.file.getvalue() for name in ("driver_metrics", "220,123", "25,812", "1,105"))  # type: ignore[attr-defined]
    headings = [str(column.header) for column in metrics_table("", {"a": many}).columns]
    assert headings == ["flow", "rows in", "rows out", "batches", "late", "invalid", "state rows", "state"]
    assert all(item in console.file.getvalue() for item in ("51,123", *headings))  # type: ignore[attr-defined]
    aside = metrics_table("", {"a": many, "b": FlowMetrics(set_aside=1)})
    assert "quarantined" in [column.header for column in aside.columns]
