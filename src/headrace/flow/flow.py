"""The declaration of a flow: a frozen value. Creating or importing one has no side effects."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from pyspark.sql import DataFrame

from headrace.errors import FlowError, did_you_mean
from headrace.flow.inputs import Input
from headrace.flow.levers import AsFastAsPossible, OutputMode, RocksDB, State, Trigger
from headrace.flow.sink import Sink

# The name of the input of a flow that declares a single one.
SINGLE_INPUT = "rows"


@dataclass(frozen=True)
class Flow:
    """A streaming job: inputs, a pure DataFrame transform, a sink, and its settings.

    `transform` has one DataFrame as parameter, or one per named input as keywords, and returns a DataFrame. It is
    called once per start of the flow with streaming DataFrames, by `headrace check` with empty streaming DataFrames,
    and by tests, repairs and nightly runs with batch DataFrames. It must not read, write or cache anything.

    `name` identifies the flow: its checkpoint, metrics and quarantine table are named after it.
    """

    name: str
    inputs: Input | Mapping[str, Input]
    transform: Callable[..., DataFrame]
    sink: Sink
    trigger: Trigger = field(default_factory=AsFastAsPossible)
    state: State = field(default_factory=RocksDB)
    output_mode: OutputMode | Literal["append", "update", "complete"] = OutputMode.APPEND
    description: str = ""

    def __post_init__(self) -> None:
        inputs = {SINGLE_INPUT: self.inputs} if isinstance(self.inputs, Input) else dict(self.inputs)
        object.__setattr__(self, "inputs", MappingProxyType(inputs))
        modes = [mode.value for mode in OutputMode]
        if self.output_mode not in modes:
            raise FlowError(
                f"Flow '{self.name}' asks for output mode '{self.output_mode}'.",
                why=f"The modes are {', '.join(modes)}.{did_you_mean(str(self.output_mode), modes)}",
                remedy="Set output_mode to one of them.",
                code="HR-202",
            )

    @property
    def mode(self) -> OutputMode:
        """The output mode as an `OutputMode`."""
        return OutputMode(self.output_mode)

    @property
    def named_inputs(self) -> Mapping[str, Input]:
        """The inputs by name, in the order of their declaration."""
        assert not isinstance(self.inputs, Input)  # noqa: S101 - __post_init__ made it a mapping
        return self.inputs

    def apply(self, frames: Mapping[str, DataFrame]) -> DataFrame:
        """Run the transform on one DataFrame per input."""
        if set(frames) == {SINGLE_INPUT}:
            return self.transform(frames[SINGLE_INPUT])
        return self.transform(**frames)
