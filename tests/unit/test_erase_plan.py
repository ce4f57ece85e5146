"""Whom an erasure is about, where that row is looked for, and how: without Spark."""

from __future__ import annotations

import json
import re
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import ConfigResource
from pyspark.sql import types as T
from typer.testing import CliRunner

from headrace.cdc.apply.replace_where import key_condition
from headrace.cdc.capture.source_table import SourceColumn, SourceTable
from headrace.cli.main import app
from headrace.clients import topics
from headrace.clients.storage import LocalFileStore
from headrace.clients.topics import describe_retention
from headrace.errors import ConfigError, DataError, HeadraceError
from headrace.flow.flow import Flow
from headrace.flow.inputs import Input
from headrace.flow.target import Target
from headrace.operate.erase import external, report
from headrace.operate.erase.erase import ErasureRequest, subject_of
from headrace.operate.erase.external import SourceLookup
from headrace.operate.erase.places import Lake, LakeTable, TableColumn, affected_flows, match_tables
from headrace.operate.erase.plan import ScannedPlace
from headrace.operate.erase.scan import ScanResult, SearchTerms, scan_for_subject, subject_texts
from headrace.operate.erase.subject import Subject, Texts, is_identifying, singular
from headrace.sinks.delta.write import DeltaAppend
from headrace.sources.delta.source import DeltaSource
from headrace.sources.kafka.source import KafkaSource
from headrace.sources.kafka.topics import TopicPattern
from headrace.sources.rate import RateSource

CUSTOMER = Subject("customers", {"id": "42"}, {"gold/vip": "member"})


def table(path: str, *columns: str) -> LakeTable:
    kind = "recorded" if path.startswith("_headrace") else "table"
    column_names = tuple(TableColumn(name, name, "string", name) for name in columns)
    return LakeTable(path, f"/lake/{path}", kind, column_names, ())


@pytest.mark.parametrize(
    ("path", "columns", "known_by"),
    [
        ("silver/shop/customers", ["id", "email"], ["id"]),
        ("silver/shop/_tombstones/customers", ["id"], ["id"]),
        ("gold/orders", ["id", "customer_id"], ["customer_id"]),
        ("gold/orders", ["id", "customerId", "customers_id"], ["customerId", "customers_id"]),
        ("gold/orders", ["id", "customer", "custom_id"], []),
        ("gold/vip", ["member", "id"], ["member"]),
        ("bronze/customers", ["key", "key.id", "after", "after.id", "after.no"], ["key.id", "after.id"]),
        ("gold/orders", ["id", "buyer", "buyer.customer_id"], ["buyer.customer_id"]),
    ],
)
def test_rows_are_known_by_the_key_or_by_a_column_named_after_the_table(
    path: str, columns: list[str], known_by: list[str]
):
    assert CUSTOMER.key_columns(path, columns) == tuple({name: "42"} for name in known_by)


def test_a_key_of_several_columns_is_known_in_tables_of_the_same_name_only():
    subject = Subject("customers", {"tenant": "7", "id": "42"}, {})

    assert subject.key_columns("silver/customers", ["id", "tenant", "email"]) == ({"tenant": "7", "id": "42"},)
    assert subject.key_columns("gold/orders", ["customer_id", "tenant", "id"]) == ()


@pytest.mark.parametrize(
    ("name", "first"),
    [("customers", "customer"), ("categories", "category"), ("addresses", "address"), ("news", "new")],
)
def test_a_row_of_a_table_has_a_name(name: str, first: str):
    assert singular(name) == first


@pytest.mark.parametrize(
    ("payload", "own", "is_found"),
    [
        ('{"id":42}', True, True),
        ('{"id":42}', False, False),
        ('{"after":{"id": "42","email":"a"}}', True, True),
        ('{"id":421,"n":42}', True, False),
        ('{"order":{"customer_id":42}}', False, True),
        ('{"customerId": 42 }', False, True),
        ('{"customer_id":142}', False, False),
    ],
)
def test_a_payload_contains_the_key_under_one_of_its_names(payload: str, own: bool, is_found: bool):
    pattern = CUSTOMER.payload_pattern(own=own)

    assert pattern is not None
    assert (re.search(pattern, payload) is not None) is is_found


