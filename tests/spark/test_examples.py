"""The examples run as they are written: their own tests, on the session of this run, and word count over a socket."""

from __future__ import annotations

import importlib
import inspect
import re
import socketserver
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from headrace import Flow, Input, Memory, Severity, SocketSource, Target, check
from headrace.operate.run import Application
from headrace.project.project import Project
from headrace.runtime.events import BatchCommitted, FlowEvent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], ModuleType]:
    """Import a file of an example, as its own tests would: its folder first, and nothing of another example."""

    def loaded(example: str, file: str) -> ModuleType:
        for name in [path.stem for path in EXAMPLES.glob("*/*.py")]:
            monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.syspath_prepend(str(EXAMPLES / example))
        return importlib.import_module(file)

    return loaded


@pytest.mark.parametrize("example", ["word_count", "daily_revenue"])
def test_the_tests_of_an_example_pass(
    example: str, load: Callable[[str, str], ModuleType], spark: SparkSession, tmp_path: Path
) -> None:
    module = load(example, "test_flows")
    tests = {name: var for name, var in vars(module).items() if name.startswith("test_")}
    assert tests
    for name, test in tests.items():
        (tmp_path / name).mkdir()
        fixtures = {"spark": spark, "tmp_path": tmp_path / name}
        test(**{expected: fixtures[expected] for expected in inspect.signature(test).parameters})


@pytest.mark.parametrize(
    "example", ["word_count", "daily_revenue", "rides", "cdc", "orders", "iot", "sales", "enrichment", "medallion"]
)
def test_an_example_is_a_project_without_errors(example: str, load: Callable[[str, str], ModuleType]) -> None:
    load(example, "flows")
    flows = Project.open(EXAMPLES / example).flows()
    assert flows
    assert [result for result in check(flows) if result.severity is Severity.ERROR] == []


def test_word_count_has_at_most_fifteen_lines() -> None:
    lines = (EXAMPLES / "word_count" / "flows.py").read_text().splitlines()
    assert len([line for line in lines if line.strip()]) <= 15


TEXT = ["To be, or not to be:", "that is the question.", "To be continued"]


class _Typing(socketserver.BaseRequestHandler):
    """Sends lines as somebody types them, and stays until the test is over."""

    over = threading.Event()

    def handle(self) -> None:
        for line in TEXT:
            self.request.sendall(f"{line}\n".encode())
        self.over.wait()


@pytest.fixture
def port() -> Iterator[int]:
    _Typing.over.clear()
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Typing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        _Typing.over.set()
        server.shutdown()


def test_word_count_counts_what_comes_over_a_real_socket(
    load: Callable[[str, str], ModuleType], port: int, spark: SparkSession, tmp_path: Path
) -> None:
    words = load("word_count", "flows").words
    assert isinstance(words, Flow)
    memory = Memory()
    here = replace(words, inputs=Input(SocketSource("127.0.0.1", port)), sink=memory)
    target = Target("test", lake=str(tmp_path / "lake"), checkpoints=str(tmp_path / "checkpoints"))
    application = Application(spark, target, [here])
    come = 0

    def enough(event: FlowEvent) -> None:
        nonlocal come
        if isinstance(event, BatchCommitted):
            come += event.rows_in
            if come == len(TEXT):
                application.drain()

    application.bus.subscribe(enough)
    figures = application.run()
    assert figures["words"].error is None
    counted = {row.word: row["count"] for row in memory.batches()[-1]}
    assert counted == Counter(re.findall(r"\w+", " ".join(TEXT).lower()))
