"""Places of a subject that an erasure does not change: what is known of each, and what removes the subject from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from headrace.cdc.capture.catalogue import read_tables
from headrace.cdc.capture.source_table import SourceTable
from headrace.cdc.reconcile.source_row import row_exists
from headrace.clients.kafka import list_topics
from headrace.clients.postgres import database_of
from headrace.clients.storage import file_store
from headrace.clients.topic_retention import topic_retention
from headrace.errors import HeadraceError
from headrace.flow.flow import Flow
from headrace.flow.sink import WritesFolder, WritesTopic, leaf_sinks
from headrace.flow.target import Target
from headrace.operate.checkpoint.state import DEFAULT, stores
from headrace.operate.erase.places import captures
from headrace.operate.erase.subject import Subject, Texts
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.sources.kafka.source import KafkaSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Sinks that keep nothing.
_KEEPS_NOTHING = ("console", "noop", "memory")

Answer = Literal["gone", "there", "unknown"]


@dataclass(frozen=True)
class Beyond:
    """A place that was not changed.

    | field   | meaning                                                                                        |
    |---------|------------------------------------------------------------------------------------------------|
    | holds   | `yes`: the subject was found there; `no`: it was looked for; `may`: nobody looked              |
    | removes | what removes it                                                                                |
    """

    place: str
    holds: Literal["yes", "no", "may"]
    why: str
    removes: str

    def as_dict(self) -> dict[str, str]:
        """The place as the report holds it."""
        return asdict(self)


@dataclass(frozen=True)
class Source:
    """What the source database says of a table: the table itself, and why nothing is known where it does not answer."""

    database: str
    table: SourceTable | None
    why: str = ""


def sources(target: Target, flows: Sequence[Flow], name: str) -> list[Source]:
    """Ask the databases of captures for a table, by its name or its full name."""
    schema, _, bare = name.rpartition(".")
    found = []
    for capture in dict.fromkeys(captures(flows)):
        names = capture.selection.names
        if names and not any(each.rpartition(".")[2] == bare for each in names):
            continue
        try:
            known = read_tables(database_of(target, capture.database), capture.selection)
        except HeadraceError as error:
            found.append(Source(capture.database, None, error.what))
            continue
        found += [Source(capture.database, each) for each in known if each.name == bare and schema in ("", each.schema)]
    return found


def in_source(target: Target, source: Source, subject: Subject) -> tuple[Answer, str]:
    """Return whether a source holds the row, and why that is not known where it is not."""
    if source.table is None:
        return "unknown", source.why
    try:
        there = row_exists(database_of(target, source.database), source.table, subject.key)
    except HeadraceError as error:
        return "unknown", error.what
    return ("there" if there else "gone"), ""


def beyond(
    spark: SparkSession, target: Target, flows: Sequence[Flow], subject: Subject, texts: Texts
) -> Iterator[Beyond]:
    """Yield the state of flows, topics, and sinks that are no Delta tables."""
    for flow in flows:
        yield from _state(spark, target, flow, subject, texts)
    yield from _topics(target, flows)
    for flow in flows:
        for _, sink in leaf_sinks(flow.sink):
            if not isinstance(sink, WritesFolder | WritesTopic) and not sink.name.startswith(_KEEPS_NOTHING):
                yield Beyond(
                    f"{sink.name}, written by flow '{flow.name}'",
                    "may",
                    "Rows that were handed on are not Headrace's to change.",
                    "Delete them there.",
                )


def _state(spark: SparkSession, target: Target, flow: Flow, subject: Subject, texts: Texts) -> Iterator[Beyond]:
    checkpoint = Checkpoint.of(flow.name, target, file_store(target.checkpoints, spark))
    found = {(store.operator, store.name) for store in stores(checkpoint.files.sizes(checkpoint.location))}
    bounded = any(given.watermark is not None for given in flow.named_inputs.values())
    anew = f"Start flow '{flow.name}' under a new name, that is with a new checkpoint, and delete the old one."
    expires = (
        f"The state lets go of it when the watermark has passed it: let `headrace run {flow.name}` go on until "
        f"`headrace checkpoint show {flow.name}` tells a later one; old files go 100 batches later. Sooner: "
    )
    for operator, name in sorted(found):
        place = f"state of flow '{flow.name}', operator {operator}" + ("" if name == DEFAULT else f", {name}")
        reader = spark.read.format("statestore").option("operatorId", operator)
        reader = reader if name == DEFAULT else reader.option("storeName", name)
        removes = (expires if bounded else "") + anew
        try:
            rows = reader.load(checkpoint.location)
            count = _matching(rows.select(F.to_json(F.struct("*")).alias("text")), subject, texts)
        except PySparkException:
            yield Beyond(place, "may", "Spark cannot read this state as rows.", removes)
            continue
        why = f"{count} entries hold it: {_held(rows)}." if count else "The entries of the last batch do not hold it."
        yield Beyond(place, "yes" if count else "no", why, removes if count else "Nothing is to be done.")


def _held(rows: DataFrame) -> str:
    """Say what an entry of a state is, by the names of its columns."""
    kinds = {name: rows.schema[name].dataType for name in ("key", "value") if name in rows.columns}
    named = {name: ", ".join(kind.names) for name, kind in kinds.items() if isinstance(kind, StructType) and kind.names}
    parts = [f"by {named['key']}"] * ("key" in named) + [f"with {named['value']}"] * ("value" in named)
    return " ".join(parts) or f"with {', '.join(rows.columns)}"


def _matching(rows: DataFrame, subject: Subject, texts: Texts) -> int:
    pattern = subject.in_payloads(own=False)
    held = F.lit(False) if pattern is None else F.col("text").rlike(pattern)
    for needle in texts.needles:
        held = held | F.contains(F.col("text").cast("binary"), F.lit(bytearray(needle)))
    return rows.where(held).count()


def _topics(target: Target, flows: Sequence[Flow]) -> Iterator[Beyond]:
    read = [each.source for flow in flows for each in flow.named_inputs.values()]
    patterns = [source.selection for source in read if isinstance(source, KafkaSource)]
    written = {sink.topic for flow in flows for _, sink in leaf_sinks(flow.sink) if isinstance(sink, WritesTopic)}
    if not patterns and not written:
        return
    removes = "Wait for the topic's retention; in a compacted topic send a record with the key and no value."
    try:
        list_topics(target)
        kept = topic_retention(target.kafka, lambda name: name in written or any(each.reads(name) for each in patterns))
    except HeadraceError as error:
        labels = sorted({each.label for each in patterns} | written)
        yield Beyond(f"topics {', '.join(labels)}", "may", f"Kafka was not asked. {error.what}", removes)
        return
    for name, words in kept.items():
        yield Beyond(f"topic {name}", "may", f"Records are {words}." if "kept" in words else f"It is {words}.", removes)
