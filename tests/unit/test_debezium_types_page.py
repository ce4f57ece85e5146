"""The page of types holds exactly the rules of the code, and the rules name each type once."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.cdc.capture.source_table import Family
from headrace.cdc.decode.types import type_mappings

PAGE = (Path(__file__).parents[2] / "docs" / "cdc" / "types.md").read_text()
HEADINGS: dict[Family, str] = {"postgres": "## Postgres\n", "mysql": "## MySQL and MariaDB\n"}


@pytest.mark.parametrize("family", ["postgres", "mysql"])
def test_the_page_lists_the_rules_in_their_order(family: Family) -> None:
    section = PAGE.partition(HEADINGS[family])[2].partition("\n## ")[0]
    listed = [line for line in section.splitlines() if line.startswith("| `")]

    assert listed == [
        f"| {', '.join(f'`{name}`' for name in rule.names)} | {rule.shown} | {rule.note} |"
        for rule in type_mappings(family)
    ]


@pytest.mark.parametrize("family", ["postgres", "mysql"])
def test_each_type_has_one_rule_with_the_result_that_the_page_shows(family: Family) -> None:
    names = [name for rule in type_mappings(family) for name in rule.names]

    assert len(names) == len(set(names))
    for rule in type_mappings(family):
        arguments = (12, 2) if rule.shown == "decimal(p,s)" else ()
        declared = rule.decoder(arguments).spark.simpleString()
        shown = rule.shown.replace("(p,s)", "(12,2)")
        assert declared in shown.split(", ") or declared == shown
