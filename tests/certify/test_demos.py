"""Every demo through the command line, as a user runs it: equal to its model, and ended in order by Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace.patterns.cdc.generator import KEYS, OPENING, Shop
from headrace.patterns.cdc.model import replay
from headrace.stack.local import LocalStack

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HEADRACE = [sys.executable, "-m", "headrace"]
INTERRUPTED = 130
DEMOS = ["rides", "orders", "medallion", "sales", "iot", "enrichment"]


def headrace(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    # A demo ends within five minutes on a busy machine; whatever hangs, hangs longer.
    return subprocess.run([*HEADRACE, *words], cwd=cwd, capture_output=True, text=True, timeout=1200, check=False)


def last_object(printed: str) -> dict[str, Any]:
    comparison: dict[str, Any] = json.loads(printed.strip().splitlines()[-1])
    return comparison


def test_every_demo_is_certified():
    listed = headrace("demo", "--list", "--json", cwd=Path(os.curdir))
    assert listed.returncode == 0, listed.stderr
    assert set(last_object(listed.stdout)["demos"]) == {*DEMOS, "cdc"}


@pytest.mark.parametrize("demo", DEMOS)
def test_a_demo_prints_one_json_object_that_reports_equality_with_the_model(demo: str, tmp_path: Path):
    done = headrace("demo", demo, "--for", "45s", "--json", "--port", "0", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    result = last_object(done.stdout)
    assert result["model"]["equal"] is True
    assert result["model"]["differences"] == []
    assert min(result["rows_in"].values()) > 0
    assert all(rows > 0 for rows in result["rows_out"].values()), result["rows_out"]
    assert {part.state for part in LocalStack(tmp_path / ".headrace").ps()} == {"stopped"}


def test_the_cdc_demo_ends_with_mirrors_that_equal_their_tables_and_continues_on_the_next_run(
    tmp_path: Path, spark: SparkSession
):
    shown = headrace("demo", "cdc", "--for", "12s", cwd=tmp_path)

    assert shown.returncode == 0, shown.stderr
    assert re.search(r"demo_shop.orders +[\d,]+ rows at the source, +[\d,]+ in the mirror, ", shown.stderr)
    assert "Every mirror equals its table." in shown.stdout
    before = int(re.findall(r"what ([\d,]+) transactions make", shown.stdout)[0].replace(",", ""))

    again = headrace("demo", "cdc", "--for", "1s", "--json", cwd=tmp_path)

    assert again.returncode == 0, again.stderr
    (line,) = again.stdout.splitlines()
    result = json.loads(line)
    assert sorted(result["tables"]) == ["demo_shop.customers", "demo_shop.items", "demo_shop.orders"]
    for table in result["tables"].values():
        assert (table["equal"], table["differences"], table["lacking"], table["not_compared"]) == (True, [], [], [])
        assert re.fullmatch(r"\d{20}", table["position"])
    assert result["model"]["equal"] is True
    assert result["model"]["transactions"] > before > OPENING
    # It continued: a flow that started again would have read the complete history.
    assert 0 < result["rows_in"]["cdc_demo_shop"] < sum(table["rows"] for table in result["tables"].values())
    assert {part.state for part in LocalStack(tmp_path / ".headrace").ps()} == {"stopped"}

    # And the tables in the lake hold what the shop's history makes in plain Python.
    expected = replay(islice(Shop(7).history(), result["model"]["transactions"]))
    for table, rows in expected.items():
        mirror = spark.read.format("delta").load(f"{tmp_path}/.headrace/demo/cdc/lake/silver/shop/{table}")
        comparison = [row.asDict() for row in mirror.drop("_headrace_position").collect()]
        assert {tuple(row[name] for name in KEYS[table]): plain(row) for row in comparison} == rows
        assert len(comparison) == len(rows)


def plain(row: dict[str, object]) -> dict[str, object]:
    """Return a row of a mirror with the values that the model has: documents read, times with their zone."""
    return {
        name: json.loads(value)
        if name in ("profile", "details") and isinstance(value, str)
        else value.astimezone(UTC)
        if isinstance(value, datetime)
        else value
        for name, value in row.items()
    }


def test_ctrl_c_stops_the_demo_in_order_and_retains_its_data(tmp_path: Path):
    command = [*HEADRACE, "demo", "rides", "--for", "10m", "--backfill", "5m", "--port", "0"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as demo:
        assert demo.stderr is not None
        assert any("batch 0" in line for line in demo.stderr)
        demo.send_signal(signal.SIGINT)
        rest = demo.stderr.read()

    assert demo.returncode == INTERRUPTED
    assert rest.count("stopped") >= 4, rest  # three flows and the broker
    assert "Traceback" not in rest
    assert [part.state for part in LocalStack(tmp_path / ".headrace").ps()] == ["stopped"]
    assert (tmp_path / ".headrace/demo/rides/checkpoints/city_rides/spark/commits/0").exists()
