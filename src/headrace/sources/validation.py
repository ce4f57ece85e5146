"""Validation of source declarations when they are created, so that a mistake fails at its own line."""

from collections.abc import Sequence

from headrace.errors import FlowError
from headrace.flow.source import Bound


def require_bounds(source: str, bounds: Sequence[Bound], *, both: bool = True) -> None:
    """Raise for a bound below 1, and for more than one bound if the source supports only one."""
    set_bounds = [bound for bound in bounds if bound.value is not None]
    if len(set_bounds) > 1 and not both:
        names = " or ".join(bound.name for bound in bounds)
        raise invalid_source(
            f"{source} has two bounds for a batch.", "Spark supports only one.", f"Set {names}, not both."
        )
    for bound in set_bounds:
        if isinstance(bound.value, int):
            require_positive(source, bound.name, bound.value)


def require_positive(source: str, name: str, number: int) -> None:
    """Raise unless a number is at least 1."""
    if number < 1:
        raise invalid_source(
            f"{source} sets {name} to {number}.", "It has to be at least 1.", f"Set {name} to 1 or more."
        )


def require_version(source: str, starting_version: int) -> None:
    """Raise if the version is negative."""
    if starting_version < 0:
        raise invalid_source(
            f"{source} starts at version {starting_version}.",
            "The versions of a table count from 0.",
            "Set starting_version to 0 or more.",
        )


def require_loss_reason(source: str, data_loss_reason: str | None) -> None:
    """Raise if `data_loss_reason` is blank."""
    if data_loss_reason is not None and not data_loss_reason.strip():
        raise invalid_source(
            f"{source} accepts loss without saying why.",
            "The words are recorded with every range that is lost, for the person who finds it.",
            "Set data_loss_reason to a sentence, or remove it: the flow then stops at a loss.",
        )


def require_topic_ids(source: str, accepted_topic_ids: tuple[str, ...] | str, data_loss_reason: str | None) -> None:
    """Raise unless recreated topics are a tuple of ids, and a `data_loss_reason` is set."""
    if isinstance(accepted_topic_ids, str):
        raise invalid_source(
            f"{source} sets accepted_topic_ids to a text.",
            "It is a tuple of ids.",
            f"Set accepted_topic_ids=('{accepted_topic_ids}',).",
        )
    if accepted_topic_ids and data_loss_reason is None:
        raise invalid_source(
            f"{source} accepts a recreated topic, and no loss.",
            "A flow that continues in such a topic skips the rows before its old offsets.",
            "Set data_loss_reason to a sentence that says why, or start the flow under a new name.",
        )


def invalid_source(what: str, why: str, remedy: str) -> FlowError:
    """Return HR-210: the declaration of the source is invalid."""
    return FlowError(what, why=why, remedy=remedy, code="HR-210")
