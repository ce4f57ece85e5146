"""Applies data quality rules: one column per rule says whether a row violates it.

The columns exist during validation only. The counters read them, and they are dropped before the transform.
"""

from collections.abc import Sequence
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame, functions as F

from headrace.flow.rules import Action, Rule

_PREFIX = "_headrace_rule_"
# Marks the error of a `fail` rule in Spark's error message.
VIOLATION_MARKER = "headrace-rule-broken"


def violation_columns(rules: Sequence[Rule], invalid: Column) -> dict[str, Column]:
    """Return whether a row violates each rule, by column name. An invalid row violates none."""
    return {_PREFIX + rule.name: ~invalid & ~F.coalesce(F.expr(rule.condition), F.lit(False)) for rule in rules}


def violation_names(rules: Sequence[Rule]) -> list[str]:
    """Return the names of the columns that `violation_columns` creates."""
    return [_PREFIX + rule.name for rule in rules]


def violates(rules: Sequence[Rule], *actions: Action) -> Column:
    """Return whether a row violates a rule with one of these actions."""
    return reduce(or_, (F.col(_PREFIX + rule.name) for rule in rules if rule.action in actions), F.lit(False))


def count_violations(rules: Sequence[Rule], prefix: str) -> list[Column]:
    """Return the number of rows that violate each rule, as `prefix` plus the rule name."""
    return [F.count_if(F.col(_PREFIX + rule.name)).alias(prefix + rule.name) for rule in rules]


def violated_rule(rules: Sequence[Rule], otherwise: Column, *actions: Action) -> Column:
    """Return `rule:NAME` of the first violated rule, or `otherwise` if a row violates none.

    Only rules with one of these actions count; the default is `quarantine`.
    """
    matching = [rule for rule in rules if rule.action in (actions or ("quarantine",))]
    return reduce(
        lambda reason, rule: F.when(F.col(_PREFIX + rule.name), f"rule:{rule.name}").otherwise(reason),
        reversed(matching),
        otherwise,
    )


def fail_on_violation(rows: DataFrame, rules: Sequence[Rule]) -> DataFrame:
    """Return the rows; a row that violates a rule with the action `fail` ends the query.

    The message names the rule and, for Kafka, topic, partition and offset.
    """
    has_position = {"topic", "partition", "offset"} <= set(rows.columns)
    position = (
        F.concat(F.lit(" by "), "topic", F.lit("-"), "partition", F.lit("@"), "offset") if has_position else F.lit("")
    )
    for rule in (rule for rule in rules if rule.action == "fail"):
        message = F.concat(F.lit(f"{VIOLATION_MARKER}: rule '{rule.name}' ({rule.condition}) is broken"), position)
        rows = rows.where(F.when(F.col(_PREFIX + rule.name), F.raise_error(message)).isNull())
    return rows
