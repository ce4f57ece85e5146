"""What a source demands of its own fields, asked when it is made: a mistake fails at the line that holds it."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.errors import FlowError


def require_bound(source: str, bounds: Mapping[str, int | None], *, both: bool) -> None:
    """Raise unless a batch is bounded: by one of the bounds, or by several where the source can hold `both`."""
    given = {name: bound for name, bound in bounds.items() if bound is not None}
    names = " or ".join(bounds)
    if not given:
        raise undeclarable(
            f"{source} has no bound for a batch.",
            "Without one the first batch would read everything that is there, in one piece.",
            f"Set {names}.",
        )
    if len(given) > 1 and not both:
        raise undeclarable(f"{source} has two bounds for a batch.", "Spark takes only one.", f"Set {names}, not both.")
    for name, bound in given.items():
        require_positive(source, name, bound)


def require_positive(source: str, name: str, number: int) -> None:
    """Raise unless a number is at least 1."""
    if number < 1:
        raise undeclarable(
            f"{source} sets {name} to {number}.", "It has to be at least 1.", f"Set {name} to 1 or more."
        )


def require_version(source: str, starting_version: int) -> None:
    """Raise unless a table can have the version."""
    if starting_version < 0:
        raise undeclarable(
            f"{source} starts at version {starting_version}.",
            "The versions of a table count from 0.",
            "Set starting_version to 0 or more.",
        )


def require_words(source: str, accept_loss: str | None) -> None:
    """Raise when loss is accepted without a reason."""
    if accept_loss is not None and not accept_loss.strip():
        raise undeclarable(
            f"{source} accepts loss without saying why.",
            "The words are recorded with every range that is lost, for the person who finds it.",
            "Set accept_loss to a sentence, or remove it: the flow then stops at a loss.",
        )


def require_ids(source: str, accept_topics: tuple[str, ...] | str, accept_loss: str | None) -> None:
    """Raise unless topics that were made again are named by ids, together with the reason to pass over rows."""
    if isinstance(accept_topics, str):
        raise undeclarable(
            f"{source} sets accept_topics to a text.",
            "It is a tuple of ids.",
            f"Set accept_topics=('{accept_topics}',).",
        )
    if accept_topics and accept_loss is None:
        raise undeclarable(
            f"{source} accepts a topic that was made again, and no loss.",
            "A flow that goes on in such a topic passes over the rows before its old offsets.",
            "Set accept_loss to a sentence that says why, or start the flow under a new name.",
        )


def undeclarable(what: str, why: str, remedy: str) -> FlowError:
    """Return the error for a source that is declared in a way that cannot be read."""
    return FlowError(what, why=why, state="Nothing was started.", remedy=remedy, code="HR-210")
