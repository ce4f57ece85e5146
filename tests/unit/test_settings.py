"""headrace.yml: what is read from it, and the errors of an invalid one."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import ConfigError
from headrace.project.settings import ProjectSettings, read_settings


def written(folder: Path, text: str) -> Path:
    (folder / "headrace.yml").write_text(text)
    return folder


def refusal(folder: Path, text: str) -> ConfigError:
    with pytest.raises(ConfigError) as refused:
        read_settings(written(folder, text))
    assert refused.value.code == "HR-102"
    assert str(folder / "headrace.yml") in refused.value.what
    return refused.value


def test_a_name_is_enough_and_the_rest_is_a_local_project(tmp_path: Path) -> None:
    settings = read_settings(written(tmp_path, "name: shop\n"))
    assert settings.model_dump() == {
        "name": "shop",
        "flows": ["flows.py"],
        "default_target": "dev",
        "targets": {
            "dev": {
                "master": "local[*]",
                "lake": ".headrace/lake",
                "checkpoints": ".headrace/checkpoints",
                "kafka": {"bootstrap.servers": "local"},
                "databases": {},
                "connect": {"url": "local", "bootstrap": "", "passwords": {}},
                "spark": {},
                "services": {},
                "lease": {"kind": None, "seconds": 30.0},
            }
        },
    }


def test_every_setting_is_read_as_it_is_written(tmp_path: Path) -> None:
    settings = read_settings(
        written(
            tmp_path,
            """
name: shop
flows: [a.py, b.py]
default_target: prod
targets:
  prod:
    master: spark://spark.example.org:7077
    lake: s3a://shop/lake
    checkpoints: s3a://shop/checkpoints
    kafka: {bootstrap.servers: "${env:KAFKA}", sasl.password: "${file:/run/secrets/kafka}"}
    databases: {shop: {url: "jdbc:postgresql://db/shop", user: u, password: "${env:SHOP}"}}
    connect: {url: "http://connect:8083", bootstrap: "kafka:9092", passwords: {shop: "${vault:shop}"}}
    spark: {spark.executor.memory: 4g}
    services: {crm: {url: https://crm.example.org, headers: {Authorization: "${env:CRM}"}}}
    lease: {kind: record, seconds: 10}
""",
        )
    )
    assert settings.flows == ["a.py", "b.py"]
    assert settings.targets["prod"].model_dump() == {
        "master": "spark://spark.example.org:7077",
        "lake": "s3a://shop/lake",
        "checkpoints": "s3a://shop/checkpoints",
        "kafka": {"bootstrap.servers": "${env:KAFKA}", "sasl.password": "${file:/run/secrets/kafka}"},
        "databases": {"shop": {"url": "jdbc:postgresql://db/shop", "user": "u", "password": "${env:SHOP}"}},
        "connect": {"url": "http://connect:8083", "bootstrap": "kafka:9092", "passwords": {"shop": "${vault:shop}"}},
        "spark": {"spark.executor.memory": "4g"},
        "services": {
            "crm": {
                "url": "https://crm.example.org",
                "headers": {"Authorization": "${env:CRM}"},
                "private": False,
                "ca": None,
            }
        },
        "lease": {"kind": "record", "seconds": 10.0},
    }


def test_a_folder_without_a_project_file_gets_an_error_with_the_init_command(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="headrace init") as refused:
        read_settings(tmp_path)
    assert refused.value.code == "HR-101"
    assert str(tmp_path) in refused.value.what


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name: shop\nflow: [a.py]\n", "The key 'flow' is unknown. Did you mean 'flows'?"),
        (
            "name: shop\ntargets: {dev: {checkpoint: x}}\n",
            "The key 'targets.dev.checkpoint' is unknown. Did you mean 'checkpoints'?",
        ),
        (
            "name: shop\ntargets: {dev: {databases: {shop: {ulr: x}}}}\n",
            "The key 'targets.dev.databases.shop.ulr' is unknown. Did you mean 'url'?",
        ),
        (
            "name: shop\ntargets: {dev: {services: {crm: {url: x, header: {}}}}}\n",
            "The key 'targets.dev.services.crm.header' is unknown. Did you mean 'headers'?",
        ),
        ("name: shop\nzzz: 1\n", "The key 'zzz' is unknown."),
        ("flows: [a.py]\n", "The key 'name' is missing."),
        ("name: Shop\n", "name: "),
        ("name: 7\n", "name: "),
        ("name: shop\nflows: a.py\n", "flows: "),
        ("name: shop\ntargets: {dev: {kafka: {bootstrap.servers: 9092}}}\n", "targets.dev.kafka.bootstrap.servers: "),
        ("name: shop\ntargets: {dev: {lake: null}}\n", "targets.dev.lake: "),
        (
            "name: shop\ndefault_target: prd\ntargets: {prod: {}, dev: {}}\n",
            "default_target 'prd' is not among the targets prod, dev.",
        ),
        ("name: shop\ntargets: {}\n", "default_target 'dev' is not among the targets"),
        ("name: [\n", "It is not YAML"),
        ("- a\n- b\n", "It contains no settings."),
        ("", "It contains no settings."),
    ],
)
def test_a_wrong_file_is_refused_with_the_place_and_the_fault(tmp_path: Path, text: str, says: str) -> None:
    assert says in refusal(tmp_path, text).why


def test_all_errors_of_a_file_are_reported_together(tmp_path: Path) -> None:
    why = refusal(tmp_path, "nam: shop\nflows: 3\n").why
    assert "The key 'name' is missing." in why
    assert "The key 'nam' is unknown. Did you mean 'name'?" in why
    assert "flows: " in why


def test_python_objects_in_the_file_are_not_made(tmp_path: Path) -> None:
    assert "not YAML" in refusal(tmp_path, "name: !!python/object/apply:os.getcwd []\n").why


def test_settings_cannot_be_changed_after_reading(tmp_path: Path) -> None:
    settings = read_settings(written(tmp_path, "name: shop\n"))
    with pytest.raises(ValueError, match="frozen"):
        settings.name = "other"  # type: ignore[misc]


def test_the_json_schema_knows_every_key_describes_it_and_refuses_others() -> None:
    schema = ProjectSettings.model_json_schema()
    target = schema["$defs"]["TargetSettings"]
    assert set(schema["properties"]) == {"name", "flows", "default_target", "targets"}
    keys = {"master", "lake", "checkpoints", "kafka", "databases", "connect", "spark", "services", "lease"}
    assert set(target["properties"]) == keys
    for item in (schema, target, *(schema["$defs"][f"{name}Settings"] for name in ("Database", "Service", "Lease"))):
        assert item["additionalProperties"] is False
        assert [name for name, value in item["properties"].items() if not value.get("description")] == []
    assert schema["required"] == ["name"]
