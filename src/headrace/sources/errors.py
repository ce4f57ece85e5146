"""The error of a source that cannot give the rows of an old batch once more."""

from __future__ import annotations

from headrace.errors import DataError


def not_again(source: str, why: str) -> DataError:
    """Return the error. Raised by `batch`, which audits and replays call."""
    return DataError(
        f"{source} cannot be read again.",
        why=why,
        state="Nothing was written. What the flow wrote when it first read these rows is as it was.",
        remedy="Audit or replay the flow from a source that keeps its rows: Kafka, or the versions of a Delta table.",
        code="HR-511",
    )
