"""Which test proves each claim of docs/proof.md, in `make test` and in `make certify`."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "certify"))

from proofs import CASES  # noqa: E402

KILLS = [f"tests/certify/test_kills_{family}.py" for family in ("delta", "kafka", "stores")]
CRASH = "tests/stack/test_crash_points.py"
SYSTEMS = "tests/stack/test_systems.py"
COMPLETE_SYSTEMS = [f"tests/certify/test_system_{name}.py" for name in ("rides", "orders", "medallion", "sales", "iot")]


def in_chain(test: str) -> list[str]:
    """Return a test of the chain in the file of every command that runs it."""
    return [f"{file}::{test}" for file in (CRASH, *KILLS)]


# A file, or a test of a file.
PROOFS = {
    "C1": [*in_chain("test_a_kill_loses_nothing_and_repeats_nothing"), *in_chain("test_in_the_end_every_row_is_there")],
    "C2": in_chain("test_no_version_of_a_table_holds_a_part_of_a_batch"),
    "C3": in_chain("test_a_reader_of_committed_records_never_sees_one_twice_or_out_of_order"),
    "C4": in_chain("test_a_sink_that_promises_less_is_caught_where_it_repeats_rows"),
    "C5": in_chain("test_a_batch_of_each_case_lost_a_worker"),
    "C6": ["tests/certify/test_random_kills.py::test_random_kills_lose_nothing_and_repeat_nothing"],
    "C7": [
        "tests/certify/test_zombie.py",
        "tests/stack/test_kafka_exactly_once.py::test_a_driver_that_was_taken_over_cannot_commit",
        "tests/stack/test_kafka_slots.py::test_a_driver_that_was_taken_over_between_two_slots_adds_nothing",
        "tests/unit/test_lease.py",
    ],
    "C8": ["tests/stack/test_cluster.py", "tests/certify/test_cluster_loses_a_worker.py"],
    "C9": [
        f"{SYSTEMS}::test_{name}"
        for name in ("rides", "orders_and_payments", "medallion", "sales", "iot", "enrichment")
    ],
    "C10": [*COMPLETE_SYSTEMS, "tests/certify/test_system_enrichment.py"],
    "C11": ["tests/stack/test_captures.py", "tests/certify/test_captures_faults.py", "tests/stack/test_cdc.py"],
    "C12": ["tests/stack/test_captures.py", "tests/stack/test_cdc_mariadb.py", "tests/certify/test_captures_faults.py"],
    "C13": ["tests/certify/test_slot_pressure.py"],
    "C14": [
        "tests/stack/test_cli.py::test_the_demo_prints_one_object_with_its_comparison",
        "tests/certify/test_demos.py",
    ],
    "C15": ["tests/certify/test_examples_run.py"],
    "C16": ["tests/stack/test_cli.py::test_a_project_runs_once_drains_and_resumes"],
    "C17": ["tests/stack/test_late_and_invalid.py", "tests/certify/test_late_and_invalid_killed.py"],
}


def names_of_tests(file: Path) -> set[str]:
    """Return the names of the tests in a file, those that it imports from a shared module included."""
    tree = ast.parse(file.read_text())
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module and node.names[0].name == "*":
            names |= names_of_tests(ROOT / "tests" / f"{node.module.replace('.', '/')}.py")
    return names


def test_every_claim_has_a_proof_and_every_proof_a_claim():
    claims = re.findall(r"^\| (C\d+) \|", (ROOT / "docs" / "proof.md").read_text(), re.MULTILINE)

    assert claims == list(PROOFS)
    assert [claim for claim, proofs in PROOFS.items() if not proofs] == []


@pytest.mark.parametrize("claim", PROOFS)
def test_the_tests_that_prove_a_claim_are_there(claim: str):
    for proof in PROOFS[claim]:
        file, _, test = proof.partition("::")
        assert names_of_tests(ROOT / file), proof
        assert not test or test in names_of_tests(ROOT / file), proof


def test_every_long_proof_is_run_by_certify_and_proves_a_claim():
    files = {f"tests/certify/{path.name}" for path in (ROOT / "tests" / "certify").glob("test_*.py")}

    complete_files = [case for case in CASES if case.name != "variants"]
    assert {test.partition("::")[0] for case in complete_files for test in case.tests} == files
    proving = {proof.partition("::")[0] for proofs in PROOFS.values() for proof in proofs}
    assert files <= proving
    # A file that is run test by test is run completely.
    for file in files:
        selected = {test.partition("::")[2].partition("[")[0] for case in CASES for test in case.tests if file in test}
        assert selected == {""} or selected == names_of_tests(ROOT / file), file
