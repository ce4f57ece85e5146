"""Guards the sources of a flow against lost rows and recreated topics, and watches the captures that fill its topics.

When Kafka can lose rows, and what happens then:

| when                                   | detected by              | loss not accepted      | loss accepted           |
|----------------------------------------|--------------------------|------------------------|-------------------------|
| while the flow is down, or lags behind | offsets, before a batch  | Spark stops it: HR-502 | recorded as lost        |
| while a batch is read                  | offsets, after the batch | Spark stops it: HR-502 | recorded as may be lost |
| a topic or a partition is deleted      | ids, offsets             | HR-506                 | recorded, end unknown   |
| a topic is recreated                   | ids                      | HR-311                 | HR-311                  |
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from pyspark.sql import SparkSession

from headrace.errors import HeadraceError, KafkaDataLoss, TopicNotFound, Transient
from headrace.flow.flow import Flow
from headrace.flow.sink import WatchesCapture, leaf_sinks
from headrace.flow.source import CanLoseRows, MissingOffsets, SourceMonitor
from headrace.flow.target import Target
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.checkpoint.lost_offsets import LossKind, LostOffsets, LostRange
from headrace.runtime.checkpoint.source_order import source_index
from headrace.runtime.checkpoint.topic_identity import AcceptedTopic, TopicIdentities
from headrace.runtime.continuous import is_continuous
from headrace.runtime.events import CaptureUnhealthy, OffsetsLost
from headrace.runtime.guards.guard import Attempt, Guard, Progress, Stop

# The maximum number of ranges in a message: a topic may have hundreds of partitions.
_MAX_RANGES = 8


class SourceGuard(Guard):
    """The source guard of one run: topics that are recreated, and offsets that are lost."""

    def __init__(
        self, flow: Flow, target: Target, checkpoint: Checkpoint, on_event: Callable[[OffsetsLost], None], stop: Stop
    ) -> None:
        self._flow, self._target, self._checkpoint, self._on_event = flow, target, checkpoint, on_event
        self._stop = stop
        self._sources: dict[str, CanLoseRows] = {
            name: input_.source for name, input_ in flow.named_inputs.items() if isinstance(input_.source, CanLoseRows)
        }
        self._lost = LostOffsets(checkpoint)
        # The last batch that may be in the sinks: the unfinished batch of an earlier run, then each batch of this run.
        self._maybe_written = checkpoint.unfinished_batch() if self._sources else None
        self._watches: dict[str, SourceMonitor] = {}
        # Read once per run: the record is written before the first batch and does not change.
        self._indices: dict[str, int | None] = {}
        self._identities: TopicIdentities

    def before_start(self, session: SparkSession) -> None:
        """Compare the ids of all topics with those of the checkpoint. Raises HR-311, HR-312, HR-318 or HR-506."""
        if self._sources:
            self._watches = {name: source.watch(self._target) for name, source in self._sources.items()}
            self._identities = TopicIdentities(self._checkpoint, self._sources)
            self._identities.at_start(self._topic_ids())

    @contextmanager
    def around_batch(self, attempt: Attempt) -> Iterator[None]:
        """Compare ids and offsets before a batch is written; afterwards, record offsets that were lost in between.

        For a retried batch, rows of lost offsets may already be in the sinks.
        """
        if not self._sources:
            yield
            return
        batch_id = attempt.batch.id
        may_be_written = self._may_be_written(batch_id)
        try:
            now = self._topic_ids()
            self._identities.before_batch(now)
            self._require_offsets(batch_id)
        except HeadraceError:
            if not may_be_written:
                self._identities.record_unwritten(batch_id)
            raise
        self._record_lost_offsets(batch_id, now, LossKind.MAYBE if may_be_written else LossKind.LOST)
        self._identities.record_unwritten(None)
        self._maybe_written = batch_id
        yield
        self._record_lost_offsets(batch_id, now, LossKind.MAYBE)

    def on_progress(self, progress: Progress) -> None:
        """Stop a query without batches if a topic was recreated (HR-311) or deleted (HR-506)."""
        if not self._sources or not is_continuous(self._flow):
            return
        try:
            self._identities.before_batch(self._topic_ids())
        except Transient:
            return  # the query itself fails if the broker stays away
        except HeadraceError as error:
            self._stop(error, immediately=True)

    def on_end(self, error: HeadraceError | None) -> HeadraceError | None:
        """Explain lost data by its cause: a recreated topic (HR-311), or the lost ranges (HR-502)."""
        # A recreated topic or a lost range can cause these.
        if not isinstance(error, TopicNotFound | KafkaDataLoss) or not self._watches:
            return error
        unfinished = self._checkpoint.unfinished_batch()
        if unfinished is None:
            return error
        try:
            if not self._may_be_written(unfinished):
                self._identities.record_unwritten(unfinished)
            self._identities.before_batch(self._topic_ids())
            self._require_offsets(unfinished, error.why)
        except Transient:
            return error
        except HeadraceError as cause:
            return cause
        return error

    def _may_be_written(self, batch_id: int) -> bool:
        return self._maybe_written == batch_id != self._identities.unwritten_batch_id

    def _require_offsets(self, batch_id: int, cause: str = "") -> None:
        """Raise HR-502 if offsets of a batch are lost and the source does not accept it."""
        for name, source in self._sources.items():
            missing = self._missing_offsets(name, batch_id) if source.data_loss_reason is None else ()
            if missing:
                raise self._lost_offsets_error(source, batch_id, missing, cause)

    def _topic_ids(self) -> dict[str, dict[str, str]]:
        return {name: dict(watch.topic_ids()) for name, watch in self._watches.items()}

    def _missing_offsets(self, name: str, batch_id: int) -> tuple[MissingOffsets, ...]:
        offsets = self._offset_range(name, batch_id)
        return self._watches[name].missing_offsets(*offsets) if offsets is not None else ()

    def _offset_range(self, name: str, batch_id: int) -> tuple[str, str] | None:
        if name not in self._indices:
            self._indices[name] = source_index(self._checkpoint, self._flow, name)
        index = self._indices[name]
        return None if index is None else self._checkpoint.offset_range(batch_id, index)

    def _record_lost_offsets(self, batch_id: int, now: Mapping[str, Mapping[str, str]], kind: LossKind) -> None:
        """Record the lost offsets of a batch, for sources that accept loss. Each range is recorded once."""
        lost: list[LostRange] = []
        for name, source in self._sources.items():
            if source.data_loss_reason is None:
                continue
            accepted = self._identities.accepted_in(name, batch_id)
            recreated = {topic.topic for topic in accepted}
            missing = [
                offsets
                for offsets in self._missing_offsets(name, batch_id)
                if offsets.end is not None or offsets.topic not in recreated
            ]
            lost.extend(
                self._lost_range(name, offsets, self._identities.id_of(name, offsets.topic), kind)
                for offsets in missing
            )
            for topic in accepted:
                lost.extend(self._skipped_offsets(topic, batch_id))
            # The next batch has no offsets of a deleted topic: if it is created again, it is read from its start.
            self._identities.remove_topics(
                name, {offsets.topic for offsets in missing if offsets.end is None} - set(now[name])
            )
        added = self._lost.add(batch_id, lost)
        if added:
            self._on_event(OffsetsLost(self._flow.name, batch_id, added))

    def _skipped_offsets(self, accepted: AcceptedTopic, batch_id: int) -> Iterator[LostRange]:
        """Yield the offsets of the old topic and of its replacement that are never read."""
        offsets = self._offset_range(accepted.input, batch_id)
        if offsets is None:
            return
        watch = self._watches[accepted.input]
        for missing in watch.remaining_offsets(accepted.topic, offsets[0]):
            yield self._lost_range(accepted.input, missing, accepted.before, LossKind.LOST)
        for missing in watch.skipped_offsets(accepted.topic, *offsets):
            yield self._lost_range(accepted.input, missing, accepted.id, LossKind.LOST)

    def _lost_range(self, name: str, missing: MissingOffsets, topic_id: str, kind: LossKind) -> LostRange:
        return LostRange.of(missing, name, self._sources[name], topic_id, kind)

    def _lost_offsets_error(
        self, source: CanLoseRows, batch_id: int, missing: Sequence[MissingOffsets], cause: str
    ) -> KafkaDataLoss:
        ranges = ", ".join(str(offsets) for offsets in missing[:_MAX_RANGES])
        more = f" and {len(missing) - _MAX_RANGES} more" if len(missing) > _MAX_RANGES else ""
        return KafkaDataLoss(
            f"Flow '{self._flow.name}': Kafka no longer has offsets that the flow has not read: {ranges}{more}.",
            why=f"Batch {batch_id} needs them; retention or a deletion took them. {cause}".rstrip(),
            state="The sinks hold every batch up to the last commit. The rows of these offsets are lost.",
            remedy=f"To continue without them, set data_loss_reason='why' on {source.name}: the ranges are then "
            f"recorded in {self._checkpoint.metadata_dir}/lost. Look at the topic's retention.",
        )


class CaptureGuard(Guard):
    """The capture watches of one run of a flow, through sinks that implement `WatchesCapture`."""

    def __init__(self, flow: Flow, target: Target, on_event: Callable[[CaptureUnhealthy], None], stop: Stop) -> None:
        def on_problem(capture: str, error: HeadraceError) -> None:
            on_event(CaptureUnhealthy(flow.name, capture, error))

        sinks = [sink for _, sink in leaf_sinks(flow.sink) if isinstance(sink, WatchesCapture)]
        self._watches = [sink.watch_capture(flow.name, target, on_problem) for sink in sinks]
        self._stop = stop

    def before_start(self, session: SparkSession) -> None:
        """Check once, which raises HR-522, then regularly on separate threads, which stop the query with HR-522."""
        self.check()
        for watch in self._watches:
            watch.start(self._stop)

    def check(self) -> None:
        """Check once. Raises HR-522."""
        for watch in self._watches:
            watch.check()

    def on_end(self, error: HeadraceError | None) -> HeadraceError | None:
        """Stop checking. Returns immediately."""
        for watch in self._watches:
            watch.stop()
        return error
