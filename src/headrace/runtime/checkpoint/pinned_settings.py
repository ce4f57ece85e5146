"""What the first batch of a stateful flow froze into its checkpoint, against what is declared now.

Spark writes some settings into each entry of the offset log, and takes them from there at a restart, whatever the
session says. It does so without a word, so a changed declaration would be believed and have no effect:

| setting            | a declaration that differs                                                                    |
|--------------------|-----------------------------------------------------------------------------------------------|
| state store        | is refused (HR-344): the flow would go on in memory though RocksDB is declared, or the reverse |
| shuffle partitions | is told (SettingPinned): the flow goes on with the number of its checkpoint                    |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.errors import RecoveryError
from headrace.flow.flow import Flow
from headrace.flow.levers import InMemory, RocksDB
from headrace.runtime.checkpoint.checkpoint import Checkpoint

PARTITIONS = "spark.sql.shuffle.partitions"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"

# The levers by the classes that Spark keeps state with.
_LEVERS = {"RocksDBStateStoreProvider": RocksDB.__name__, "HDFSBackedStateStoreProvider": InMemory.__name__}


@dataclass(frozen=True)
class Frozen:
    """What a checkpoint holds to: the kind of its stores and the number of its shuffle partitions."""

    lever: str
    partitions: int


def frozen(checkpoint: Checkpoint) -> Frozen | None:
    """Return what the checkpoint holds to, or None when it has no state yet or does not say."""
    planned = checkpoint.planned()
    if not planned or not any(name.isdigit() for name in checkpoint.files.names(f"{checkpoint.location}/state")):
        return None
    settings: Mapping[str, str] = checkpoint.entry(planned[-1]).settings
    provider = settings.get(PROVIDER, "").rpartition(".")[2]
    if not provider or not settings.get(PARTITIONS, "").isdigit():
        return None
    return Frozen(_LEVERS.get(provider, provider), int(settings[PARTITIONS]))


def require_same_store(flow: Flow, checkpoint: Checkpoint) -> Frozen | None:
    """Raise HR-344 when the state is declared in another kind of store; return what the checkpoint holds to.

    Called under the lease, before each start of a query.
    """
    kept, declared = frozen(checkpoint), type(flow.state).__name__
    if kept is not None and kept.lever != declared:
        raise RecoveryError(
            f"Flow '{flow.name}' declares {declared}() for its state, and its checkpoint keeps it with {kept.lever}.",
            why="The first batch decides where state is kept. Spark would go on as before and not say so.",
            state="Nothing was started and nothing was written.",
            remedy=f"Declare state={kept.lever}(), or start the flow under a new name.",
            code="HR-344",
        )
    return kept
