"""Rows against the rules of their input: a column per rule says whether it is broken.

The columns stand beside those of the row while it is judged; the counters read them in passing, and they are gone
before the transform sees the row.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from headrace.flow.rules import Action, Rule

_BROKEN = "_headrace_rule_"
# What an error of a stopped flow is known by, in the text that Spark makes of it.
STOPPED = "headrace-rule-broken"


def verdicts(rules: Sequence[Rule], bad: Column) -> dict[str, Column]:
    """Return whether a row breaks each rule, by the name of the column. A row that is bad already breaks none."""
    return {_BROKEN + rule.name: ~bad & ~F.coalesce(F.expr(rule.condition), F.lit(False)) for rule in rules}


def columns(rules: Sequence[Rule]) -> list[str]:
    """Return the names of the columns that `verdicts` makes."""
    return [_BROKEN + rule.name for rule in rules]


def broken(rules: Sequence[Rule], *actions: Action) -> Column:
    """Return whether a row breaks a rule that has one of these actions."""
    return reduce(or_, (F.col(_BROKEN + rule.name) for rule in rules if rule.action in actions), F.lit(False))


def counts(rules: Sequence[Rule], prefix: str) -> list[Column]:
    """Return how many rows break each rule, named after it, behind a prefix."""
    return [F.count_if(F.col(_BROKEN + rule.name)).alias(prefix + rule.name) for rule in rules]


def with_rule(rules: Sequence[Rule], otherwise: Column, *actions: Action) -> Column:
    """Return `rule:NAME` of the first rule that a row breaks, or another reason for a row that breaks none.

    Rules that have one of these actions are asked; those that file, if none is named.
    """
    filing = [rule for rule in rules if rule.action in (actions or ("quarantine",))]
    return reduce(
        lambda chosen, rule: F.when(F.col(_BROKEN + rule.name), f"rule:{rule.name}").otherwise(chosen),
        reversed(filing),
        otherwise,
    )


def stopping(rows: DataFrame, rules: Sequence[Rule]) -> DataFrame:
    """Return the rows; reading one that breaks a rule with the action `fail` ends the query.

    The message names the rule, and the place of the row where it has one.
    """
    placed = {"topic", "partition", "offset"} <= set(rows.columns)
    place = F.concat(F.lit(" by "), "topic", F.lit("-"), "partition", F.lit("@"), "offset") if placed else F.lit("")
    for rule in (each for each in rules if each.action == "fail"):
        message = F.concat(F.lit(f"{STOPPED}: rule '{rule.name}' ({rule.condition}) is broken"), place)
        rows = rows.where(F.when(F.col(_BROKEN + rule.name), F.raise_error(message)).isNull())
    return rows
