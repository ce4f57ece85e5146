"""Session settings for custom state, chosen from the query plan before the query starts.

**Encoding.** Spark's default encoding fixes the fields of the state for the life of a checkpoint. Avro allows added and
removed fields. Spark supports Avro for custom state only, and refuses a query with any other stateful operator. The
first batch pins the encoding in the checkpoint: a later setting has no effect.

**AvailableNow.** With timers or a TTL in processing time Spark requests another batch after every batch, so an
`AvailableNow` flow would never end. It gets no batches without new rows: due timers fire in the next run.
"""

from pyspark.sql import DataFrame, SparkSession

from headrace.clients.spark.jvm import analyzed_plan
from headrace.flow.levers import AvailableNow, Trigger
from headrace.spark_plan import tree
from headrace.spark_plan.nodes import CUSTOM_STATE, NODES

_ENCODING = "spark.sql.streaming.stateStore.encodingFormat"
_BATCHES_WITHOUT_ROWS = "spark.sql.streaming.noDataMicroBatches.enabled"


def configure_custom_state(session: SparkSession, result: DataFrame, trigger: Trigger) -> None:
    """Set what the custom state of a result needs. Called once per start of a flow, before the query is made."""
    nodes = list(tree.nodes(analyzed_plan(result)))
    custom = [node for node in nodes if tree.node_name(node) in CUSTOM_STATE]
    others = {tree.node_name(node) for node in nodes}.difference(CUSTOM_STATE)
    if custom and all(name in NODES and NODES[name].state is None for name in others):
        session.conf.set(_ENCODING, "avro")
    uses_processing_time = any(node.timeMode().toString() == "ProcessingTime" for node in custom)
    if uses_processing_time and isinstance(trigger, AvailableNow):
        session.conf.set(_BATCHES_WITHOUT_ROWS, "false")
