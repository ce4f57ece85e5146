"""How much state a flow may keep."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import FlowError
from headrace.flow.size import Size


@dataclass(frozen=True)
class StateBudget:
    """The most state that a flow may keep, over all of its stateful operators. At least one of the two is set.

    | field | example     | counts                                                                                 |
    |-------|-------------|----------------------------------------------------------------------------------------|
    | rows  | 5_000_000   | rows in the stores: open windows and groups, ids that are remembered, rows that wait    |
    |       |             | for the other side of a join                                                            |
    | bytes | "2 GB"      | in memory: the heap that the stores take. RocksDB: their tables on the executors'       |
    |       |             | disks; its memory has a bound of its own                                                |

    The runtime warns when four fifths are used, or when the present growth uses the rest within an hour. A batch that
    leaves more than the budget is committed, and the flow stops behind it. It is not started again before the budget is
    raised.
    """

    rows: int | None = None
    bytes: str | None = None

    def __post_init__(self) -> None:
        if self.bytes is not None:
            Size.parse(self.bytes)
        if (self.rows is None and self.bytes is None) or (self.rows is not None and self.rows < 1):
            raise FlowError(
                "A state budget bounds nothing.",
                why="It needs a number of rows above zero, an amount of bytes, or both.",
                state="Nothing was started.",
                remedy="Write it like StateBudget(rows=5_000_000) or StateBudget(bytes='2 GB').",
                code="HR-227",
            )

    @property
    def limits(self) -> dict[str, int]:
        """The limits that are set, by what they count: `rows`, `bytes`."""
        found = {} if self.rows is None else {"rows": self.rows}
        return found if self.bytes is None else found | {"bytes": Size.parse(self.bytes).bytes}
