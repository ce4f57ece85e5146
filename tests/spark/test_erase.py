"""A row is erased from a lake with a past, and looked for by a scan that knows nothing of the command."""

from __future__ import annotations

import datetime as dt
import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from typer.testing import CliRunner, Result

from cdc_changes import decoder
from headrace.cdc.apply import table as cdc_table
from headrace.cdc.capture.source_table import SourceColumn, SourceTable
from headrace.cdc.sink import DeltaCdc
from headrace.cli.main import app
from headrace.clients.spark.delta_log import version
from headrace.errors import DataError, RecoveryError
from headrace.flow.flow import Flow
from headrace.flow.inputs import Input
from headrace.flow.levers import Watermark
from headrace.flow.sink import Batch
from headrace.flow.target import Database, Target
from headrace.operate.erase import external, table as erase_table
from headrace.operate.erase.subject import Subject, Texts
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.checkpoint.lease import acquire_lease
from headrace.sinks.delta.write import DeltaAppend
from headrace.sources.rate import RateSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SUBJECT = 42
# Every text that the row ever contained, and that no other row contains. The city is not among them: others live there.
TEXTS = [
    "anna.first@example.org",
    "anna.second@example.org",
    'Änna "Zwölf" ${spark.app.name} Löwe of a name longer than statistics keep',
]
FLOWS = """
from headrace import DeltaAppend, Flow, Input
from headrace.cdc.capture.declaration import Capture
from headrace.cdc.flows import CdcSettings, mirror
from headrace.sources.rate import RateSource

shop = mirror(CdcSettings(Capture("shop", ("public.customers",)), path="silver/shop"))
totals = Flow("totals", Input(RateSource(1)), lambda rows: rows, DeltaAppend("gold/orders"))
apart = Flow("apart", Input(RateSource(1)), lambda rows: rows, DeltaAppend("gold/apart"))
"""
CUSTOMERS = SourceTable(
    "public",
    "customers",
    (SourceColumn("id", "bigint", False), *(SourceColumn(item, "text", True) for item in ("email", "name", "city"))),
    ("id",),
    "postgres",
)
ENVELOPES = """
topic string, partition int, offset bigint, key string, op string, before map<string,string>, after map<string,string>,
source struct<lsn: bigint>
"""
QUARANTINE = """
input string, topic string, partition int, offset bigint, kafka_time timestamp, reason string, key binary,
value binary, batch_id bigint, query_id string, recorded_at timestamp
"""
ARROW = {
    "string": pa.string(),
    "binary": pa.binary(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
}
NOON = dt.datetime(2026, 3, 2, 12, tzinfo=dt.UTC)
TOPIC = "shop.public.customers"
PENDING = "silver/shop/_pending"


def customer(key: int, email: str, name: str, city: str = "Berlin") -> dict[str, str]:
    return {"id": str(key), "email": email, "name": name, "city": city}


def batches() -> Iterator[list[tuple[str, dict[str, str]]]]:
    """Yield the changes of each batch: many versions of the row, and at last its delete."""
    yield [("c", customer(key, f"user{key}@example.org", f"User {key}")) for key in range(40, 46) if key != SUBJECT] + [
        ("c", customer(SUBJECT, TEXTS[0], TEXTS[2]))
    ]
    yield [("u", customer(SUBJECT, TEXTS[1], TEXTS[2])), ("u", customer(43, "user43@example.net", "User 43"))]
    yield [("d", {"id": str(SUBJECT)}), ("d", {"id": "45"})]


class Lake:
    """A project whose lake holds a row everywhere that a lake can hold one."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder, self.root = spark, folder, folder / "lake"
        self.target = Target("dev", lake=str(self.root), checkpoints=str(folder / "checkpoints"))
        self.sink = DeltaCdc("silver/shop", lambda _topic, _target: CUSTOMERS, decoder)
        (folder / "headrace.yml").write_text(
            "name: shop\ntargets: {dev: {lake: lake, checkpoints: checkpoints, kafka: {}}}\n"
        )
        (folder / "flows.py").write_text(FLOWS)
        self.position = 0
        for number, changes in enumerate(batches()):
            self.write(number, changes)
            # Without a feed rows are replaced, by a condition that names their keys.
            if number == 1:
                feed = "'delta.enableChangeDataFeed' = 'true', 'delta.checkpointInterval' = '2'"
                spark.sql(f"ALTER TABLE delta.`{self.root}/silver/shop/customers` SET TBLPROPERTIES ({feed})")
        self._file_rows()

    def write(self, number: int, changes: list[tuple[str, dict[str, str]]]) -> None:
        rows = []
        for op, values in changes:
            self.position += 1
            before, after = (values, None) if op == "d" else (None, values)
            rows.append((TOPIC, 0, self.position, None, op, before, after, (self.position,)))
        frame = self.spark.createDataFrame(rows, ENVELOPES).coalesce(1)
        self.sink.write(frame, Batch("cdc_shop", "q1", number, self.target))

    def _file_rows(self) -> None:
        invalid = [
            (b'{"id":42}', b'{"op":"u","after":{"id":42,"email":7}}'),
            (b'{"id":43}', b'{"op":"u","after":{"id":43,"email":7}}'),
            (b"\xff", f"torn: {TEXTS[1]}".encode() + b"\xff"),
            (b'{"id":421}', b'{"op":"u","after":{"id":421}}'),
        ]
        rows = [("rows", TOPIC, 0, n, NOON, "wrong", *item, 1, "q1", NOON) for n, item in enumerate(invalid)]
        # An order with the number 42 is nobody's customer number.
        other = [("rows", "orders", 0, 9, NOON, "wrong", b'{"id":42}', b'{"id":42,"customer_id":7}', 1, "q2", NOON)]
        self._save(rows, QUARANTINE, "_headrace/cdc_shop/quarantine")
        self._save(other, QUARANTINE, "_headrace/totals/quarantine")
        late = [(json.dumps({"customer_id": key, "total": 3}), "q2", 1) for key in (42, 43)]
        self._save(late, "row string, query_id string, batch_id bigint", "_headrace/totals/late")
        of_rows = [{"id": key, "email": TEXTS[0] if key == SUBJECT else "x"} for key in (SUBJECT, 43)]
        changes = [{"op": "u", "key": {"id": item["id"]}, "before": None, "after": item} for item in of_rows]
        both = pa.struct([("id", pa.int64()), ("email", pa.string())])
        schema = pa.schema(
            [("op", pa.string()), ("key", pa.struct([("id", pa.int64())])), ("before", both), ("after", both)]
        )
        write_deltalake(str(self.root / "bronze/customers"), pa.Table.from_pylist(changes, schema))
        # What a batch stored of incomplete transactions, and the next one after it, when they were complete.
        self.wait(1, 42, 43, 421)
        self.wait(2, 40)
        orders = [(42, 7, "a"), (43, SUBJECT, "b"), (44, SUBJECT, "c")]
        self._save(orders, "id bigint, customer_id int, note string", "gold/orders")

    def wait(self, batch: int, *keys: int) -> None:
        """Keep changes of customers, and of an order of each, as a flow with `together` does."""
        values = [
            (f"shop.public.{table}", json.dumps({"id": number}), [(name, str(value)) for name, value in row.items()])
            for key in keys
            for table, number, row in (
                ("customers", key, {"id": key, "email": TEXTS[0] if key == SUBJECT else "x"}),
                ("orders", key + 1000, {"id": key + 1000, "customer_id": key}),
            )
        ]
        rows = [*values, (None, None, None)]
        columns = dict(zip(("topic", "key", "after"), zip(*rows, strict=True), strict=True))
        columns |= {"_headrace_batch": [batch] * len(rows), "_headrace_query": ["q1"] * len(rows)}
        kinds = [pa.string(), pa.string(), pa.map_(pa.string(), pa.string()), pa.int64(), pa.string()]
        created = pa.table([pa.array(c, k) for c, k in zip(columns.values(), kinds, strict=True)], list(columns))
        write_deltalake(str(self.root / PENDING), created, mode="append")

    def _save(self, rows: list[tuple[object, ...]], columns: str, path: str) -> None:
        # By another writer of Delta, which takes no job of Spark.
        named = [item.split() for item in columns.replace("\n", " ").split(",")]
        schema = pa.schema([(name, ARROW[kind]) for name, kind in named])
        values = [dict(zip(schema.names, row, strict=True)) for row in rows]
        write_deltalake(str(self.root / path), pa.Table.from_pylist(values, schema))

    def rows(self, path: str) -> list[tuple[object, ...]]:
        return sorted(map(tuple, self.spark.read.format("delta").load(str(self.root / path)).collect()), key=str)

    def committed_batches(self) -> dict[str, int]:
        return dict(self.sink.committed_batches(self.spark, "cdc_shop", "0", self.target).last)

    def erase(self, *words: str) -> Result:
        return CliRunner().invoke(app, ["erase", "--project", str(self.folder), *words], catch_exceptions=True)


def places(root: Path) -> set[str]:
    """Scan raw: every Parquet column, every byte, every log. Return each place that holds the row, as a word."""
    result = set()
    for file in (item for item in root.rglob("*") if item.is_file()):
        path, content = str(file.relative_to(root)), file.read_bytes()
        table = re.split("/_delta_log/|/_change_data/|/part-", path, maxsplit=1)[0]
        part = "log" if "_delta_log" in path else "feed" if "_change_data" in path else "data"
        stored = [content]
        if file.suffix == ".parquet":
            rows = pq.read_table(file).to_pylist()
            stored += [str(value).encode() for row in rows for value in _flat(row)]
            stored += [value for row in rows for value in _flat(row) if isinstance(value, bytes)]
            column = {"silver/shop/customers": "id", "silver/shop/_tombstones/customers": "id"}.get(
                table, "customer_id"
            )
            if any(SUBJECT in (row.get(column), _key_of(row)) for row in rows):
                result.add(f"{table}: {part} row")
            if part == "data" and table.startswith(("_headrace", PENDING)) and any(_names_it(row) for row in rows):
                result.add(f"{table}: {part} payload")
        if any(text[:32].encode() in item for text in TEXTS[:2] for item in stored):
            result.add(f"{table}: {part} text")
        # The third text holds quotes, which JSON escapes: its end has none.
        if any("Löwe of a name".encode() in item or "Änna".encode() in item for item in stored):
            result.add(f"{table}: {part} text")
        if part == "log" and file.suffix == ".json" and "orders" not in table:
            plain = content.decode().replace("\\", "")
            if re.search(r"`id` IN \([^)]*\b42L", plain):
                result.add(f"{table}: log condition")
            if '"id":42,' in plain or '"id":42}' in plain or "= 42" in plain:
                result.add(f"{table}: log key")
    return result


def _key_of(row: dict[str, object]) -> object:
    """Return the key of a row of a log of changes."""
    key = row.get("key")
    return key.get("id") if isinstance(key, dict) else None


def _flat(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        for item in value.values():
            yield from _flat(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _flat(item)
    else:
        yield value


def _names_it(row: dict[str, object]) -> bool:
    texts = [value if isinstance(value, bytes) else str(value).encode() for value in row.values()]
    if ("customer_id", "42") in (row.get("after") or ()):
        return True
    of_customers = row.get("topic") == TOPIC and any(re.search(rb'"id": ?42\b', text) for text in texts)
    return of_customers or any(b'"customer_id": 42' in text for text in texts)


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    folder = tmp_path_factory.mktemp("erase")
    with pytest.MonkeyPatch.context() as patched:
        # Every MERGE marks rows in deletion vectors, as in tables that are large enough.
        patched.setattr(cdc_table, "_WORTH_VECTORS", -1)
        patched.syspath_prepend(str(folder))
        yield Lake(spark, folder)
        sys.modules.pop("flows", None)


@contextmanager
def answering(monkeypatch: pytest.MonkeyPatch, *, there: bool) -> Iterator[None]:
    """Let a source database answer whether it has the row."""
    with monkeypatch.context() as patched:
        patched.setattr(external, "read_tables", lambda *_: (CUSTOMERS,))
        patched.setattr(external, "database_of", lambda *_: Database("jdbc:postgresql://nowhere/shop", "shop"))
        patched.setattr(external, "row_exists", lambda *_: there)
        yield


@contextmanager
def dying(monkeypatch: pytest.MonkeyPatch, at: str) -> Iterator[None]:
    """Kill the command when it is about to cut the log of a table."""
    cut = erase_table._truncate_log

    def dies(session: SparkSession, location: str) -> tuple[int, int]:
        if location.endswith(at):
            raise KeyboardInterrupt
        return cut(session, location)

    with monkeypatch.context() as patched:
        patched.setattr(erase_table, "_truncate_log", dies)
        yield


def test_a_row_that_would_come_back_or_that_flows_work_on_is_not_erased(lake: Lake, monkeypatch: pytest.MonkeyPatch):
    before = places(lake.root)

    # A row that its source has, or that the mirror still shows, would come back.
    for key, there, code in ((SUBJECT, True, "HR-530"), (40, False, "HR-531")):
        with answering(monkeypatch, there=there):
            remaining = lake.erase("--table", "public.customers", "--key", str(key), "--yes")
        assert isinstance(remaining.exception, DataError), remaining.output
        assert remaining.exception.code == code

    # A change that waits for the rest of its transaction is still needed.
    waits = lake.erase("--table", "customers", "--key", "40", "--yes")
    assert isinstance(waits.exception, DataError)
    assert (waits.exception.code, "is pending in" in waits.exception.what) == ("HR-531", True)

    # While a flow runs that touches the tables, nothing is done.
    with acquire_lease(Checkpoint.of("totals", lake.target)):
        refused = lake.erase("--table", "customers", "--key", "42", "--yes")
    assert isinstance(refused.exception, RecoveryError)
    assert refused.exception.code == "HR-302"
    assert places(lake.root) == before
    assert not (lake.folder / "erasures").exists()


def test_state_that_contains_the_row_is_listed_with_its_content_and_its_expiry(spark: SparkSession, tmp_path: Path):
    target = Target("dev", lake=str(tmp_path), checkpoints=str(tmp_path / "checkpoints"))
    setup = Input(RateSource(1), watermark=Watermark("timestamp", "1 hour"))
    flow = Flow("totals", setup, lambda rows: rows, DeltaAppend("gold/totals"))
    orders = pa.table({"customer_id": [SUBJECT, 43], "at": [NOON, NOON]})
    write_deltalake(str(tmp_path / "orders"), orders)
    read = spark.readStream.format("delta").load(str(tmp_path / "orders")).withWatermark("at", "1 hour")
    where = Checkpoint.of("totals", target).location
    counted = read.groupBy("customer_id").count().writeStream.outputMode("update").format("noop")
    counted.option("checkpointLocation", where).trigger(availableNow=True).start().awaitTermination()

    def state(key: int) -> tuple[str, str, str, str]:
        (result,) = external.external_places(
            spark, target, [flow], Subject("customers", {"id": str(key)}, {}), Texts(())
        )
        return result.place, result.holds, result.why, result.removes

    place, holds, why, removes = state(SUBJECT)
    assert (place, holds) == ("state of flow 'totals', operator 0", "yes")
    assert why == "1 entries contain it: by customer_id with count."
    assert "when the watermark has passed it" in removes
    assert "`headrace checkpoint show totals`" in removes
    assert "with a new checkpoint" in removes
    assert state(99)[1] == "no"


def test_nothing_of_a_row_is_left_in_any_file_and_nothing_else_is_touched(lake: Lake, monkeypatch: pytest.MonkeyPatch):
    mirror, graves = "silver/shop/customers", "silver/shop/_tombstones/customers"
    before = places(lake.root)
    assert {
        f"{mirror}: data row", f"{mirror}: data text", f"{mirror}: feed row", f"{mirror}: log text",
        f"{mirror}: log key", f"{mirror}: log condition",
        f"{graves}: data row", "gold/orders: data row", "_headrace/totals/late: data payload",
        "bronze/customers: data row", "bronze/customers: log text",
        "_headrace/cdc_shop/quarantine: data payload", "_headrace/cdc_shop/quarantine: data text",
        f"{PENDING}: data payload", f"{PENDING}: data text",
    } <= before  # fmt: skip
    others = {path: lake.rows(path) for path in (mirror, "_headrace/totals/quarantine")}
    batches_in = lake.committed_batches()

    # A run that is killed has written down what it looks for, for its owner only.
    with dying(monkeypatch, mirror):
        lake.erase("--table", "customers", "--key", "42", "--yes")
    (note,) = (lake.folder / ".headrace" / "erasures").iterdir()
    assert note.stat().st_mode & 0o077 == 0
    assert places(lake.root)

    # The next one finishes. A flow that has nothing to do with it may run.
    with acquire_lease(Checkpoint.of("apart", lake.target)):
        done = lake.erase("--table", "customers", "--key", "42", "--yes", "--json", "--reference", "case 7")
    assert done.exit_code == 0, (done.output, done.exception)
    assert places(lake.root) == set()
    assert not note.exists()
    expected = json.loads(done.stdout.splitlines()[-1])
    assert expected["erased"]
    outcome = {place["path"]: place for place in expected["places"]}
    assert {outcome[path]["outcome"] for path in (mirror, graves, "gold/orders")} == {"clean"}
    assert outcome[mirror]["log_files_removed"] > 0
    assert [item["row"] for item in expected["source"]] == ["unknown"]

    # Everybody else's rows are what they were, and so is what the flow counts on.
    assert {path: lake.rows(path) for path in others} == others
    assert lake.rows("gold/orders") == [(42, 7, "a")]
    assert [row[3] for row in lake.rows("_headrace/cdc_shop/quarantine")] == [1, 3]
    assert [row[0] for row in lake.rows("_headrace/totals/late")] == ['{"customer_id": 43, "total": 3}']
    assert [row[0] for row in lake.rows(graves)] == [45]
    waiting = sorted((row[3], row[1] or "") for row in lake.rows(PENDING))
    keys = [
        (1, ""),
        *((1, f'{{"id": {n}}}') for n in (1043, 1421, 421, 43)),
        (2, ""),
        (2, '{"id": 1040}'),
        (2, '{"id": 40}'),
    ]
    assert waiting == keys
    assert [str(row[1]) for row in lake.rows("bronze/customers")] == ["Row(id=43)"]
    assert lake.committed_batches() == batches_in
    (published,) = lake.rows("silver/shop/_published")
    assert lake.spark.read.option("versionAsOf", published[2]).format("delta").load(str(published[1])).count() == 4
    lake.write(2, [("c", customer(99, "twice@example.org", "Twice"))])
    lake.write(3, [("c", customer(46, "user46@example.org", "User 46"))])
    assert {row[0] for row in lake.rows(mirror)} == {40, 41, 43, 44, 46}

    # The report holds no value of the row, and shows a change to itself.
    report = Path(expected["report"])
    texts = [file.read_text() for file in report.parent.iterdir()]
    assert len(texts) == 3
    assert not [text for text in texts for value in TEXTS if value[:10] in text]
    assert CliRunner().invoke(app, ["erase", "--verify", str(report), "--key", "42"]).exit_code == 0
    assert CliRunner().invoke(app, ["erase", "--verify", str(report), "--key", "43"]).exit_code == 1
    report.write_text(report.read_text().replace('"case 7"', '"case 8"'))
    assert CliRunner().invoke(app, ["erase", "--verify", str(report)]).exit_code == 1

    # Once more: there is nothing to do.
    versions = {path: version(lake.spark, str(lake.root / path)) for path in (mirror, graves, "gold/orders")}
    again = lake.erase("--table", "customers", "--key", "42")
    assert again.exit_code == 0, (again.output, again.exception)
    assert "No table contains anything of it." in again.output
    assert {path: version(lake.spark, str(lake.root / path)) for path in versions} == versions
