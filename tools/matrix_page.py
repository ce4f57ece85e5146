"""The matrix as the documentation shows it: tables that are drawn from the data, between marks on a page.

    <!-- matrix: operators -->
    ...
    <!-- end of matrix -->

    python tools/matrix_page.py docs/levers/output-modes.md docs/levers/triggers.md

draws them again. A test compares the pages with the data.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from headrace.cdc.sink import DeltaCdc
from headrace.flow.checks import matrix
from headrace.flow.checks.matrix import Cell, Compatibility
from headrace.flow.checks.operators import OperatorKind
from headrace.flow.levers import OutputMode
from headrace.sinks.console import Console
from headrace.sinks.custom import CustomExactlyOnceSink, CustomSink
from headrace.sinks.delta.enriched import DeltaEnriched
from headrace.sinks.delta.roll_ups import DeltaRollUps
from headrace.sinks.delta.upsert import DeltaUpsert
from headrace.sinks.delta.write import DeltaAppend, DeltaOverwrite
from headrace.sinks.files import FileSink
from headrace.sinks.jdbc.upsert import JdbcUpsert
from headrace.sinks.kafka.exactly_once import KafkaExactlyOnceSink
from headrace.sinks.kafka.topic import KafkaSink
from headrace.sinks.memory import Memory
from headrace.sinks.noop import Noop
from headrace.sinks.rest import Rest

# The sinks that write rows. FanOut supports what all its sinks support, Filtered what its inner sink supports.
SINKS: tuple[type, ...] = (
    DeltaAppend,
    DeltaUpsert,
    DeltaRollUps,
    DeltaEnriched,
    DeltaOverwrite,
    DeltaCdc,
    FileSink,
    KafkaSink,
    KafkaExactlyOnceSink,
    JdbcUpsert,
    Rest,
    CustomSink,
    CustomExactlyOnceSink,
    Console,
    Memory,
    Noop,
)

_MARKED = re.compile(r"(<!-- matrix: (\w+) -->\n).*?(<!-- end of matrix -->)", re.DOTALL)


def drawn(page: str) -> str:
    """Return the text of a page with all its tables redrawn."""
    return _MARKED.sub(lambda match: f"{match[1]}{_TABLES[match[2]]()}{match[3]}", page)


def _operators() -> str:
    rows = {str(kind): cells for kind, cells in matrix.MODES.items() if kind is not OperatorKind.READ_TWICE}
    return _table("operator", [mode.value for mode in OutputMode], rows)


def _triggers() -> str:
    others = next(iter(matrix.trigger_compatibility(OperatorKind.AGGREGATE)))
    rows = {str(kind): cells for kind, cells in matrix.TRIGGERS.items()}
    return _table("operator", ["Continuous", "RealTime"], {**rows, "every operator with state": (others, others)})


def _sinks() -> str:
    rows = {
        sink.__name__: [matrix.sink_cell(sink.__name__, mode, sink.output_modes) for mode in OutputMode]  # type: ignore[attr-defined]
        for sink in SINKS
    }
    return _table("sink", [mode.value for mode in OutputMode], rows)


_TABLES = {"operators": _operators, "sinks": _sinks, "triggers": _triggers}


def _table(first: str, columns: Sequence[str], rows: Mapping[str, Sequence[Cell]]) -> str:
    """Return a table with a number at each cell that is not a plain yes, and the reasons by number below it."""
    numbers: dict[tuple[str, str, str], int] = {}
    lines = [f"| {first} | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for name, cells in rows.items():
        lines.append(f"| {name} | {' | '.join(_shown(cell, numbers) for cell in cells)} |")
    return "\n".join([*lines, "", *_notes(numbers)]) + "\n"


def _shown(cell: Cell, numbers: dict[tuple[str, str, str], int]) -> str:
    if cell.verdict is Compatibility.ALLOWED:
        return "yes"
    number = numbers.setdefault((cell.code, cell.reason, cell.remedy), len(numbers) + 1)
    return f"{cell.verdict} ({number})"


def _notes(numbers: Mapping[tuple[str, str, str], int]) -> Iterable[str]:
    for (code, reason, remedy), number in numbers.items():
        yield f"{number}. {code}: {reason} *{remedy}*"


if __name__ == "__main__":
    for name in sys.argv[1:]:
        Path(name).write_text(drawn(Path(name).read_text()))
