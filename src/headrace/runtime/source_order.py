"""Which entry of the offset log belongs to which input.

Spark numbers the sources of a query in the order in which its plan reads them: the transform decides it, not the
declaration, and the beats of an input are a source of their own behind it. The order is worked out from the plan at
each start and kept beside the checkpoint, where the audit and the commands find it:

    FLOW/headrace/order.json

The offsets of a checkpoint stand in the order of its first batch for ever. So a start with another order, or with more
or fewer sources, is refused: Spark would read one source from the offsets of another, or stop and not say why.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

from headrace.errors import RecoveryError
from headrace.flow.flow import Flow
from headrace.runtime.checkpoint import Checkpoint

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject, JVMView
    from pyspark.sql import DataFrame

# The nodes that Spark makes a source of: of its own interface, and of the newer one, which Kafka has.
_KINDS = {"StreamingRelation": "dataSource", "StreamingRelationV2": "table"}


@dataclass(frozen=True)
class Place:
    """One source of the plan: the rows of an input, or its beats."""

    input: str
    source: str
    role: Literal["rows", "beats"] = "rows"

    def __str__(self) -> str:
        return f"{self.source} ({self.input})" if self.role == "rows" else f"heartbeats of {self.input}"

    def same(self, other: Place) -> bool:
        """Whether it is the same source, be it that the input or the source was given another name."""
        return self.role == other.role and (self.input == other.input or self.source == other.source)


def planned_order(result: DataFrame, sources: Mapping[Place, DataFrame]) -> tuple[Place, ...]:
    """Return the places of a plan as Spark will number them. `sources` holds each place as its source gave it."""
    jvm = result.sparkSession._jvm
    assert jvm is not None  # noqa: S101 - a classic session always has its JVM
    places = {_token(jvm, leaf): place for place, frame in sources.items() for leaf in _leaves(_plan(frame))}
    numbered: list[JavaObject] = []
    for leaf in _leaves(_plan(result)):
        # One relation that is read in two places of the plan is one source.
        if not any(leaf.equals(known) for known in numbered):
            numbered.append(leaf)
    return tuple(places.get(_token(jvm, leaf), Place("", "a stream of the transform's own")) for leaf in numbered)


def require_order(checkpoint: Checkpoint, order: Sequence[Place]) -> None:
    """Raise HR-343 unless the checkpoint is about these sources in this order, else record it.

    Called under the lease, before each start of a query.
    """
    planned = checkpoint.planned()
    if planned:
        kept = recorded_order(checkpoint)
        held = len(checkpoint.entry(planned[-1]).offsets)
        fits = len(order) == held and (kept is None or all(a.same(b) for a, b in zip(kept, order, strict=False)))
        if not fits:
            raise _changed(checkpoint, [str(each) for each in kept] if kept else [f"{held} sources"], order)
    text = json.dumps({"sources": [asdict(each) for each in order]}, indent=1)
    checkpoint.files.write(_path(checkpoint), text)


def recorded_order(checkpoint: Checkpoint) -> tuple[Place, ...] | None:
    """Return the order of the last start, or None where none is recorded. Raises HR-345 for a damaged record."""
    text = checkpoint.files.read(_path(checkpoint))
    if text is None:
        return None
    try:
        return tuple(Place(**each) for each in json.loads(text)["sources"])
    except (ValueError, KeyError, TypeError) as error:
        raise RecoveryError(
            f"Flow '{checkpoint.flow}': {_path(checkpoint)} cannot be read.",
            why=f"It holds the order of the flow's sources in the offset log; here: {error}.",
            state="Nothing was started and nothing was changed.",
            remedy="Restore the file from a backup. If neither the inputs nor the transform changed since the flow "
            "last ran, delete it: the next start writes it anew.",
            code="HR-345",
        ) from error


def source_index(checkpoint: Checkpoint, flow: Flow, name: str) -> int | None:
    """Return where the offsets of an input stand in the offset log, or None when the transform does not read it.

    A checkpoint without a record has the inputs in the order of their declaration.
    """
    order = recorded_order(checkpoint)
    if order is None:
        return list(flow.named_inputs).index(name)
    return next((n for n, each in enumerate(order) if (each.input, each.role) == (name, "rows")), None)


def _path(checkpoint: Checkpoint) -> str:
    return f"{checkpoint.house}/order.json"


def _plan(frame: DataFrame) -> JavaObject:
    return frame._jdf.queryExecution().analyzed()


def _leaves(plan: JavaObject) -> Iterator[JavaObject]:
    """Yield the streams below a node, in Spark's own order: the node, then its children from left to right."""
    if plan.getClass().getSimpleName() in _KINDS:
        yield plan
    children = plan.children()
    for index in range(children.size()):
        yield from _leaves(children.apply(index))


def _token(jvm: JVMView, leaf: JavaObject) -> int:
    """Return what a relation keeps when Spark copies it for a second use: the very object that it reads."""
    read = getattr(leaf, _KINDS[leaf.getClass().getSimpleName()])()
    return int(jvm.java.lang.System.identityHashCode(read))


def _changed(checkpoint: Checkpoint, kept: Sequence[str], order: Sequence[Place]) -> RecoveryError:
    now = ", ".join(str(each) for each in order)
    return RecoveryError(
        f"Flow '{checkpoint.flow}' reads other sources than its checkpoint is about, or in another order.",
        why=f"The checkpoint holds the offsets of {', '.join(kept)}; the flow now reads {now}. Sources are numbered in "
        "the order in which the transform reads them, and an input whose watermark has an `idle` has a second one for "
        "its heartbeats.",
        state="Nothing was started and nothing was written.",
        remedy="Restore the previous inputs and transform, or start the flow under a new name.",
        code="HR-343",
    )
