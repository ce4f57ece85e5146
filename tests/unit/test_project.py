"""A project opened: its targets, and the flows that its files hold."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.cdc.capture.lifecycle import ConnectWorker, connect_worker
from headrace.errors import ConfigError
from headrace.flow.secret import reveal_secret
from headrace.flow.target import Database, KafkaConnect
from headrace.project.project import Project

FLOW = """
from headrace import Console, Flow, Input, KafkaSource

def flow(name):
    return Flow(name=name, inputs=Input(KafkaSource("t")), transform=lambda rows: rows, sink=Console())
"""


@pytest.fixture(autouse=True)
def forget_the_modules_of_projects() -> Iterator[None]:
    modules, path = set(sys.modules), list(sys.path)
    yield
    for name in set(sys.modules) - modules:
        del sys.modules[name]
    sys.path[:] = path


def project(folder: Path, settings: str = "name: shop\n", **files: str) -> Project:
    (folder / "headrace.yml").write_text(settings)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return Project.open(folder)


def no_broker() -> None:
    return None


def never() -> str:
    raise AssertionError("the local broker was asked for")


# ---- flows ----


def test_flows_are_collected_from_top_level_names_and_lists(tmp_path: Path) -> None:
    shop = project(
        tmp_path,
        flows=FLOW + "a = flow('a')\nmore = [flow('b'), 3]\nothers = (flow('c'),)\nagain = a\nhidden = {1: a}\n",
    )
    assert [flow.name for flow in shop.flows()] == ["a", "b", "c"]


def test_two_flows_with_the_same_name_are_both_returned(tmp_path: Path) -> None:
    shop = project(tmp_path, flows=FLOW + "a = flow('a')\nb = flow('a')\n")
    assert [flow.name for flow in shop.flows()] == ["a", "a"]


@pytest.mark.parametrize("order", ["shop_base.py, shop_more.py", "shop_more.py, shop_base.py"])
def test_files_of_a_project_can_import_each_other(tmp_path: Path, order: str) -> None:
    shop = project(
        tmp_path,
        f"name: shop\nflows: [{order}]\n",
        shop_base=FLOW + "a = flow('a')\n",
        shop_more="from shop_base import a, flow\nb = flow('b')\n",
    )
    assert [flow.name for flow in shop.flows()] == ["a", "b"]


def test_projects_in_two_folders_may_use_the_same_names_of_files(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        shop = project(tmp_path / name, flows=FLOW + f"a = flow('{name}')\n")
        assert [flow.name for flow in shop.flows()] == [name]


def test_named_flows_are_returned_in_the_order_of_the_project(tmp_path: Path) -> None:
    shop = project(tmp_path, flows=FLOW + "a, b, c = flow('a'), flow('b'), flow('c')\n")
    assert [flow.name for flow in shop.flows(["c", "a"])] == ["a", "c"]


def test_an_unknown_flow_is_refused_with_the_nearest_one(tmp_path: Path) -> None:
    shop = project(tmp_path, flows=FLOW + "a = flow('city_rides')\n")
    with pytest.raises(ConfigError, match="Did you mean 'city_rides'") as refused:
        shop.flows(["city_ride"])
    assert refused.value.code == "HR-106"


def test_a_file_that_is_not_python_is_refused(tmp_path: Path) -> None:
    (tmp_path / "flows.txt").write_text("a = 1\n")
    with pytest.raises(ConfigError, match="not a Python file") as refused:
        project(tmp_path, "name: shop\nflows: [flows.txt]\n").flows()
    assert refused.value.code == "HR-107"


def test_a_file_that_is_not_there_is_refused_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=str(tmp_path / "flows.py")) as refused:
        project(tmp_path).flows()
    assert refused.value.code == "HR-107"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import no_such_module\n", "ModuleNotFoundError"),
        ("\n\nraise RuntimeError('boom')\n", "flows.py:3"),
        ("def broken(:\n", "SyntaxError"),
    ],
)
def test_a_file_that_cannot_be_imported_is_refused_with_its_error_and_line(
    tmp_path: Path, text: str, says: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        project(tmp_path, flows=text).flows()
    assert refused.value.code == "HR-108"
    assert says in refused.value.why


def test_a_file_that_failed_is_not_left_half_imported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        project(tmp_path, flows="value = 1\nraise RuntimeError('boom')\n").flows()
    assert "flows" not in sys.modules


# ---- targets ----


def test_a_local_target_lies_in_the_folder_of_the_project_and_uses_the_local_broker(tmp_path: Path) -> None:
    target = project(tmp_path).target(None, lambda: "127.0.0.1:19092")
    assert (target.name, target.lake) == ("dev", str(tmp_path / ".headrace/lake"))
    assert target.checkpoints == str(tmp_path / ".headrace/checkpoints")
    assert dict(target.kafka) == {"bootstrap.servers": "127.0.0.1:19092"}


def test_a_local_target_has_no_address_while_the_broker_is_down(tmp_path: Path) -> None:
    assert dict(project(tmp_path).target(None, no_broker).kafka) == {}


def test_a_remote_target_never_looks_up_the_local_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_KAFKA", "broker.example.org:9092")
    settings = """
