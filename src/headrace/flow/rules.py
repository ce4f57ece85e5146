"""Rules on the rows of an input: what has to be true of each, and what happens to a row of which it is not.

Input(
    KafkaSource("web-orders"),
    schema=ORDER,
    rules=(
        Rule("positive_amount", "amount > 0", "quarantine"),
        Rule("few_items", "items <= 50", "warn"),
    ),
)
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

from headrace.errors import FlowError, nearest

Action = Literal["warn", "drop", "quarantine", "fail"]
_ACTIONS = get_args(Action)
# It is a part of counters' names and of reasons.
_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")


@dataclass(frozen=True)
class Rule:
    """One condition that every good row of an input has to meet, in Spark SQL over the columns of the input.

    A condition that comes to null is not met: where null is right, write `amount IS NULL OR amount > 0`.

    | action     | a row that does not meet it                                                                   |
    |------------|-----------------------------------------------------------------------------------------------|
    | warn       | is counted, and goes on                                                                       |
    | drop       | is counted, and left out                                                                      |
    | quarantine | is counted, left out, and filed with the reason `rule:NAME`                                   |
    | fail       | stops the flow (HR-571) before anything of its batch is written                               |

    Rows that are bad already are not asked. A row that breaks several rules is counted by each of them, and filed under
    the first one that files. What is left out never moves the watermark.
    """

    name: str
    condition: str
    action: Action = "quarantine"

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise _refused(
                f"A rule is called '{self.name}'.",
                "Its name is a part of counters and reasons: small letters, digits and underscores, a letter first.",
                "Give it such a name.",
            )
        if self.action not in _ACTIONS:
            raise _refused(
                f"Rule '{self.name}' has the action '{self.action}'.",
                f"The actions are {', '.join(_ACTIONS)}.{nearest(str(self.action), _ACTIONS)}",
                "Set one of them.",
            )
        if not self.condition.strip():
            raise _refused(f"Rule '{self.name}' has no condition.", "No row could break it.", "Write one, or leave it.")


def require_own_names(rules: tuple[Rule, ...]) -> None:
    """Raise HR-570 when two rules of an input have one name: their counts could not be told apart."""
    names = [rule.name for rule in rules]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise _refused(
            f"Two rules of an input are called '{twice}'.",
            "Rows are counted and filed by the name of the rule.",
            "Give each rule a name of its own.",
        )


def _refused(what: str, why: str, remedy: str) -> FlowError:
    return FlowError(what, why=why, state="Nothing was started.", remedy=remedy, code="HR-570")
