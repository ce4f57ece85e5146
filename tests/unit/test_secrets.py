"""Secrets by reference: found where they are said to be, and never printed."""

from __future__ import annotations

import copy
import json
import logging
import traceback
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.clients.kafka import connector_options
from headrace.errors import ConfigError
from headrace.flow.secret import Secret, reveal_secret
from headrace.flow.target import Target
from headrace.project.project import resolve_secret

CANARY = "canary-5f2d9c"


def file_with(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "secret"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_plain_setting_stays_what_it_is() -> None:
    for text in ("localhost:9092", "${HOME}", "$env:NAME", "prefix ${env:NAME}", "${vault:x}", ""):
        assert resolve_secret(text, "kafka.x") == text


def test_a_variable_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", CANARY)
    secret = resolve_secret("${env:SHOP_PASSWORD}", "kafka.sasl.password")
    assert isinstance(secret, Secret)
    assert secret.reveal() == CANARY
    assert str(secret) == "<${env:SHOP_PASSWORD}>"


def test_a_file_is_read_without_the_line_break_at_its_end(tmp_path: Path) -> None:
    path = file_with(tmp_path, f"{CANARY} \n")
    assert reveal_secret(resolve_secret(f"${{file:{path}}}", "kafka.sasl.password")) == f"{CANARY} "


def test_a_variable_that_is_not_set_is_refused_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHOP_PASSWORD", raising=False)
    with pytest.raises(ConfigError, match="SHOP_PASSWORD") as refused:
        resolve_secret("${env:SHOP_PASSWORD}", "targets.prod.kafka.sasl.password")
    assert refused.value.code == "HR-103"
    assert "targets.prod.kafka.sasl.password" in refused.value.what


def test_a_file_that_is_not_there_is_refused_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file") as refused:
        resolve_secret(f"${{file:{tmp_path}/absent}}", "kafka.sasl.password")
    assert refused.value.code == "HR-103"
    assert f"{tmp_path}/absent" in refused.value.what


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o620, 0o601])
def test_a_file_that_other_users_can_read_is_refused_without_its_content(tmp_path: Path, mode: int) -> None:
    path = file_with(tmp_path, CANARY, mode)
    with pytest.raises(ConfigError, match="chmod 600") as refused:
        resolve_secret(f"${{file:{path}}}", "kafka.sasl.password")
    assert refused.value.code == "HR-104"
    assert CANARY not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_file_of_this_user_alone_is_taken(tmp_path: Path, mode: int) -> None:
    path = file_with(tmp_path, CANARY, mode)
    assert reveal_secret(resolve_secret(f"${{file:{path}}}", "kafka.sasl.password")) == CANARY


def test_no_way_of_printing_shows_the_value(caplog: pytest.LogCaptureFixture) -> None:
    secret = Secret("${env:SHOP_PASSWORD}", CANARY)
    target = Target("prod", lake="lake", checkpoints="checkpoints", kafka={"sasl.password": secret})
    with caplog.at_level(logging.INFO):
        logging.getLogger("test").info("%s %r %s", secret, secret, target)
    printed = [str(secret), repr(secret), f"{secret}", f"{secret!r:>90}", str([secret]), repr(target), caplog.text]
    printed += [str(copy.deepcopy(secret)), repr(replace(target, name="other")), json.dumps({"s": secret}, default=str)]
    assert [text for text in printed if CANARY in text] == []
    assert [text for text in printed if "SHOP_PASSWORD" not in text] == []


def test_only_the_options_of_the_connector_contain_the_value() -> None:
    secret = Secret("${env:SHOP_PASSWORD}", CANARY)
    protocol = {"bootstrap.servers": "host:1", "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}
    login: dict[str, str | Secret] = {"sasl.username": "shop", "sasl.password": secret}
    options = connector_options(Target("prod", lake="l", checkpoints="c", kafka=protocol | login))
    assert [name for name, value in options.items() if CANARY in value] == ["kafka.sasl.jaas.config"]
