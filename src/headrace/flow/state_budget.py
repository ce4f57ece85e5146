"""The limit on the state of a flow."""

from dataclasses import dataclass

from headrace.errors import FlowError
from headrace.flow.size import Size


@dataclass(frozen=True)
class StateBudget:
    """The limit on the state of a flow, over all of its stateful operators. Set at least one of the two fields.

    | field | example     | counts                                                                                 |
    |-------|-------------|----------------------------------------------------------------------------------------|
    | rows  | 5_000_000   | rows in the state stores: open windows and groups, keys of deduplication, buffered rows |
    |       |             | of joins                                                                                |
    | bytes | "2 GB"      | InMemory: the heap that the stores use. RocksDB: their SST files on the executors'      |
    |       |             | disks; RocksDB memory has its own limit                                                 |

    The runtime warns at four fifths of the limit, or when the current growth reaches it within an hour. A batch that
    exceeds the budget is committed, then the flow stops. It does not start again until the budget is raised.
    """

    rows: int | None = None
    bytes: str | None = None

    def __post_init__(self) -> None:
        if self.bytes is not None:
            Size.parse(self.bytes)
        if (self.rows is None and self.bytes is None) or (self.rows is not None and self.rows < 1):
            raise FlowError(
                "A state budget has no limit.",
                why="It needs a number of rows above zero, a size, or both.",
                remedy="Write it like StateBudget(rows=5_000_000) or StateBudget(bytes='2 GB').",
                code="HR-224",
            )

    @property
    def limits(self) -> dict[str, int]:
        """The limits that are set, by measure: `rows`, `bytes`."""
        limits = {} if self.rows is None else {"rows": self.rows}
        return limits if self.bytes is None else limits | {"bytes": Size.parse(self.bytes).bytes}