@pytest.mark.parametrize(
    ("text", "is_telling"),
    [("anna@example.org", True), ("Ann", False), ("123456", False), ("2026-03-02", False), ("0170 1234567", True)],
)
def test_short_texts_and_numbers_are_not_searched_for(text: str, is_telling: bool):
    assert is_identifying(text) is is_telling


@pytest.mark.parametrize(
    "content",
    [
        b'plain \xc3\x84nna "Z"',
        json.dumps({"name": 'Änna "Z"'}).encode(),
        json.dumps({"stats": json.dumps({"name": 'Änna "Z"'}, ensure_ascii=False)}, ensure_ascii=False).encode(),
        json.dumps({"stats": json.dumps({"name": 'Änna "Z"'})}).encode(),
    ],
)
def test_a_text_is_found_as_it_is_and_as_json_writes_it(content: bytes):
    pattern = Texts(('Änna "Z"',)).pattern()

    assert pattern is not None
    assert pattern.search(content)


@pytest.mark.parametrize(
    ("predicate", "is_blocked"),
    [
        ("(id#1L = 42)", True),
        ("(`id` BETWEEN 42L AND 45L) AND (`id` IN (42L, 45L))", True),
        ("(`id` BETWEEN -9223372036854775808L AND 42L)", True),
        ("(`id` BETWEEN 7S AND 99S) AND (`id` IN (7S, 42S, 99S))", True),
        ("(`id` BETWEEN 7 AND 99) AND (`id` IN (7, 8, 42))", True),
        ("(`id` BETWEEN 'a' AND 'z') AND (`id` IN ('a (b)', '42', 'z'))", True),
        ("(`shop` BETWEEN 1 AND 2) AND ((`shop`, `id`) IN ((1, 10), (2, 42)))", True),
        ("(`id` BETWEEN 40L AND 43L) AND (`id` IN (40L, 142L, 421L, 43L))", False),
        ("(`number` BETWEEN 42L AND 45L) AND (`number` IN (42L, 45L))", False),
    ],
)
def test_a_condition_in_a_log_contains_the_key_as_a_bound_or_as_a_member_of_a_list(predicate: str, is_blocked: bool):
    text = json.dumps({"commitInfo": {"operationParameters": {"predicate": predicate}, "metrics": {"numFiles": "42"}}})

    assert (re.search(CUSTOMER.delta_log_pattern(["id"]), text) is not None) is is_blocked


@pytest.mark.parametrize("kind", [T.ByteType(), T.ShortType(), T.IntegerType(), T.LongType(), T.StringType()])
def test_the_replace_where_condition_of_a_mirror_matches_every_key_that_it_names(kind: T.DataType):
    numbers = (3, 17, 42, 99)
    keys = [(str(item),) if isinstance(kind, T.StringType) else (item,) for item in numbers]
    written = key_condition(T.StructType([T.StructField("id", kind)]), keys)

    column_names = [
        n for n in range(1, 120) if re.search(Subject("t", {"id": str(n)}, {}).delta_log_pattern(["id"]), written)
    ]

    assert column_names == [*numbers]


def test_a_scan_counts_rows_texts_logs_and_what_it_cannot_look_into(tmp_path: Path):
    long = "a text that is longer than statistics keep of it"
    pq.write_table(
        pa.table({"id": [41, 42, 42], "who": [{"mail": ["x"]}, {"mail": [long]}, None]}), tmp_path / "a.parquet"
    )
    pq.write_table(pa.table({"id": ["42"], "note": [b"none"]}), tmp_path / "b.parquet")
    pq.write_table(pa.table({"other": [42]}), tmp_path / "c.parquet")
    log = tmp_path / "_delta_log"
    log.mkdir()
    stats = json.dumps({"minValues": {"id": 41, "mail": long[:32]}, "maxValues": {"id": 421}})
    (log / "0.json").write_text(json.dumps({"add": {"stats": stats}}))
    (log / "1.json").write_text(json.dumps({"add": {"stats": json.dumps({"minValues": {"id": 42}})}}))
    (log / "2.json").write_text(json.dumps({"commitInfo": {"operationParameters": {"predicate": '["(id#1L = 42)"]'}}}))
    (log / "3.json").write_text(json.dumps({"add": {"stats": json.dumps({"minValues": {"id": 421, "n": 42}})}}))
    (tmp_path / "1.changelog").write_bytes(b"\x00")
    (tmp_path / "empty").touch()
    paths = sorted(LocalFileStore().sizes(str(tmp_path)))
    signs = SearchTerms(({"id": "42"},), (), CUSTOMER.delta_log_pattern(["id"]), Texts((long,)))

    actual = scan_for_subject(LocalFileStore(), str(tmp_path), paths, signs)

    assert actual == ScanResult(files=9, rows=3, matching_files=2, log=3, closed=1)
    assert set(subject_texts(LocalFileStore(), str(tmp_path), paths, signs.rows)) == {("who", long), ("id", "42")}


