"""Guards the checkpoint: it is intact, has the declared settings, belongs to these sinks, and to this driver."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from headrace.errors import HeadraceError
from headrace.flow.flow import Flow
from headrace.flow.target import Target
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.checkpoint.integrity import require_intact
from headrace.runtime.checkpoint.lease import ActiveLease
from headrace.runtime.checkpoint.manifest import Manifest
from headrace.runtime.checkpoint.ownership import require_matching_sinks
from headrace.runtime.checkpoint.pinned_settings import PARTITIONS, require_same_state_store
from headrace.runtime.continuous import require_batch_checkpoint
from headrace.runtime.events import SettingPinned
from headrace.runtime.guards.guard import Attempt, Guard, Progress, Stop


class CheckpointGuard(Guard):
    """Refuses a damaged checkpoint (HR-320) and one that batches cannot resume (HR-223). Records the files of batches.

    The digest of an offset entry is computed before its batch is written, as the batch reads it.
    """

    def __init__(self, flow: Flow, checkpoint: Checkpoint) -> None:
        self._flow, self._checkpoint = flow, checkpoint
        self._manifest = Manifest(checkpoint)
        self._digests: dict[int, str] = {}

    def before_start(self, session: SparkSession) -> None:
        """Verify the logs of the checkpoint."""
        require_intact(self._checkpoint)
        require_batch_checkpoint(self._flow, self._checkpoint)

    @contextmanager
    def around_batch(self, attempt: Attempt) -> Iterator[None]:
        """Remember the digest of the batch's offset entry."""
        self._digests[attempt.batch.id] = attempt.batch.offsets
        yield

    def on_progress(self, progress: Progress) -> None:
        """Record the files of the batch in the manifest. Not on the thread of the batches, which continue."""
        batch_id = progress.event.batch_id
        # A full disk does not stop the flow: the next batch records the files, and `verify` reports them.
        with suppress(OSError, Py4JError):
            self._manifest.record(batch_id, self._digests.pop(batch_id, None))


class SettingsGuard(Guard):
    """Refuses another state store than the checkpoint has (HR-344), and reports other shuffle partitions."""

    def __init__(self, flow: Flow, checkpoint: Checkpoint, on_event: Callable[[SettingPinned], None]) -> None:
        self._flow, self._checkpoint, self._on_event = flow, checkpoint, on_event

    def before_start(self, session: SparkSession) -> None:
        """Compare the declared settings with the pinned ones."""
        pinned = require_same_state_store(self._flow, self._checkpoint)
        declared = session.conf.get(PARTITIONS)
        if pinned is not None and str(pinned.partitions) != declared:
            self._on_event(SettingPinned(self._flow.name, "shuffle partitions", str(declared), str(pinned.partitions)))


class OwnershipGuard(Guard):
    """Refuses a checkpoint that does not match the tables and topics of the flow (HR-331 to HR-335)."""

    def __init__(self, flow: Flow, target: Target, checkpoint: Checkpoint) -> None:
        self._flow, self._target, self._checkpoint = flow, target, checkpoint

    def before_start(self, session: SparkSession) -> None:
        """Compare the committed batches of every sink with the checkpoint."""
        require_matching_sinks(session, self._flow, self._target, self._checkpoint)


class LeaseLossGuard(Guard):
    """Lets no batch commit without the lease, and stops the query if it is lost (HR-330)."""

    def __init__(self, lease: ActiveLease, stop: Stop) -> None:
        self._lease, self._stop = lease, stop

    def before_start(self, session: SparkSession) -> None:
        """Stop the query when a heartbeat finds the lease lost."""
        self._lease.on_lost(lambda lost: self._stop(lost, immediately=True))

    def around_batch(self, attempt: Attempt) -> AbstractContextManager[None]:
        """Check the lease before the sink writes, and before Spark commits."""
        return self._lease.checked()

    def on_end(self, error: HeadraceError | None) -> HeadraceError | None:
        """Explain an error by the lost lease: the sinks refuse a driver without it. Check it also without an error."""
        if error is not None:
            return self._lease.explain(error)
        try:
            self._lease.check()
        except HeadraceError as lost:
            return lost
        return None
