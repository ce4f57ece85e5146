"""The declaration of a flow: a frozen value. Making or importing one touches nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from headrace.errors import FlowError, nearest
from headrace.flow.inputs import Input
from headrace.flow.levers import AsFastAsPossible, OutputMode, RocksDB, State, Trigger
from headrace.flow.sink import Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# The name of the only input of a flow that declares just one.
ONLY = "rows"


@dataclass(frozen=True)
class Flow:
    """Rows from inputs, through a pure transform, into a sink, under declared levers.

    `transform` takes one DataFrame, or one per named input as keyword arguments, and returns a DataFrame. It is
    called once per start of the flow with streaming frames, by `headrace check` with streaming frames of nothing, and
    by tests, repairs and nightly runs with batch frames: it must not read, write or keep anything.

    `name` is the identity of the flow: its checkpoint, its figures and its quarantine are found by it.
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
        named = {ONLY: self.inputs} if isinstance(self.inputs, Input) else dict(self.inputs)
        object.__setattr__(self, "inputs", MappingProxyType(named))
        modes = [mode.value for mode in OutputMode]
        if self.output_mode not in modes:
            raise FlowError(
                f"Flow '{self.name}' asks for output mode '{self.output_mode}'.",
                why=f"The modes are {', '.join(modes)}.{nearest(str(self.output_mode), modes)}",
                state="Nothing was started.",
                remedy="Set output_mode to one of them.",
                code="HR-202",
            )

    @property
    def mode(self) -> OutputMode:
        """The output mode as a value of its own kind."""
        return OutputMode(self.output_mode)

    @property
    def named_inputs(self) -> Mapping[str, Input]:
        """The inputs by name, in the order of their declaration."""
        assert not isinstance(self.inputs, Input)  # noqa: S101 - __post_init__ made it a mapping
        return self.inputs

    def apply(self, frames: Mapping[str, DataFrame]) -> DataFrame:
        """Run the transform over one frame per input."""
        if set(frames) == {ONLY}:
            return self.transform(frames[ONLY])
        return self.transform(**frames)
