"""List the places that an erasure does not change: whether they contain the subject, and what removes it."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions as F
from pyspark.sql.types import StructType

from headrace.cdc.capture.catalogue import read_tables
from headrace.cdc.capture.declaration import captures
from headrace.cdc.capture.source_table import SourceTable
from headrace.cdc.reconcile.source_rows import row_exists
from headrace.clients.kafka import list_topics
from headrace.clients.postgres import database_of
from headrace.clients.topics import topic_retention
from headrace.errors import HeadraceError
from headrace.flow.flow import Flow
from headrace.flow.sink import WritesFolder, WritesTopic, leaf_sinks
from headrace.flow.target import Target
from headrace.operate.checkpoint.state import DEFAULT_STORE, state_stores
from headrace.operate.erase.subject import Subject, Texts
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.sources.kafka.source import KafkaSource

# Sinks that store nothing.
_SINKS_WITHOUT_STORAGE = ("console", "noop", "memory")

Answer = Literal["gone", "there", "unknown"]


@dataclass(frozen=True)
class ExternalPlace:
    """A place that the erasure does not change.

    | field   | meaning                                                                                        |
    |---------|------------------------------------------------------------------------------------------------|
    | holds   | `yes`: the subject was found; `no`: it was not found; `may`: not searched                      |
    | removes | what removes it                                                                                |
    """

    place: str
    holds: Literal["yes", "no", "may"]
    why: str
    removes: str

    def as_dict(self) -> dict[str, str]:
        """The place as the report has it."""
        return asdict(self)


@dataclass(frozen=True)
class SourceLookup:
    """A table in the source database, or the reason why the database did not answer."""

    database: str
    table: SourceTable | None
    why: str = ""


def source_tables(target: Target, flows: Sequence[Flow], name: str) -> list[SourceLookup]:
    """Look up a table in the captured databases, by its name or its full name."""
    schema, _, bare = name.rpartition(".")
    lookups = []
    for capture in dict.fromkeys(capture for flow in flows for capture in captures(flow.sink)):
        names = capture.selection.names
        if names and not any(table.rpartition(".")[2] == bare for table in names):
            continue
        try:
            tables = read_tables(database_of(target, capture.database), capture.selection)
        except HeadraceError as error:
            lookups.append(SourceLookup(capture.database, None, error.what))
            continue
        lookups += [
            SourceLookup(capture.database, table)
            for table in tables
            if table.name == bare and schema in ("", table.schema)
        ]
    return lookups


def row_in_source(target: Target, source: SourceLookup, subject: Subject) -> tuple[Answer, str]:
    """Return whether a source has the row, and the reason if that is unknown."""
    if source.table is None:
        return "unknown", source.why
    try:
        is_present = row_exists(database_of(target, source.database), source.table, subject.key)
    except HeadraceError as error:
        return "unknown", error.what
    return ("there" if is_present else "gone"), ""


def external_places(
    spark: SparkSession, target: Target, flows: Sequence[Flow], subject: Subject, texts: Texts
) -> Iterator[ExternalPlace]:
    """Yield the state of flows, topics, and sinks that are not Delta tables."""
    for flow in flows:
        yield from _state_places(spark, target, flow, subject, texts)
    yield from topic_places(target, flows)
    for flow in flows:
        for _, sink in leaf_sinks(flow.sink):
            if not isinstance(sink, WritesFolder | WritesTopic) and not sink.name.startswith(_SINKS_WITHOUT_STORAGE):
                yield ExternalPlace(
                    f"{sink.name}, written by flow '{flow.name}'",
                    "may",
                    "Headrace cannot change rows in this system.",
                    "Delete them there.",
                )


def _state_places(
    spark: SparkSession, target: Target, flow: Flow, subject: Subject, texts: Texts
) -> Iterator[ExternalPlace]:
    checkpoint = Checkpoint.of(flow.name, target, spark)
    store_keys = {(store.operator, store.name) for store in state_stores(checkpoint.files.sizes(checkpoint.location))}
    bounded = any(input_.watermark is not None for input_ in flow.named_inputs.values())
    restart = f"Start flow '{flow.name}' under a new name, that is with a new checkpoint, and delete the old one."
    expires = (
        f"The state drops it when the watermark has passed it: keep `headrace run {flow.name}` running until "
        f"`headrace checkpoint show {flow.name}` shows a later one; old files go 100 batches later. Sooner: "
    )
    for operator, name in sorted(store_keys):
        place = f"state of flow '{flow.name}', operator {operator}" + ("" if name == DEFAULT_STORE else f", {name}")
        reader = spark.read.format("statestore").option("operatorId", operator)
        reader = reader if name == DEFAULT_STORE else reader.option("storeName", name)
        removes = (expires if bounded else "") + restart
        try:
            rows = reader.load(checkpoint.location)
            count = _matching(rows.select(F.to_json(F.struct("*")).alias("text")), subject, texts)
        except PySparkException:
            yield ExternalPlace(place, "may", "Spark cannot read this state as rows.", removes)
            continue
        why = (
            f"{count} entries contain it: {_entry_contents(rows)}."
            if count
            else "The entries of the last batch do not contain it."
        )
        yield ExternalPlace(place, "yes" if count else "no", why, removes if count else "Nothing to do.")


def _entry_contents(rows: DataFrame) -> str:
    """Describe an entry of a state by the names of its columns."""
    kinds = {name: rows.schema[name].dataType for name in ("key", "value") if name in rows.columns}
    fields = {
        name: ", ".join(kind.names) for name, kind in kinds.items() if isinstance(kind, StructType) and kind.names
    }
    parts = [f"by {fields['key']}"] * ("key" in fields) + [f"with {fields['value']}"] * ("value" in fields)
    return " ".join(parts) or f"with {', '.join(rows.columns)}"


def _matching(rows: DataFrame, subject: Subject, texts: Texts) -> int:
    pattern = subject.payload_pattern(own=False)
    matches = F.lit(False) if pattern is None else F.col("text").rlike(pattern)
    for needle in texts.search_bytes:
        matches = matches | F.contains(F.col("text").cast("binary"), F.lit(bytearray(needle)))
    return rows.where(matches).count()


def topic_places(target: Target, flows: Sequence[Flow]) -> Iterator[ExternalPlace]:
    """Yield the topics that the flows read or write, with their retention."""
    sources = [input_.source for flow in flows for input_ in flow.named_inputs.values()]
    selections = [source.selection for source in sources if isinstance(source, KafkaSource)]
    written = {
        sink.written_topic() for flow in flows for _, sink in leaf_sinks(flow.sink) if isinstance(sink, WritesTopic)
    }
    if not selections and not written:
        return
    removes = "Wait for the topic's retention; in a compacted topic send a record with the key and no value."
    try:
        list_topics(target)
        retention_by_topic = topic_retention(
            target.kafka, lambda name: name in written or any(selection.reads(name) for selection in selections)
        )
    except HeadraceError as error:
        labels = sorted({selection.label for selection in selections} | written)
        yield ExternalPlace(f"topics {', '.join(labels)}", "may", f"Kafka was not asked. {error.what}", removes)
        return
    for name, retention in retention_by_topic.items():
        yield ExternalPlace(f"topic {name}", "may", retention, removes)
