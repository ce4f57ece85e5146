"""The long proofs that `make certify` runs. To add a proof, add a row to `CASES`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """One proof: a pytest process with a result of its own. The name is also the name of its log file."""

    name: str
    part: str
    # Arguments of pytest, relative to the top of the repository: files or node ids.
    tests: tuple[str, ...]
    # One sentence for the table in docs/proof.md.
    proves: str


SYSTEMS = ("rides", "orders", "medallion", "sales", "iot", "enrichment")
_KILLED = "A driver that is killed at any point of a batch loses and repeats nothing"
_DEMO = "test_demos.py::test_a_demo_prints_one_json_object_that_reports_equality_with_the_model"
_EXAMPLE = "test_examples_run.py::test_the_commands_of_an_example_run"


def _case(name: str, part: str, test: str, proves: str) -> Case:
    return Case(name, part, (f"tests/certify/{test}",), proves)


CASES = (
    _case("kills-delta", "delta", "test_kills_delta.py", f"{_KILLED} in Delta tables."),
    _case("kills-kafka", "kafka", "test_kills_kafka.py", f"{_KILLED} in exactly-once topics and fan-outs."),
    _case("kills-stores", "stores", "test_kills_stores.py", f"{_KILLED} in captured tables, files, Postgres, a store."),
    _case("random-kills", "drivers", "test_random_kills.py", "Drivers killed at random leave sinks equal to models."),
    _case("commands", "drivers", "test_late_and_invalid_killed.py", "Killed commands finish when they run again."),
    _case("zombie", "drivers", "test_zombie.py", "A paused driver commits nothing after another one has taken over."),
    _case("cluster", "cluster", "test_cluster_loses_a_worker.py", "A Spark worker that dies loses and repeats no row."),
    _case("captures", "cdc", "test_captures_faults.py", "Mirror and history equal their source after every fault."),
    _case("slot-pressure", "cdc", "test_slot_pressure.py", "A slot that nobody reads is reported before it is lost."),
    Case(
        "variants",
        "variants",
        ("tests/spark", "tests/stack", "-m", "certify"),
        "The variants of shorter tests hold too.",
    ),
    *(
        _case(f"system-{name}", "systems", f"test_system_{name}.py", "Equal to its model, repairs included.")
        for name in SYSTEMS
    ),
    *(_case(f"demo-{name}", "demos", f"{_DEMO}[{name}]", "The demo ends equal to its model.") for name in SYSTEMS),
    _case(
        "demo-cdc",
        "demos",
        "test_demos.py::test_the_cdc_demo_ends_with_mirrors_that_equal_their_tables_and_continues_on_the_next_run",
        "The demo ends with mirrors that equal their tables, and continues the next time.",
    ),
    _case(
        "demo-ctrl-c",
        "demos",
        "test_demos.py::test_ctrl_c_stops_the_demo_in_order_and_retains_its_data",
        "Ctrl-C ends a demo in order and keeps its data.",
    ),
    _case("demo-list", "demos", "test_demos.py::test_every_demo_is_certified", "Every demo is in this table."),
    *(
        _case(f"example-{name}", "examples", f"{_EXAMPLE}[{name}]", "The commands of its README run.")
        for name in (*SYSTEMS, "cdc")
    ),
)


def select_cases(cases: Sequence[Case], words: Iterable[str]) -> list[Case]:
    """Return the cases that the words of `--only` name, in the order of the table. No words select all of them.

    A word is a part, a name, or some letters of a name. Raises `LookupError` for a word that selects nothing.
    """
    selected: set[str] = set()
    for word in words:
        names = {case.name for case in cases if word and (word == case.part or word in case.name)}
        if not names:
            parts = ", ".join(dict.fromkeys(case.part for case in cases))
            raise LookupError(
                f"--only {word!r} selects no case.\n  Parts: {parts}\n  Cases: {', '.join(case.name for case in cases)}"
            )
        selected |= names
    return [case for case in cases if case.name in selected] if selected else list(cases)
