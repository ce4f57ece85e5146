"""Errors of the reconciliation of orders and payments."""

from datetime import datetime

from headrace.errors import RecoveryError
from headrace.flow.flow import Flow

_UNCHANGED = "Nothing was changed."


def not_a_join(flow: Flow) -> RecoveryError:
    """Return the error for a flow that is not one of the pattern's."""
    return RecoveryError(
        f"Flow '{flow.name}' is not a join of orders and payments.",
        why="It is known what such a flow should hold when its transform is `joined` of headrace.patterns.orders.flows "
        "and its sink is DeltaAppend.",
        state=_UNCHANGED,
        remedy="Name a flow that `flows` of that pattern returns, or leave the name away: all of them are taken.",
        code="HR-355",
    )


def nothing_read(flow: Flow) -> RecoveryError:
    """Return the error for a flow that has not run yet."""
    return RecoveryError(
        f"Flow '{flow.name}' has not committed a batch.",
        why="What it should hold follows from what it has read.",
        state=_UNCHANGED,
        remedy=f"Run it first: `headrace run {flow.name}`.",
        code="HR-356",
    )


def no_watermark(flow: Flow) -> RecoveryError:
    """Return the error for a flow without a watermark."""
    return RecoveryError(
        f"Nothing is closed yet for flow '{flow.name}': every day is still open.",
        why="It has no watermark yet. That begins to move when orders and payments both have come: the one that is "
        "further behind counts.",
        state=_UNCHANGED,
        remedy="Let the flow run on until both topics have rows.",
        code="HR-356",
    )


def still_open(flow: Flow, start: datetime, closed: datetime) -> RecoveryError:
    """Return the error for a day that the watermark has not passed."""
    return RecoveryError(
        f"Nothing of {start:%Y-%m-%d} is closed for flow '{flow.name}'.",
        why=f"Its watermark has passed the bound of orders before {closed:%Y-%m-%d %H:%M:%S} UTC, and of no later one: "
        "the flow may still pair them.",
        state=_UNCHANGED,
        remedy="Let the flow run on, or name an earlier day with --day.",
        code="HR-356",
    )


def rows_missing(flow: Flow, start: datetime, why: str) -> RecoveryError:
    """Return the error for a day with missing records."""
    return RecoveryError(
        f"{start:%Y-%m-%d} cannot be recomputed for flow '{flow.name}'.",
        why=why,
        state=f"{_UNCHANGED} From fewer rows than the stream had, the result would be worse.",
        remedy="Keep the topics for longer than the time between a day and its reconciliation, and run it every night.",
        code="HR-357",
    )
