"""Data quality rules for an input: the condition each row must meet, and what to do with rows that fail it.

Input(
    KafkaSource("web-orders"),
    schema=ORDER,
    rules=(
        Rule("positive_amount", "amount > 0", "quarantine"),
        Rule("few_items", "items <= 50", "warn"),
    ),
)
"""

import re
from dataclasses import dataclass
from typing import Literal, get_args

from headrace.errors import FlowError, did_you_mean

Action = Literal["warn", "drop", "quarantine", "fail"]
_ACTIONS = get_args(Action)
# The name is part of metric names and quarantine reasons.
_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")


@dataclass(frozen=True)
class Rule:
    """A condition that every valid row of an input must meet, in Spark SQL over the columns of the input.

    A condition that evaluates to null is not met. To accept null, write `amount IS NULL OR amount > 0`.

    | action     | a row that does not meet it                                                                   |
    |------------|-----------------------------------------------------------------------------------------------|
    | warn       | is counted, and passed on                                                                     |
    | drop       | is counted, and dropped                                                                       |
    | quarantine | is counted, dropped, and quarantined with the reason `rule:NAME`                              |
    | fail       | stops the flow (HR-571) before any row of its batch is written                                |

    Rules do not apply to rows that are already invalid. A row that violates several rules is counted by each of them,
    and quarantined under the first rule with that action. Dropped rows never advance the watermark.
    """

    name: str
    condition: str
    action: Action = "quarantine"

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise _rule_error(
                f"A rule is called '{self.name}'.",
                "Its name is a part of counters and reasons: small letters, digits and underscores, a letter first.",
                "Give it such a name.",
            )
        if self.action not in _ACTIONS:
            raise _rule_error(
                f"Rule '{self.name}' has the action '{self.action}'.",
                f"The actions are {', '.join(_ACTIONS)}.{did_you_mean(str(self.action), _ACTIONS)}",
                "Set one of them.",
            )
        if not self.condition.strip():
            raise _rule_error(
                f"Rule '{self.name}' has no condition.", "No row could break it.", "Write one, or leave it."
            )


def require_unique_names(rules: tuple[Rule, ...]) -> None:
    """Raise HR-570 when two rules of an input share a name."""
    names = [rule.name for rule in rules]
    duplicate = next((name for name in names if names.count(name) > 1), None)
    if duplicate is not None:
        raise _rule_error(
            f"Two rules of an input are called '{duplicate}'.",
            "Rows are counted and recorded by the name of the rule.",
            "Give each rule a name of its own.",
        )


def _rule_error(what: str, why: str, remedy: str) -> FlowError:
    return FlowError(what, why=why, remedy=remedy, code="HR-570")
