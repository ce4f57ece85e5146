"""Errors of the repair of late rows."""

from collections.abc import Sequence

from headrace.errors import RecoveryError
from headrace.flow.flow import Flow

_UNCHANGED = "Nothing was changed. The late rows are in the ledger."


def unsupported_sink(flow: Flow) -> RecoveryError:
    """Return the error for a sink whose rows cannot be replaced."""
    return RecoveryError(
        f"The late rows of flow '{flow.name}' cannot be repaired in {flow.sink.name}.",
        why="A repair replaces rows in one recorded commit, which works for one DeltaAppend or DeltaUpsert, "
        "alone or within a fan-out.",
        state=_UNCHANGED,
        remedy="Let the flow write one Delta table, and what comes after it read that one.",
        code="HR-350",
    )


def no_window(flow: Flow, why: str) -> RecoveryError:
    """Return the error for a transform that is not a single windowed aggregation."""
    return RecoveryError(
        f"The transform of flow '{flow.name}' cannot be recomputed for single windows.",
        why=why,
        state=_UNCHANGED,
        remedy="Replay the flow under a new name, with a longer delay of its watermark: `headrace late` suggests one.",
        code="HR-351",
    )


def key_without_window(flow: Flow, key: Sequence[str]) -> RecoveryError:
    """Return the error for an upsert that would let an old window replace a newer one."""
    return RecoveryError(
        f"The key of {flow.sink.name}, {', '.join(key)}, does not contain the window.",
        why="A row of a closed window would replace the newest one of its key, since the sink has no `sequence`.",
        state=_UNCHANGED,
        remedy="Declare a `sequence` on the sink, or put the window's start or end into its key as it is.",
        code="HR-352",
    )


def no_window_column(flow: Flow) -> RecoveryError:
    """Return the error for a table in which the rows of a window cannot be found."""
    return RecoveryError(
        f"The rows of a window cannot be found in {flow.sink.name}.",
        why="No column of the result is the window, its start or its end unchanged.",
        state=_UNCHANGED,
        remedy="Let the transform keep the window's start or end in a column.",
        code="HR-353",
    )


def unknown_start_offset(flow: Flow, source: str) -> RecoveryError:
    """Return the error for a source without a recorded start."""
    return RecoveryError(
        f"The windows of flow '{flow.name}' cannot be recomputed.",
        why=f"A window needs all rows, and it is not recorded where the flow began to read {source}. Sources of topics "
        "record it, and Delta tables have a `starting_version`.",
        state=_UNCHANGED,
        remedy="Replay the flow under a new name, with a longer delay of its watermark: `headrace late` suggests one.",
        code="HR-354",
    )
