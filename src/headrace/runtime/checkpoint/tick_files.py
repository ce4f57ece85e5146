"""The files of the idle ticks of a flow: one for each tick, in a folder for each idle input.

    FLOW/headrace/idle_ticks/INPUT/MILLISECONDS

An idle tick is a file, so a retried batch reads the same ticks and advances the watermark identically. Spark deletes a
file after the batch that read it. Unread files of an earlier run are deleted at the start: with a new or restored
checkpoint their event times would be ahead of rows that are still to be read.
"""

from collections.abc import Mapping

from headrace.flow.flow import Flow
from headrace.flow.levers import Continuous, RealTime
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.checkpoint.source_order import read_source_order

# Creates the folder on any filesystem. Spark ignores names that start with a dot.
_PLACEHOLDER = ".keep"


def idle_timeouts_ms(flow: Flow) -> Mapping[str, int]:
    """Return the idle timeout of each input that has one. Triggers without batches ignore it."""
    # They have no state, and support no second source.
    if isinstance(flow.trigger, Continuous | RealTime):
        return {}
    timeouts = {
        name: input_.watermark.idle_timeout_duration for name, input_ in flow.named_inputs.items() if input_.watermark
    }
    return {name: timeout.ms for name, timeout in timeouts.items() if timeout is not None}


class TickFiles:
    """The tick files of one flow. One thread at a time writes."""

    def __init__(self, flow: Flow, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._idle_inputs = idle_timeouts_ms(flow)

    def has_ticks(self, name: str) -> bool:
        """Whether an input has a stream of idle ticks.

        A stream that the checkpoint has must stay, without ticks, if the input no longer has a timeout.
        """
        order = read_source_order(self._checkpoint) if self._checkpoint.planned_batches() else None
        had_ticks = any((source.input, source.role) == (name, "idle ticks") for source in order or ())
        return name in self._idle_inputs or had_ticks

    def prepare(self, name: str) -> str:
        """Create the folder of an input without ticks of an earlier run, and return it. Called once per start."""
        folder = self._folder(name)
        # A batch that is retried reads its ticks again.
        if self._checkpoint.unfinished_batch() is None:
            for file in self._checkpoint.files.names(folder):
                if not file.startswith("."):
                    self._checkpoint.files.delete(f"{folder}/{file}")
        self._checkpoint.files.write(f"{folder}/{_PLACEHOLDER}", "")
        return folder

    def write(self, name: str, time_ms: int) -> None:
        """Write a tick with an event time."""
        self._checkpoint.files.write(f"{self._folder(name)}/{time_ms}", str(time_ms))

    def _folder(self, name: str) -> str:
        return f"{self._checkpoint.metadata_dir}/idle_ticks/{name}"
