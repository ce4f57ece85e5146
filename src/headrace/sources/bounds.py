"""What a source demands of its own fields, asked when it is made: a mistake fails at the line that holds it."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.errors import FlowError
from headrace.flow.source import Bound

# A file of a lake is some 100 MB at most, so either bound keeps a batch to about 10 GB.
_USUAL_FILES = 100
_USUAL_BYTES = 10_000_000_000


def file_bounds(files: int | None, size: int | None) -> tuple[Bound, ...]:
    """Return the two bounds of a source of files. `check` finds a source that sets none of them (HRC-110)."""
    return (
        Bound("max_files_per_trigger", "files", files, _USUAL_FILES),
        Bound("max_bytes_per_trigger", "bytes", size, _USUAL_BYTES),
    )


def file_options(files: int | None, size: int | None) -> dict[str, str]:
    """Return the two bounds as Spark's readers of files and Delta tables name them, those that are set."""
    given = {"maxFilesPerTrigger": files, "maxBytesPerTrigger": size}
    return {name: str(value) for name, value in given.items() if value is not None}


def require_bounds(source: str, bounds: Sequence[Bound], *, both: bool = True) -> None:
    """Raise for a bound below 1, and for several at once where the source can hold only one."""
    given = [bound for bound in bounds if bound.value is not None]
    if len(given) > 1 and not both:
        names = " or ".join(bound.name for bound in bounds)
        raise undeclarable(f"{source} has two bounds for a batch.", "Spark takes only one.", f"Set {names}, not both.")
    for bound in given:
        if isinstance(bound.value, int):
            require_positive(source, bound.name, bound.value)


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
