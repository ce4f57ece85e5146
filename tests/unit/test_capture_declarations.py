"""A capture's declaration: which tables, which topics, and what is refused before anything is asked."""

from __future__ import annotations

import re

import pytest

from headrace.cdc import flows
from headrace.cdc.capture.catalogue import binlog_position, database_family, lsn_position
from headrace.cdc.capture.declaration import Capture, TableSelection
from headrace.cdc.capture.source_table import SourceTable
from headrace.cdc.sink import DeltaCdc, SkippedTable
from headrace.clients import mysql
from headrace.clients.postgres import DatabaseAddress
from headrace.errors import ConfigError, FlowError
from headrace.flow.target import Database, Target


def test_a_list_chooses_its_tables_and_their_topics_and_no_others():
    capture = Capture("shop", ("public.orders", "public.order_items"))
    assert capture.selection.includes("public", "orders")
    assert not capture.selection.includes("public", "ordersX")
    assert re.fullmatch(capture.topics, "shop.public.orders")
    assert not re.fullmatch(capture.topics, "shop.public.orders_old")
    assert not re.fullmatch(capture.topics, "shopXpublic.orders")


def test_a_pattern_matches_full_names_and_topics_of_tables_only():
    capture = Capture("shop", r"public\.o.*")
    assert capture.selection.includes("public", "orders")
    assert not capture.selection.includes("xpublic", "orders")
    assert re.fullmatch(capture.topics, "shop.public.orders")
    assert not re.fullmatch(capture.topics, "shop.transaction")


def test_a_dot_in_the_name_of_a_listed_table_is_a_dot_in_the_expression():
    assert re.fullmatch(TableSelection(("public.orders",)).expression, "public.orders")
    assert not re.fullmatch(TableSelection(("public.orders",)).expression, "publicXorders")


def test_characters_that_a_topic_name_may_not_contain_are_replaced():
    table = SourceTable("public", "order items", (), (), "postgres")
    assert Capture("shop", r"public\..*").topic(table) == "shop.public.order_items"


def test_the_prefix_is_the_database_unless_it_is_set_and_names_the_slot():
    assert Capture("shop", ("a.b",)).slot == "headrace_shop"
    assert Capture("shop", ("a.b",), prefix="shop2").slot == "headrace_shop2"
    assert Capture("shop", ("a.b",)).server_id != Capture("shop", ("a.b",), prefix="shop2").server_id


@pytest.mark.parametrize(
    ("tables", "prefix"),
    [((), "shop"), ("", "shop"), (("orders",), "shop"), ("public.(", "shop"), (("a.b",), "Shop-1"), (("a.b",), "1")],
)
def test_a_capture_that_cannot_run_is_hr_260(tables: tuple[str, ...] | str, prefix: str):
    with pytest.raises(FlowError) as refused:
        Capture("shop", tables, prefix=prefix)
    assert refused.value.code == "HR-260"


def test_positions_sort_like_the_log():
    assert lsn_position(9) < lsn_position(10) < lsn_position(2**63)
    ordered = [("binlog.000002", 9, 9), ("binlog.000002", 10, 0), ("binlog.000010", 4, 0), ("binlog.1000000", 4, 0)]
    assert sorted(binlog_position(*item) for item in ordered) == [binlog_position(*item) for item in ordered]
    assert len(lsn_position(1)) == 20
    assert binlog_position("binlog.000002", 534430, 1) == "0000000002" + "00000000000000534430" + "0000000001"


def test_the_family_of_a_database_is_recognized_by_its_address():
    assert database_family(Database("jdbc:postgresql://db/shop", "u")) == "postgres"
    assert [database_family(Database(f"jdbc:{kind}://db/shop", "u")) for kind in ("mariadb", "mysql")] == [
        "mysql",
        "mysql",
    ]
    assert mysql.address(Database("jdbc:mariadb://db:1/shop", "u")) == DatabaseAddress("db", 1, "shop", {})


@pytest.mark.parametrize("url", ["jdbc:mysql://db", "jdbc:mysql://u:hunter2@db/shop", "jdbc:mysql://db:x/shop"])
def test_an_address_of_a_binlog_database_that_cannot_be_used_is_refused_without_being_printed(url: str):
    with pytest.raises(ConfigError) as refused:
        mysql.address(Database(url, "u"))
    assert refused.value.code == "HR-120"
    assert "hunter2" not in str(refused.value)


def test_a_topic_is_skipped_if_its_table_is_not_selected_or_is_missing_without_stored_rows(
    monkeypatch: pytest.MonkeyPatch,
):
    tables = [SourceTable("public", name, (), ("id",), "postgres") for name in ("orders", "log")]
    target = Target("t", lake="", checkpoints="", databases={"shop": Database("jdbc:postgresql://h/shop", "u")})

    def read(_database: Database, selected: TableSelection) -> tuple[SourceTable, ...]:
        return tuple(table for table in tables if selected.includes(table.schema, table.name))

    monkeypatch.setattr(flows, "read_tables", read)
    sink = flows.mirror(flows.CdcSettings(Capture("shop", r"public\.(?!log).*"))).sink
    assert isinstance(sink, DeltaCdc)
    codes = dict[str, str | None]()
    for name in ("log", "log_old", "brief"):
        actual = sink.find_table(f"shop.public.{name}", target)
        assert isinstance(actual, SkippedTable)
        codes[name] = actual.error.code if actual.error is not None else None
    assert codes == {"log": None, "log_old": None, "brief": "HR-547"}
    assert sink.find_table("shop.public.orders", target) == tables[0]
