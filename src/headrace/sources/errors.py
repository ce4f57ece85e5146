"""The error of a source that cannot replay an old batch."""

from headrace.errors import SourceNotReplayable


def source_not_replayable(source: str, why: str) -> SourceNotReplayable:
    """Return HR-511: the source cannot read an old batch again. Raised by `batch`, which audits and replays call."""
    return SourceNotReplayable(
        f"{source} cannot be read again.",
        why=why,
        state="Nothing was written. What the flow wrote when it first read these rows is as it was.",
        remedy="Audit or replay the flow from a source that keeps its rows: Kafka, or the versions of a Delta table.",
    )
