"""In which order Spark numbers the sources of a query.

It takes them in the order in which the plan reads them: the transform decides it, not the declaration, and the beats of
an input are a source of their own behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

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
