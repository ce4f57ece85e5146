"""What custom state asks of the session of its flow, read from the plan before the query is made.

**Encoding.** Spark's usual encoding fixes the fields of the state for the life of a checkpoint. Avro lets it gain and
lose fields. Spark has Avro for custom state only, and refuses a query in which anything else keeps state beside it. The
encoding is frozen into the checkpoint by the first batch: a later setting changes nothing.

**An end.** With timers or a TTL in processing time Spark asks for one more batch after every batch, for ever. A flow
that reads what is there and stops would never stop. It gets no batches without new rows: timers that come meanwhile
come with the next run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from headrace.flow.levers import AvailableNow, Trigger

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject
    from pyspark.sql import DataFrame, SparkSession

_ENCODING = "spark.sql.streaming.stateStore.encodingFormat"
_BATCHES_WITHOUT_ROWS = "spark.sql.streaming.noDataMicroBatches.enabled"
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


def prepare_custom_state(session: SparkSession, result: DataFrame, trigger: Trigger) -> None:
    """Set what the custom state of a result needs. Called once per start of a flow, before the query is made."""
    nodes = list(_nodes(result._jdf.queryExecution().analyzed()))
    custom = [node for node in nodes if _kind(node) == _CUSTOM_STATE]
    if custom and {_kind(node) for node in nodes} <= _STATELESS | {_CUSTOM_STATE}:
        session.conf.set(_ENCODING, "avro")
    by_the_clock = any(node.timeMode().toString() == "ProcessingTime" for node in custom)
    if by_the_clock and isinstance(trigger, AvailableNow):
        session.conf.set(_BATCHES_WITHOUT_ROWS, "false")


def _kind(node: JavaObject) -> str:
    return str(node.getClass().getSimpleName())


def _nodes(plan: JavaObject) -> Iterator[JavaObject]:
    yield plan
    children = plan.children()
    for index in range(children.size()):
        yield from _nodes(children.apply(index))
