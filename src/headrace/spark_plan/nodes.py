"""The nodes of Spark's logical plans: which operator each one is, and whether it has state in a stream.

This is the only list of stateful nodes. The check of operators, the late filters and the settings of custom state
read it. A node that is not listed may have state.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.flow.checks.operators import OperatorKind


@dataclass(frozen=True)
class NodeType:
    """One kind of node.

    | field | meaning                                                                              |
    |-------|--------------------------------------------------------------------------------------|
    | kind  | the operator; None if it depends on the keys, the watermark or the children          |
    | state | what its state is for, in words; None for a node without state                       |
    """

    kind: OperatorKind | None = None
    state: str | None = None


# Nodes of custom state, by `transformWithState`, and by the functions before it.
CUSTOM_STATE = ("TransformWithState", "TransformWithStateInPySpark")
GROUP_STATE = ("FlatMapGroupsInPandasWithState", "FlatMapGroupsWithState")

NODES: Mapping[str, NodeType] = {
    **dict.fromkeys(("LocalRelation", "StreamingRelation", "StreamingRelationV2"), NodeType(OperatorKind.PROJECTION)),
    **dict.fromkeys(("Project", "Filter", "TypedFilter", "SubqueryAlias"), NodeType(OperatorKind.PROJECTION)),
    **dict.fromkeys(("EventTimeWatermark", "CollectMetrics"), NodeType(OperatorKind.PROJECTION)),
    **dict.fromkeys(("View", "ResolvedHint"), NodeType(OperatorKind.PROJECTION)),
    **dict.fromkeys(("Generate", "Expand"), NodeType(OperatorKind.EXPLODE)),
    **dict.fromkeys(
        ("Repartition", "RepartitionByExpression", "RebalancePartitions"), NodeType(OperatorKind.REPARTITION)
    ),
    **dict.fromkeys(("MapInPandas", "MapInArrow"), NodeType(OperatorKind.PYTHON_MAP)),
    **dict.fromkeys(("FlatMapGroupsInPandas", "FlatMapGroupsInArrow"), NodeType(OperatorKind.GROUPED_PYTHON)),
    **dict.fromkeys(("FlatMapCoGroupsInPandas", "FlatMapCoGroupsInArrow"), NodeType(OperatorKind.GROUPED_PYTHON)),
    "Union": NodeType(),
    "Offset": NodeType(OperatorKind.OFFSET),
    "Sample": NodeType(OperatorKind.SAMPLE),
    "Window": NodeType(OperatorKind.ROW_WINDOW),
    **dict.fromkeys(("Intersect", "Intersect All"), NodeType(OperatorKind.INTERSECT)),
    **dict.fromkeys(("Except", "Except All"), NodeType(OperatorKind.EXCEPT)),
    "LocalLimit": NodeType(OperatorKind.LIMIT),
    "GlobalLimit": NodeType(OperatorKind.LIMIT, "limit"),
    "Aggregate": NodeType(state="aggregation"),
    **dict.fromkeys(("Distinct", "Deduplicate", "DeduplicateWithinWatermark"), NodeType(state="deduplication")),
    # Only if both sides are streams.
    "Join": NodeType(state="join"),
    **dict.fromkeys((*CUSTOM_STATE, *GROUP_STATE), NodeType(state="custom state")),
}
