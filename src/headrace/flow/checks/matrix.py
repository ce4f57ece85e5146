"""The compatibility matrix: which operators and sinks support which output modes and triggers, as data.

`headrace check` and every start use it, and `docs/levers/output-modes.md` is generated from it. What it refuses, Spark
refuses too, later and with less detail, or accepts and computes wrongly; each cell says which. A test runs every cell
on Spark.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from headrace.flow.checks.operators import AGGREGATIONS, Operator, OperatorKind
from headrace.flow.levers import OutputMode


class Compatibility(StrEnum):
    """Whether an operator works in an output mode, or under a trigger."""

    ALLOWED = "yes"
    WITH_AGGREGATION = "with an aggregation"
    """Only with a streaming aggregation, whose result complete mode writes."""
    WARNED = "warning"
    """It runs, with a surprising result."""
    REFUSED = "no"
    """Spark refuses it."""
    WRONG = "no, Spark would accept it"
    """Spark accepts it, and the result is wrong or the flow makes no progress."""


@dataclass(frozen=True)
class Cell:
    """One cell of the matrix: the verdict and, unless it is a plain yes, code, reason and remedy of the finding."""

    verdict: Compatibility
    code: str = ""
    reason: str = ""
    remedy: str = ""

    @property
    def stops(self) -> bool:
        """Whether a flow with this does not start."""
        return self.verdict in (Compatibility.REFUSED, Compatibility.WRONG)


def _unsupported(reason: str, remedy: str, code: str = "HRC-111") -> Cell:
    return Cell(Compatibility.REFUSED, code, reason, remedy)


def _incorrect_result(reason: str, remedy: str, code: str = "HRC-112") -> Cell:
    return Cell(Compatibility.WRONG, code, reason, remedy)


def _warn(code: str, reason: str, remedy: str) -> Cell:
    return Cell(Compatibility.WARNED, code, reason, remedy)


_ALLOWED = Cell(Compatibility.ALLOWED)
_NEEDS_AGGREGATION = Cell(
    Compatibility.WITH_AGGREGATION,
    "HRC-111",
    "Complete mode writes the complete result in every batch, and without an aggregation no state contains it.",
    "Set output_mode='append', or aggregate.",
)
_UNBOUNDED_KEYS = "Its state keeps every key forever."
_GROUPS_UNBOUNDED = _warn(
    "HRC-201", _UNBOUNDED_KEYS, "Group by a window of the watermark's column too, or keep it: few keys do no harm."
)
_NEVER_CLOSES = _unsupported(
    "Append mode emits a group when the watermark passes it. No key has a watermark, so no row would ever be emitted.",
    "Group by a window of the watermark's column and set watermark= on the Input; or use output_mode='update' with a "
    "sink that upserts.",
)
_COMPLETE_STATE = _warn(
    "HRC-205",
    "Complete mode keeps every group forever, regardless of the watermark.",
    "Use output_mode='update' with a sink that upserts, unless the groups are few.",
)
_SESSION_UPDATE = _unsupported(
    "Sessions grow and merge, so an update could not take back the shorter sessions it has written.",
    "Set output_mode='append'.",
)
_ADD_JOIN_BOUND = (
    "Set watermark= on both inputs and join on a bound such as `pay_time between order_time and order_time + "
    "interval 1 hour`."
)
_UNBOUNDED_OUTER_JOIN = _unsupported(
    "A row without a match is written when the watermark has passed the join bound, and this join has no bound.",
    _ADD_JOIN_BOUND,
)
_HALF_BOUNDED_FULL_JOIN = _incorrect_result(
    "A row without a match is written when the watermark has passed the join bound. Here only one side has a bound: "
    "rows of the other side stay in the state forever and are never written. Spark accepts the query.",
    _ADD_JOIN_BOUND,
)
_UNBOUNDED_SEMI_JOIN = _unsupported("Rows on the left would wait for a match forever.", _ADD_JOIN_BOUND)
_OUTER_APPEND_ONLY = _unsupported(
    "An update cannot take back a row that was written without a match.", "Set output_mode='append'."
)
_JOIN_COMPLETE = _unsupported(
    "A stream-stream join has no complete result that could be written.", "Set output_mode='append'."
)
_NO_EQUAL_KEY = _unsupported(
    "Streams are joined by the hash of a key, and this join compares no column for equality.",
    "Join on at least one equality, for instance `l.id = r.id`.",
)
_ANTI_JOIN = _unsupported(
    "Spark has no anti join with a stream on the right.",
    "Use a left outer join with watermark and time bound, and keep the rows whose right side is null.",
)
_OUTER_STATIC_JOIN = _unsupported(
    "Whether a static row has no match is known only at the end of a stream, and a stream has no end.",
    "Keep the rows of the stream: the stream on the left of a left join, or on the right of a right join.",
)
_DISTINCT = _unsupported(
    "Spark cannot keep exact distinct counts over batches.",
    "Use approx_count_distinct, or exact: size(collect_set(...)), or dropDuplicates before a count in append mode.",
)
_PANDAS_AGGREGATE = _unsupported(
    "Spark has no streaming aggregation by a pandas function; it reports this only when the first batch runs.",
    "Use Spark's own aggregate functions, or transformWithState.",
)
_NO_WATERMARK = _unsupported("It needs a watermark, and its rows have none.", "Set watermark= on the Input.")
_TIMERS_NEVER_FIRE = _incorrect_result(
    "Its timers need a watermark, and the input has none, so they never fire. Spark reports no error.",
    "Set watermark= on the Input.",
)
_STATE_AFTER_AGGREGATE = _unsupported(
    "Outside append mode an aggregation emits rows again with new values, and the next stateful operator would count "
    "each of them as another row.",
    "Set output_mode='append'; or write the first aggregation to a table and read it in a second flow.",
)
_DEDUP_AFTER_AGGREGATE = _incorrect_result(
    "dropDuplicates keeps the first value of a group and drops every later one. Spark accepts the query.",
    "Leave dropDuplicates out: update mode with a sink that upserts keeps one row per group.",
)
_CHAINED_PANDAS_STATE = _unsupported(
    "Spark does not support this function after an aggregation.",
    "Use transformWithState in append mode; or write the aggregation to a table and read it in a second flow.",
)
_AFTER_TIMEOUTS = _unsupported(
    "Rows from a timeout are older than the watermark, so the next stateful operator drops them as late.",
    "Use transformWithState; or write the first result to a table and read it in a second flow.",
)
_ONE_PER_QUERY = _unsupported(
    "Spark supports only one applyInPandasWithState per query.",
    "Put both into one function, or use transformWithState.",
)
_SORT = _unsupported(
    "A stream has no end, so its rows cannot be sorted.",
    "Sort where the rows are read; or sort an aggregation in complete mode.",
)
_LIMIT = _warn(
    "HRC-206",
    "A limit counts over all batches: after that many rows the flow emits nothing.",
    "Leave it out; to bound a batch, set the bound of the source.",
)
_LIMIT_UPDATE = _unsupported("In update mode it is undefined which rows a limit would keep.", "Leave it out.")
_OFFSET = _unsupported("A stream has no first rows to skip.", "Filter by a column instead.")
_SAMPLE = _unsupported("Spark does not sample streams.", "Filter by a hash: `where(hash(id) % 100 < 5)`.")
_ROW_WINDOW = _unsupported(
    "A window over rows would have to read all earlier rows again in every batch.",
    "Group by window() of the event time; for the newest row of a key use max_by, or a sink that upserts.",
)
_ROW_NUMBERS = _unsupported("Row numbers restart with every batch.", "Use an id of the event, or uuid().")
_STATIC_UNION = _unsupported(
    "It is undefined whether every batch or only one contains the static rows.", "Load them once, in a separate job."
)
_INTERSECT = _unsupported("Spark does not intersect streams.", "Join on the columns, with watermark and time bound.")
_USE_ANTI_JOIN = "Use a left anti join with the static table."
_EXCEPT = _unsupported(
    "Spark sees an aggregation without a watermark in it, and reports it when the first batch runs.", _USE_ANTI_JOIN
)
_EXCEPT_UPDATE = _incorrect_result("Each new matching row emits the rows of earlier batches again.", _USE_ANTI_JOIN)
_GROUP_OF_ONE_BATCH = _warn(
    "HRC-217",
    "The function sees the rows of a group in one batch, not the group: how rows fall into batches decides the result.",
    "Use transformWithState for groups that span batches, or an aggregation.",
)
_DEDUP_UNBOUNDED = _warn(
    "HRC-208",
    _UNBOUNDED_KEYS,
    "Use dropDuplicatesWithinWatermark, or add the watermark's column to the keys where copies carry the same time.",
)
_JOIN_UNBOUNDED = _warn(
    "HRC-208", "Both sides keep every row forever, because a match could still arrive.", _ADD_JOIN_BOUND
)
_JOIN_HALF_UNBOUNDED = _warn(
    "HRC-208",
    "One side keeps every row forever, because a match could still arrive: the join bound is open at one end, so "
    "only the rows of the other side expire.",
    _ADD_JOIN_BOUND,
)

_FUNCTION_UPDATES = _unsupported(
    "The function's output mode is update, the flow's is another.", "Set both to the same mode."
)
_FUNCTION_APPENDS = Cell(
    Compatibility.WITH_AGGREGATION,
    "HRC-111",
    "The function's output mode is append, the flow's is another.",
    "Set both to the same mode, or aggregate after the function.",
)
_AGGREGATED_UPDATES = _unsupported(
    "Rows that replace earlier rows would be counted as additional rows.", "Set the function's mode to append."
)

# By operator: append, update, complete.
MODES: Mapping[OperatorKind, tuple[Cell, Cell, Cell]] = {
    OperatorKind.PROJECTION: (_ALLOWED, _ALLOWED, _NEEDS_AGGREGATION),
    OperatorKind.EXPLODE: (_ALLOWED, _ALLOWED, _NEEDS_AGGREGATION),
    OperatorKind.UNION: (_ALLOWED, _ALLOWED, _NEEDS_AGGREGATION),
    OperatorKind.READ_TWICE: (_ALLOWED, _ALLOWED, _NEEDS_AGGREGATION),
    OperatorKind.PYTHON: (_ALLOWED, _ALLOWED, _NEEDS_AGGREGATION),
    OperatorKind.PYTHON_MAP: (_ALLOWED, _ALLOWED, _NEEDS_AGGREGATION),
    OperatorKind.GROUPED_PYTHON: (_GROUP_OF_ONE_BATCH, _GROUP_OF_ONE_BATCH, _NEEDS_AGGREGATION),
    OperatorKind.REPARTITION: (_ALLOWED, _ALLOWED, _NEEDS_AGGREGATION),
    OperatorKind.CURRENT_TIME: (_ALLOWED, _ALLOWED, _NEEDS_AGGREGATION),
    OperatorKind.STATIC_JOIN: (_ALLOWED, _ALLOWED, _NEEDS_AGGREGATION),
    OperatorKind.BROADCAST_JOIN: (_ALLOWED, _ALLOWED, _NEEDS_AGGREGATION),
    OperatorKind.OTHER: (_ALLOWED, _ALLOWED, _NEEDS_AGGREGATION),
    OperatorKind.AGGREGATE: (_ALLOWED, _ALLOWED, _COMPLETE_STATE),
    OperatorKind.AGGREGATE_UNBOUNDED: (_NEVER_CLOSES, _GROUPS_UNBOUNDED, _ALLOWED),
    OperatorKind.SESSION: (_ALLOWED, _SESSION_UPDATE, _COMPLETE_STATE),
    OperatorKind.SESSION_UNBOUNDED: (_NEVER_CLOSES, _SESSION_UPDATE, _ALLOWED),
    OperatorKind.DISTINCT_AGGREGATE: (_DISTINCT, _DISTINCT, _DISTINCT),
    OperatorKind.PANDAS_AGGREGATE: (_PANDAS_AGGREGATE, _PANDAS_AGGREGATE, _PANDAS_AGGREGATE),
    OperatorKind.DEDUP: (_ALLOWED, _ALLOWED, _NEEDS_AGGREGATION),
    OperatorKind.DEDUP_UNBOUNDED: (_DEDUP_UNBOUNDED, _DEDUP_UNBOUNDED, _NEEDS_AGGREGATION),
    OperatorKind.DEDUP_WITHIN: (_ALLOWED, _ALLOWED, _NEEDS_AGGREGATION),
    OperatorKind.DEDUP_WITHIN_UNBOUNDED: (_NO_WATERMARK, _NO_WATERMARK, _NO_WATERMARK),
    OperatorKind.INNER_JOIN: (_ALLOWED, _ALLOWED, _JOIN_COMPLETE),
    OperatorKind.INNER_JOIN_HALF_BOUNDED: (_JOIN_HALF_UNBOUNDED, _JOIN_HALF_UNBOUNDED, _JOIN_COMPLETE),
    OperatorKind.INNER_JOIN_UNBOUNDED: (_JOIN_UNBOUNDED, _JOIN_UNBOUNDED, _JOIN_COMPLETE),
    OperatorKind.SEMI_JOIN: (_ALLOWED, _ALLOWED, _JOIN_COMPLETE),
    OperatorKind.SEMI_JOIN_HALF_BOUNDED: (_JOIN_HALF_UNBOUNDED, _JOIN_HALF_UNBOUNDED, _JOIN_COMPLETE),
    OperatorKind.SEMI_JOIN_UNBOUNDED: (_UNBOUNDED_SEMI_JOIN, _UNBOUNDED_SEMI_JOIN, _JOIN_COMPLETE),
    OperatorKind.OUTER_JOIN: (_ALLOWED, _OUTER_APPEND_ONLY, _JOIN_COMPLETE),
    OperatorKind.OUTER_JOIN_HALF_BOUNDED: (_JOIN_HALF_UNBOUNDED, _OUTER_APPEND_ONLY, _JOIN_COMPLETE),
    OperatorKind.FULL_JOIN_HALF_BOUNDED: (_HALF_BOUNDED_FULL_JOIN, _OUTER_APPEND_ONLY, _JOIN_COMPLETE),
    OperatorKind.OUTER_JOIN_UNBOUNDED: (_UNBOUNDED_OUTER_JOIN, _OUTER_APPEND_ONLY, _JOIN_COMPLETE),
    OperatorKind.ANTI_JOIN: (_ANTI_JOIN, _ANTI_JOIN, _JOIN_COMPLETE),
    OperatorKind.KEYLESS_JOIN: (_NO_EQUAL_KEY, _NO_EQUAL_KEY, _JOIN_COMPLETE),
    OperatorKind.OUTER_STATIC_JOIN: (_OUTER_STATIC_JOIN, _OUTER_STATIC_JOIN, _OUTER_STATIC_JOIN),
    OperatorKind.CUSTOM_STATE: (_ALLOWED, _ALLOWED, _NEEDS_AGGREGATION),
    OperatorKind.CUSTOM_TIMERS_WITHOUT_WATERMARK: (_TIMERS_NEVER_FIRE, _TIMERS_NEVER_FIRE, _TIMERS_NEVER_FIRE),
    OperatorKind.PANDAS_STATE_APPEND: (_ALLOWED, _FUNCTION_APPENDS, _FUNCTION_APPENDS),
    OperatorKind.PANDAS_STATE_UPDATE: (_FUNCTION_UPDATES, _ALLOWED, _FUNCTION_UPDATES),
    OperatorKind.PANDAS_STATE_WITHOUT_WATERMARK: (_NO_WATERMARK, _NO_WATERMARK, _NO_WATERMARK),
    OperatorKind.PANDAS_STATE_TWICE: (_ONE_PER_QUERY, _ONE_PER_QUERY, _ONE_PER_QUERY),
    OperatorKind.PANDAS_STATE_AFTER_AGGREGATE: (_CHAINED_PANDAS_STATE, _CHAINED_PANDAS_STATE, _CHAINED_PANDAS_STATE),
    OperatorKind.PANDAS_UPDATES_AGGREGATED: (_AGGREGATED_UPDATES, _AGGREGATED_UPDATES, _AGGREGATED_UPDATES),
    OperatorKind.STATE_AFTER_AGGREGATE: (_ALLOWED, _STATE_AFTER_AGGREGATE, _STATE_AFTER_AGGREGATE),
    OperatorKind.DEDUP_AFTER_AGGREGATE: (_ALLOWED, _DEDUP_AFTER_AGGREGATE, _DEDUP_AFTER_AGGREGATE),
    OperatorKind.STATE_AFTER_TIMEOUTS: (_AFTER_TIMEOUTS, _AFTER_TIMEOUTS, _AFTER_TIMEOUTS),
    OperatorKind.SORT: (_SORT, _SORT, _ALLOWED),
    OperatorKind.SORT_ROWS: (_SORT, _SORT, _SORT),
    OperatorKind.LIMIT: (_LIMIT, _LIMIT_UPDATE, _NEEDS_AGGREGATION),
    OperatorKind.OFFSET: (_OFFSET, _OFFSET, _OFFSET),
    OperatorKind.SAMPLE: (_SAMPLE, _SAMPLE, _SAMPLE),
    OperatorKind.ROW_WINDOW: (_ROW_WINDOW, _ROW_WINDOW, _ROW_WINDOW),
    OperatorKind.ROW_NUMBERS: (_ROW_NUMBERS, _ROW_NUMBERS, _ROW_NUMBERS),
    OperatorKind.STATIC_UNION: (_STATIC_UNION, _STATIC_UNION, _STATIC_UNION),
    OperatorKind.INTERSECT: (_INTERSECT, _INTERSECT, _INTERSECT),
    OperatorKind.EXCEPT: (_EXCEPT, _EXCEPT_UPDATE, _EXCEPT),
}

_USE_BATCHES = "use Every, AvailableNow or AsFastAsPossible."
_NO_STATE = _unsupported(
    "This trigger supports no state: it processes each row separately.",
    f"Do it in a second flow that reads the topic, or {_USE_BATCHES}",
    "HRC-113",
)
_NO_SHUFFLE = _unsupported(
    "This trigger has no shuffle: tasks do not exchange rows.", f"Leave it out, or {_USE_BATCHES}", "HRC-113"
)
_NOT_SUPPORTED = _unsupported(
    "Spark does not support it under this trigger.", f"Leave it out, or {_USE_BATCHES}", "HRC-113"
)
_PYTHON_LATENCY = _warn(
    "HRC-218",
    "Rows wait for the end of an epoch before a Python function: their latency is the interval of the trigger, not "
    "milliseconds.",
    f"Write it with Spark's own functions, or {_USE_BATCHES}",
)
_PYTHON_REFUSED = _unsupported(
    "Real-time mode does not support Python functions.",
    f"Write it with Spark's own functions, or {_USE_BATCHES}",
    "HRC-113",
)
_BROADCAST = _incorrect_result(
    "A static table has to be broadcast under this trigger. Spark broadcasts it while it is small, and stops the flow "
    "when it has grown.",
    f"Wrap the static table in F.broadcast(...) and join on an equal column, or {_USE_BATCHES}",
    "HRC-113",
)
_BATCH_START_TIME = _warn(
    "HRC-219",
    "It is the start time of the batch, and under this trigger a batch is as long as the interval of the trigger.",
    "Use the timestamp of the record, or let the reader add the time.",
)
_INPUT_READ_TWICE = _unsupported(
    "Real-time mode supports reading an input only once.",
    f"Read the rows of both in one pass, for instance by explode, or {_USE_BATCHES}",
    "HRC-113",
)

# By operator: continuous, real-time. An operator that is not listed needs state, or a shuffle.
TRIGGERS: Mapping[OperatorKind, tuple[Cell, Cell]] = {
    OperatorKind.PROJECTION: (_ALLOWED, _ALLOWED),
    OperatorKind.EXPLODE: (_NOT_SUPPORTED, _ALLOWED),
    OperatorKind.UNION: (_NOT_SUPPORTED, _ALLOWED),
    OperatorKind.READ_TWICE: (_NOT_SUPPORTED, _INPUT_READ_TWICE),
    OperatorKind.PYTHON: (_PYTHON_LATENCY, _PYTHON_REFUSED),
    OperatorKind.PYTHON_MAP: (_NOT_SUPPORTED, _PYTHON_REFUSED),
    OperatorKind.GROUPED_PYTHON: (_NO_SHUFFLE, _NO_SHUFFLE),
    OperatorKind.REPARTITION: (_NO_SHUFFLE, _NO_SHUFFLE),
    OperatorKind.CURRENT_TIME: (_NOT_SUPPORTED, _BATCH_START_TIME),
    OperatorKind.STATIC_JOIN: (_NOT_SUPPORTED, _BROADCAST),
    OperatorKind.BROADCAST_JOIN: (_NOT_SUPPORTED, _ALLOWED),
    OperatorKind.OTHER: (_NOT_SUPPORTED, _NOT_SUPPORTED),
}

_APPENDED = (
    "Rows are appended and never changed, so each update of a row, or each complete result, would be added to the "
    "earlier ones."
)
_REPLACED = "The table is replaced by each batch, so only the rows of the last one would be left."
_UPSERTED = (
    "Rows are written by key, so a group that is no longer in the result would remain, and all others would be "
    "written again."
)
_CHANGES = (
    "Its rows are changes of a source, each applied once and in the order of the source's log, so a row that replaces "
    "an earlier one would be an additional change."
)

# By the class of a sink: why it does not support an output mode, and which sink does.
SINKS: Mapping[str, tuple[str, Mapping[OutputMode, str]]] = {
    "DeltaAppend": (_APPENDED, {OutputMode.UPDATE: "DeltaUpsert", OutputMode.COMPLETE: "DeltaOverwrite"}),
    "FileSink": (_APPENDED, {OutputMode.UPDATE: "DeltaUpsert", OutputMode.COMPLETE: "DeltaOverwrite"}),
    "DeltaOverwrite": (_REPLACED, {OutputMode.APPEND: "DeltaAppend", OutputMode.UPDATE: "DeltaUpsert"}),
    "DeltaUpsert": (_UPSERTED, {OutputMode.COMPLETE: "DeltaOverwrite"}),
    "DeltaRollUps": (_UPSERTED, {OutputMode.COMPLETE: "DeltaOverwrite"}),
    "DeltaEnriched": (_APPENDED, {OutputMode.UPDATE: "DeltaUpsert", OutputMode.COMPLETE: "DeltaOverwrite"}),
    "DeltaCdc": (_CHANGES, {OutputMode.UPDATE: "DeltaUpsert", OutputMode.COMPLETE: "DeltaOverwrite"}),
    "JdbcUpsert": (_UPSERTED, {OutputMode.COMPLETE: "DeltaOverwrite"}),
    "Rest": (_UPSERTED, {OutputMode.COMPLETE: "DeltaOverwrite"}),
}


def sink_cell(name: str, mode: OutputMode, supported: frozenset[OutputMode]) -> Cell:
    """Return the cell of a sink class in an output mode; `supported` are the modes of the sink."""
    if mode in supported:
        return _ALLOWED
    modes = " or ".join(sorted(supported))
    reason, others = SINKS.get(name, ("", {}))
    other = f"write to {others[mode]}" if mode in others else f"choose a sink that supports {mode}"
    return _unsupported(
        f"The sink supports {modes}, and the flow writes in {mode} mode. {reason}".strip(),
        f"Set output_mode to {modes}, or {other}.",
        "HRC-104",
    )


def cells_in_mode(operators: Sequence[Operator], mode: OutputMode) -> list[tuple[Operator, Cell]]:
    """Return the operators that the mode does not fully support, each with its cell."""
    has_aggregation = any(operator.kind in AGGREGATIONS for operator in operators)
    column = list(OutputMode).index(mode)
    cells = []
    for operator in operators:
        cell = MODES[operator.kind][column]
        if cell.verdict is Compatibility.ALLOWED or (
            cell.verdict is Compatibility.WITH_AGGREGATION and has_aggregation
        ):
            continue
        if cell.verdict is Compatibility.WITH_AGGREGATION:
            cell = replace(cell, verdict=Compatibility.REFUSED)
        cells.append((operator, cell))
    return cells


def trigger_compatibility(kind: OperatorKind) -> tuple[Cell, Cell]:
    """Return the cells of a kind of operator for continuous processing and real-time mode."""
    return TRIGGERS.get(kind, (_NO_STATE, _NO_STATE))


def cells_under_trigger(operators: Sequence[Operator], *, real_time: bool) -> list[tuple[Operator, Cell]]:
    """Return the operators that continuous processing, or real-time mode, does not fully support."""
    cells = ((operator, trigger_compatibility(operator.kind)[int(real_time)]) for operator in operators)
    return [(operator, cell) for operator, cell in cells if cell.verdict is not Compatibility.ALLOWED]
