"""How the state of a flow is encoded: so that the dataclass of a custom state can gain fields where that is possible.

Spark's usual encoding fixes the fields of the state for the life of a checkpoint. Avro lets it gain and lose fields.
Spark has Avro for custom state only, and refuses a query in which anything else keeps state beside it. The encoding is
frozen into the checkpoint by the first batch: a later setting changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject
    from pyspark.sql import DataFrame, SparkSession

_ENCODING = "spark.sql.streaming.stateStore.encodingFormat"
_CUSTOM_STATE = "TransformWithStateInPySpark"

# What keeps no state, as far as flows are made of it. A node that is not named here may keep some.
_STATELESS = {
    "CollectMetrics",
    "EventTimeWatermark",
    "Filter",
    "Generate",
    "LocalRelation",
    "MapInArrow",
    "MapInPandas",
    "Project",
    "StreamingRelation",
    "StreamingRelationV2",
    "SubqueryAlias",
    "Union",
}


def encode_state(session: SparkSession, result: DataFrame) -> None:
    """Set the encoding of the state in the session of a flow. Called once per start, before the query is made."""
    kinds = {node.getClass().getSimpleName() for node in _nodes(result._jdf.queryExecution().analyzed())}
    if _CUSTOM_STATE in kinds and kinds <= _STATELESS | {_CUSTOM_STATE}:
        session.conf.set(_ENCODING, "avro")


def _nodes(plan: JavaObject) -> Iterator[JavaObject]:
    yield plan
    children = plan.children()
    for index in range(children.size()):
        yield from _nodes(children.apply(index))
