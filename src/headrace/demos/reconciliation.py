"""The reconciliation of a pattern: recompute a day of its flows as a batch, and repair their tables.

To add one, write `headrace.demos.PATTERN.reconcile` with a `RECONCILIATION`. `headrace reconcile PATTERN` finds it.
"""

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Protocol, cast

from pyspark.sql import SparkSession

from headrace import demos
from headrace.flow.flow import Flow
from headrace.flow.target import Target


class DayPlan(Protocol):
    """The differences between the table of a flow and the batch result, and what a repair does."""

    @property
    def flow(self) -> str:
        """The name of the flow."""

    @property
    def changes(self) -> int:
        """How many rows of the table a repair adds or removes."""

    def as_dict(self) -> Mapping[str, object]:
        """The plan as `--json` prints it."""

    def lines(self) -> Iterator[str]:
        """Describe the differences, for people."""


class DayReconciliation(Protocol):
    """The reconciliation of one flow. It holds the lease of the flow, so no other process runs it."""

    def plan(self, day: date | None) -> DayPlan:
        """Recompute a day and compare it with the table; None is the last full day. Changes nothing."""

    def apply(self, plan: Any) -> None:
        """Apply the plan in one commit to the table."""


@dataclass(frozen=True)
class Reconciliation:
    """Which flows a pattern can reconcile, and how.

    | field   | meaning                                                                                           |
    |---------|---------------------------------------------------------------------------------------------------|
    | accepts | whether a flow is one of the pattern's                                                            |
    | open    | take the lease of a flow, lock its table and return the reconciliation                            |
    """

    accepts: Callable[[Flow], bool]
    open: Callable[[SparkSession, Target, Flow], AbstractContextManager[DayReconciliation]]


def reconciled_patterns() -> list[str]:
    """Return the names of the patterns that have a reconciliation. Imports none of them."""
    (folder,) = demos.__path__
    packages = [module.name for module in pkgutil.iter_modules([folder]) if module.ispkg]
    return [name for name in packages if (Path(folder) / name / "reconcile.py").is_file()]


def find_reconciliation(pattern: str) -> Reconciliation:
    """Return the reconciliation of a pattern that has one."""
    module = importlib.import_module(f"{demos.__name__}.{pattern}.reconcile")
    return cast("Reconciliation", module.RECONCILIATION)
