"""Compares the declaration of a stateful flow with the settings that its first batch pinned in the checkpoint.

Spark writes some settings into each entry of the offset log, and silently uses them at a restart instead of those of
the session. So a changed declaration would have no effect:

| setting            | a different declaration                                                                       |
|--------------------|-----------------------------------------------------------------------------------------------|
| state store        | is refused (HR-344): the flow would stay in memory though RocksDB is declared, or vice versa  |
| shuffle partitions | is reported (SettingPinned): the flow keeps the number of its checkpoint                      |
"""

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.errors import RecoveryError
from headrace.flow.flow import Flow
from headrace.flow.levers import InMemory, RocksDB
from headrace.runtime.checkpoint.checkpoint import Checkpoint

PARTITIONS = "spark.sql.shuffle.partitions"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"

# The state declarations by Spark's provider classes.
_STATE_CLASSES = {"RocksDBStateStoreProvider": RocksDB.__name__, "HDFSBackedStateStoreProvider": InMemory.__name__}


@dataclass(frozen=True)
class PinnedSettings:
    """The pinned settings of a checkpoint: state store and number of shuffle partitions."""

    state_class: str
    partitions: int


def read_pinned_settings(checkpoint: Checkpoint) -> PinnedSettings | None:
    """Return the pinned settings of a checkpoint, or None if it has no state or records none."""
    planned = checkpoint.planned_batches()
    if not planned or not any(name.isdigit() for name in checkpoint.files.names(f"{checkpoint.location}/state")):
        return None
    settings: Mapping[str, str] = checkpoint.offset_entry(planned[-1]).settings
    provider = settings.get(PROVIDER, "").rpartition(".")[2]
    if not provider or not settings.get(PARTITIONS, "").isdigit():
        return None
    return PinnedSettings(_STATE_CLASSES.get(provider, provider), int(settings[PARTITIONS]))


def require_same_state_store(flow: Flow, checkpoint: Checkpoint) -> PinnedSettings | None:
    """Raise HR-344 if the declared state store differs from the pinned one; return the pinned settings.

    Called under the lease, before each start of a query.
    """
    pinned, declared = read_pinned_settings(checkpoint), type(flow.state).__name__
    if pinned is not None and pinned.state_class != declared:
        raise RecoveryError(
            f"Flow '{flow.name}' declares {declared}() for its state, and its checkpoint keeps it "
            f"with {pinned.state_class}.",
            why="The first batch decides where state is stored. Spark would silently continue as before.",
            state="Nothing was started and nothing was written.",
            remedy=f"Declare state={pinned.state_class}(), or start the flow under a new name.",
            code="HR-344",
        )
    return pinned