name: shop
targets:
  dev: {}
  prod:
    lake: s3a://shop/lake
    checkpoints: file:///data/checkpoints
    kafka: {bootstrap.servers: "${env:SHOP_KAFKA}"}
    spark: {spark.executor.memory: 4g}
"""
    target = project(tmp_path, settings).target("prod", never)
    assert (target.lake, target.checkpoints) == ("s3a://shop/lake", "file:///data/checkpoints")
    assert reveal_secret(target.kafka["bootstrap.servers"]) == "broker.example.org:9092"
    assert dict(target.spark) == {"spark.executor.memory": "4g"}


def test_databases_are_local_or_declared_and_passwords_are_secrets(tmp_path: Path) -> None:
    settings = """
name: shop
targets:
  dev:
    databases:
      here: {url: local}
      there: {url: "jdbc:postgresql://db/shop", user: writer, password: hunter2}
      open: {url: "jdbc:postgresql://db/open", user: reader}
"""
    local = Database("jdbc:postgresql://127.0.0.1:5432/headrace", "headrace")
    shop = project(tmp_path, settings)
    target = shop.target(None, no_broker, lambda _part: local)
    assert target.databases["here"] == local
    there = target.databases["there"]
    assert (there.url, there.user) == ("jdbc:postgresql://db/shop", "writer")
    assert there.password is not None
    assert there.password.reveal() == "hunter2"
    assert "hunter2" not in repr(target)
    assert target.databases["open"].password is None
    assert set(shop.target(None, no_broker).databases) == {"there", "open"}


def test_the_services_of_a_target_have_their_secrets_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRM", "Bearer canary")
    shop = project(
        tmp_path,
        "name: shop\ntargets: {dev: {services: {crm: {url: https://crm.example.org, private: true, "
        "headers: {Authorization: '${env:CRM}', X-Shop: one}}}}}\n",
    )
    service = shop.target(None, lambda: None).services["crm"]
    assert (service.url, service.private, service.ca) == ("https://crm.example.org", True, None)
    assert {name: reveal_secret(value) for name, value in service.headers.items()} == {
        "Authorization": "Bearer canary",
        "X-Shop": "one",
    }
    assert "canary" not in repr(service)


def test_an_unknown_target_is_refused_with_the_nearest_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Did you mean 'dev'") as refused:
        project(tmp_path).target("devv", never)
    assert refused.value.code == "HR-105"


def test_the_secrets_of_other_targets_are_not_asked_for(tmp_path: Path) -> None:
    settings = "name: shop\ntargets: {dev: {}, prod: {kafka: {sasl.password: '${env:SHOP_NOT_SET}'}}}\n"
    shop = project(tmp_path, settings)
    assert shop.target("dev", no_broker).name == "dev"
    with pytest.raises(ConfigError, match=r"targets\.prod\.kafka\.sasl\.password") as refused:
        shop.target("prod", never)
    assert refused.value.code == "HR-103"


def test_local_databases_and_kafka_connect_are_looked_up_by_part(tmp_path: Path) -> None:
    settings = """
name: shop
targets:
  dev:
    databases: {shop: {url: local}, till: {url: "local:mariadb"}, gone: {url: "local:postgres"}}
    connect: {bootstrap: "kafka:9092", passwords: {shop: "${vault:shop:password}"}}
"""
    here = {"postgres": Database("jdbc:postgresql://127.0.0.1/x", "x"), "mariadb": Database("jdbc:mariadb://h/x", "x")}
    target = project(tmp_path, settings).target(
        None, no_broker, here.get, lambda: KafkaConnect("http://127.0.0.1:8083", secrets=tmp_path)
    )
    assert target.databases == {"shop": here["postgres"], "till": here["mariadb"], "gone": here["postgres"]}
    assert connect_worker(target, "shop") == ConnectWorker(
        "http://127.0.0.1:8083", "kafka:9092", tmp_path, "${vault:shop:password}", target
    )
    assert connect_worker(target, "till").password is None

    down = project(tmp_path, settings).target(None, no_broker)
    assert (down.databases, down.connect) == ({}, None)
    with pytest.raises(ConfigError) as refused:
        connect_worker(down, "shop")
    assert refused.value.code == "HR-135"


def test_a_password_for_kafka_connect_has_to_be_a_reference(tmp_path: Path) -> None:
    settings = "name: shop\ntargets: {dev: {connect: {url: 'http://c:8083', passwords: {shop: hunter2}}}}\n"
    with pytest.raises(ConfigError) as refused:
        project(tmp_path, settings)
    assert "connect.passwords.shop" in refused.value.why
    assert "hunter2" not in refused.value.why