def test_a_log_of_changes_is_looked_through_by_the_key_within_its_structures(tmp_path: Path):
    rows = [
        {"op": "u", "transaction": "transaction 7", "key": {"id": 42}, "after": {"id": 42, "mail": "anna@example.org"}},
        {"op": "d", "transaction": "transaction 7", "key": {"id": 43}, "after": None},
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    ways = CUSTOMER.key_columns("bronze/customers", ["op", "key", "key.id", "after", "after.id"])

    assert scan_for_subject(LocalFileStore(), str(tmp_path), ["a.parquet"], SearchTerms(ways)).rows == 1
    actual = set(subject_texts(LocalFileStore(), str(tmp_path), ["a.parquet"], ways))
    assert actual == {("after", "anna@example.org")}


def test_only_payloads_of_the_topic_are_counted(tmp_path: Path):
    rows = {"topic": ["shop.public.customers", "orders"], "value": [b'{"id":42}\xff', b'{"id":42}']}
    pq.write_table(pa.table(rows), tmp_path / "a.parquet")
    own = CUSTOMER.payload_pattern(own=True)
    assert own is not None

    actual = scan_for_subject(
        LocalFileStore(), str(tmp_path), ["a.parquet"], SearchTerms(payloads=((r"^shop\.[^.]+\.customers$", own),))
    )

    assert actual.rows == 1


def test_flows_that_write_read_or_file_must_not_run_and_others_may():
    target = Target("dev", lake="/lake", checkpoints="unused")

    def flow(name: str, source: RateSource | DeltaSource, path: str) -> Flow:
        return Flow(name, Input(source), lambda rows: rows, DeltaAppend(path))

    flows = [
        flow("writes", RateSource(1), "silver/customers"),
        flow("reads", DeltaSource("silver/customers", 1), "gold/apart"),
        flow("files", RateSource(1), "gold/more"),
        flow("apart", RateSource(1), "gold/customers_else"),
    ]
    tables = [table("silver/customers", "id"), table("gold/customers_else", "id"), table("_headrace/files/late", "row")]

    actual = affected_flows(flows, target, match_tables(Lake(tuple(tables), {}), CUSTOMER, flows))

    assert [item.name for item in actual] == ["writes", "reads", "files"]


def source(*key: str) -> list[SourceLookup]:
    columns = tuple(SourceColumn(name, "text", True) for name in ("tenant", "id", "email"))
    return [SourceLookup("shop", SourceTable("public", "customers", columns, key, "postgres"))]


@pytest.mark.parametrize(
    ("key", "columns", "expected"),
    [
        (("42",), ("id",), {"id": "42"}),
        (("id=42",), ("id",), {"id": "42"}),
        (("a=b",), ("id",), {"id": "a=b"}),
        (("tenant=7", "id=42"), ("tenant", "id"), {"tenant": "7", "id": "42"}),
    ],
)
def test_a_key_is_of_the_columns_that_the_source_names(
    key: tuple[str, ...], columns: tuple[str, ...], expected: dict[str, str]
):
    assert subject_of(ErasureRequest("public.customers", key), Lake((), {}), source(*columns)).key == expected


def test_without_a_source_the_tombstones_determine_the_key():
    graves = table("silver/_tombstones/customers", "number", "_headrace_position")

    assert subject_of(ErasureRequest("customers", ("42",)), Lake((graves,), {}), []).key == {"number": "42"}


@pytest.mark.parametrize(
    ("request_", "actual", "error", "code"),
    [
        (ErasureRequest("customers", ("42",)), source("tenant", "id"), ConfigError, "HR-136"),
        (ErasureRequest("customers", ("id=42",)), source("tenant", "id"), ConfigError, "HR-136"),
        (ErasureRequest("custmers", ("42",)), [], DataError, "HR-532"),
        (ErasureRequest("customers", ("42",), ("gold/orders=buyer",)), [], ConfigError, "HR-137"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    request_: ErasureRequest, actual: list[SourceLookup], error: type[HeadraceError], code: str
):
    lake = Lake((table("silver/customers", "id"), table("gold/orders", "id", "customer_id")), {})

    with pytest.raises(error) as refused:
        subject_of(request_, lake, actual)

    assert refused.value.code == code


def test_a_file_that_is_no_report_cannot_be_verified(tmp_path: Path):
    (tmp_path / "x.json").write_text("{}")

    with pytest.raises(ConfigError) as refused:
        report.verify(tmp_path / "x.json")

    assert refused.value.code == "HR-138"


@pytest.mark.parametrize("words", [["--table", "customers"], ["--key", "42"], ["--table", "t", "--key", "1", "--json"]])
def test_an_erasure_needs_a_table_and_a_key_and_yes_without_a_terminal(words: list[str]):
    assert CliRunner().invoke(app, ["erase", *words]).exit_code == 2


@pytest.mark.parametrize(
    ("policy", "retention_ms", "words"),
    [
        ("delete", 604800000, "Records are retained for 7 day(s)."),
        ("delete", -1, "Records are retained forever."),
        ("compact", -1, "It is compacted: "),
    ],
)
def test_the_retention_of_a_topic_is_described_in_words(policy: str, retention_ms: int, words: str):
    assert describe_retention(policy, retention_ms).startswith(words)


class FakeAdmin:
    """Describes the settings of topics; the broker refuses those of a topic without settings."""

    def __init__(self, settings: dict[str, dict[str, str] | None]) -> None:
        self.settings = settings

    def describe_configs(self, resources: list[ConfigResource], **_: object) -> dict[ConfigResource, Future[object]]:
        answers = {}
        for resource in resources:
            answers[resource] = Future[object]()
            if (settings := self.settings[resource.name]) is None:
                answers[resource].set_exception(KafkaException("no permission"))
            else:
                answers[resource].set_result({name: SimpleNamespace(value=value) for name, value in settings.items()})
        return answers


def test_the_report_says_in_a_sentence_how_long_each_topic_retains_records(monkeypatch: pytest.MonkeyPatch):
    day = 86_400_000
    settings: dict[str, dict[str, str] | None] = {
        "days": {"cleanup.policy": "delete", "retention.ms": str(7 * day)},
        "forever": {"cleanup.policy": "delete", "retention.ms": "-1"},
        "keys": {"cleanup.policy": "compact,delete", "retention.ms": str(day)},
        "secret": None,
    }
    metadata = SimpleNamespace(topics=settings)
    monkeypatch.setattr(external, "list_topics", lambda *_: metadata)
    monkeypatch.setattr(topics, "connect_admin", lambda *_: (FakeAdmin(settings), metadata))
    flow = Flow("read", Input(KafkaSource(TopicPattern(".*"))), lambda rows: rows, DeltaAppend("rows"))
    target = Target("dev", lake="/nowhere/lake", checkpoints="/nowhere/checkpoints")

    places = external.topic_places(target, [flow])

    assert {place.place: place.why for place in places} == {
        "topic days": "Records are retained for 7 day(s).",
        "topic forever": "Records are retained forever.",
        "topic keys": "It is compacted: a record without a value under the same key removes the older ones, "
        "and what is older than 1 day(s).",
        "topic secret": "Its retention is unknown: the broker did not return the settings of the topic.",
    }


@pytest.mark.parametrize(
    ("kind", "erased", "after", "outcome"),
    [
        ("table", True, ScanResult(files=3), "clean"),
        ("table", True, ScanResult(files=3, log=1), "left"),
        ("tombstones", False, ScanResult(files=3, rows=1, matching_files=1), "kept"),
        ("checkpoint", False, ScanResult(files=3, closed=2), "unproven"),
    ],
)
def test_a_place_is_clean_when_nothing_was_found_and_everything_was_looked_into(
    kind: str, erased: bool, after: ScanResult, outcome: str
):
    place = ScannedPlace("there", kind, erased, ScanResult(files=3, rows=1, matching_files=1), after=after)

    assert place.outcome == outcome
    assert bool(place.remedy) == (outcome != "clean")
