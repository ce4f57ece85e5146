"""Finds the order in which Spark numbers the sources of a query.

Spark numbers them in the order of the plan: the transform decides it, not the declaration. The idle ticks of an input
are a separate source after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from py4j.java_gateway import JavaObject, JVMView
from pyspark.sql import DataFrame

from headrace.clients.spark.jvm import analyzed_plan, jvm_of
from headrace.spark_plan import tree

# The plan nodes of sources (version 1 and 2, such as Kafka), with the property that identifies the source.
_SOURCE_NODES = {"StreamingRelation": "dataSource", "StreamingRelationV2": "table"}


@dataclass(frozen=True)
class PlannedSource:
    """One source of the plan: the rows of an input, or its idle ticks (role `idle ticks`)."""

    input: str
    source: str
    role: Literal["rows", "idle ticks"] = "rows"

    def __str__(self) -> str:
        return f"{self.source} ({self.input})" if self.role == "rows" else f"idle ticks of {self.input}"

    def is_same(self, other: PlannedSource) -> bool:
        """Whether it is the same source, even if either the input or the source was renamed."""
        return self.role == other.role and (self.input == other.input or self.source == other.source)


def plan_source_order(result: DataFrame, sources: Mapping[PlannedSource, DataFrame]) -> tuple[PlannedSource, ...]:
    """Return the sources of a plan in Spark's order. `sources` has the DataFrame that each source returned."""
    jvm = jvm_of(result.sparkSession)
    sources_by_identity = {
        _source_identity(jvm, leaf): source
        for source, frame in sources.items()
        for leaf in _source_nodes(analyzed_plan(frame))
    }
    numbered: list[JavaObject] = []
    for leaf in _source_nodes(analyzed_plan(result)):
        # A relation that is read twice in the plan is one source.
        if not any(leaf.equals(other) for other in numbered):
            numbered.append(leaf)
    return tuple(
        sources_by_identity.get(_source_identity(jvm, leaf), PlannedSource("", "a stream of the transform's own"))
        for leaf in numbered
    )


def _source_nodes(plan: JavaObject) -> Iterator[JavaObject]:
    """Return the streams of a plan in Spark's order."""
    return (node for node in tree.nodes(plan) if tree.node_name(node) in _SOURCE_NODES)


def _source_identity(jvm: JVMView, leaf: JavaObject) -> int:
    """Return the identity of the object that a relation reads. Copies of the relation share it."""
    source = getattr(leaf, _SOURCE_NODES[tree.node_name(leaf)])()
    return int(jvm.java.lang.System.identityHashCode(source))
