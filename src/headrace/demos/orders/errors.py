"""Errors of the reconciliation of orders and payments."""

from datetime import datetime

from headrace.errors import RecoveryError
from headrace.flow.flow import Flow

_UNCHANGED = "Nothing was changed."


def not_a_join(flow: Flow) -> RecoveryError:
    """Return the error for a flow that is not one of the pattern's."""
    return RecoveryError(
        f"Flow '{flow.name}' is not a join of orders and payments.",
        why="Headrace can recompute a flow only if its transform is `join_payments` of headrace.patterns.orders.flows "
        "and its sink is DeltaAppend.",
        state=_UNCHANGED,
        remedy="Name a flow that `flows` of that pattern returns, or name none to select all of them.",
        code="HR-355",
    )


def nothing_read(flow: Flow) -> RecoveryError:
    """Return the error for a flow that has not run yet."""
    return RecoveryError(
        f"Flow '{flow.name}' has not committed a batch.",
        why="The expected rows are computed from the records that the flow has read.",
        state=_UNCHANGED,
        remedy=f"Run it first: `headrace run {flow.name}`.",
        code="HR-356",
    )


def no_watermark(flow: Flow) -> RecoveryError:
    """Return the error for a flow without a watermark."""
    return RecoveryError(
        f"Nothing is closed yet for flow '{flow.name}': every day is still open.",
        why="It has no watermark yet. The watermark advances after rows of both topics have arrived.",
        state=_UNCHANGED,
        remedy="Keep the flow running until both topics have rows.",
        code="HR-356",
    )


def still_open(flow: Flow, start: datetime, closed: datetime) -> RecoveryError:
    """Return the error for a day that the watermark has not passed."""
    return RecoveryError(
        f"Nothing of {start:%Y-%m-%d} is closed for flow '{flow.name}'.",
        why=f"The watermark has passed the bound of orders before {closed:%Y-%m-%d %H:%M:%S} UTC. The flow may "
        "still match later orders.",
        state=_UNCHANGED,
        remedy="Keep the flow running, or name an earlier day with --day.",
        code="HR-356",
    )


def rows_missing(flow: Flow, start: datetime, why: str) -> RecoveryError:
    """Return the error for a day with missing records."""
    return RecoveryError(
        f"{start:%Y-%m-%d} cannot be recomputed for flow '{flow.name}'.",
        why=why,
        state=f"{_UNCHANGED} With fewer rows than the stream had, the result would be worse.",
        remedy="Keep the topics for longer than the time between a day and its reconciliation, and run it every night.",
        code="HR-357",
    )
