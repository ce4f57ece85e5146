"""Draw the picture of each pattern from its flows: what they read, their settings, and what they write.

    python tools/pattern_pictures.py

writes `docs/images/pattern-NAME.svg`. A test compares the files with the declared flows.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from headrace.cdc.capture.declaration import Capture
from headrace.cdc.flows import CdcSettings, mirror
from headrace.cdc.sink import DeltaCdc
from headrace.flow.flow import Flow
from headrace.flow.levers import AsFastAsPossible, AvailableNow, Continuous, Every, RealTime, Watermark
from headrace.flow.sink import Sink
from headrace.flow.source import Source
from headrace.patterns.enrichment import flows as enrichment
from headrace.patterns.iot import flows as iot
from headrace.patterns.medallion import flows as medallion
from headrace.patterns.orders import flows as orders
from headrace.patterns.rides import flows as rides
from headrace.patterns.sales import flows as sales
from headrace.sinks.console import Console
from headrace.sinks.delta.enriched import DeltaEnriched
from headrace.sinks.delta.table import DeltaTableSink
from headrace.sinks.fan_out import FanOut, Filtered
from headrace.sinks.files import FileSink
from headrace.sinks.kafka.topic import KafkaTopicSink
from headrace.sources.delta.source import DeltaSource
from headrace.sources.kafka.source import KafkaSource

IMAGES = Path(__file__).parents[1] / "docs" / "images"

# Pixels. A box is wide enough for 33 characters of 13 pixels; a line of text is 18 high.
_WIDTH, _LINE, _PADDING, _GAP, _CHANNEL, _MARGIN = 262, 18, 10, 22, 64, 16
# More columns than this are too small to read on a page.
_MOST_COLUMNS = 4

_HEADING, _PLAIN = 'fill="#14202c" font-weight="600"', 'fill="#47525e"'


@dataclass(frozen=True)
class Store:
    """A topic, a table, a folder or a database: what flows read and write."""

    kind: str
    location: str


@dataclass(frozen=True)
class Box:
    """A store or a flow in the picture: its first line is a heading."""

    lines: tuple[str, ...]
    is_flow: bool

    @property
    def height(self) -> int:
        """The height in pixels."""
        return 2 * _PADDING + _LINE * len(self.lines)


@dataclass(frozen=True)
class Arrow:
    """Rows that move from one box to another; `label` is the condition that they meet."""

    source: str
    target: str
    label: str = ""


def pattern_flows() -> Mapping[str, Sequence[Flow]]:
    """Return the flows of every pattern with its default settings."""
    return {
        "cdc": [mirror(CdcSettings(Capture("shop", r"public\..*")))],
        "enrichment": enrichment.flows(),
        "iot": iot.flows(),
        "medallion": medallion.flows(),
        "orders": orders.flows(),
        "rides": rides.flows(),
        "sales": sales.flows(),
    }


def source_store(source: Source, flow: Flow) -> Store:
    """Return the store that a source reads."""
    match source:
        case KafkaSource() if isinstance(flow.sink, DeltaCdc):
            return Store("topics of Debezium", "one per captured table")
        case KafkaSource(topics=str(topic)):
            return Store("topic", topic)
        case DeltaSource(path=path):
            return Store("Delta table", path)
        case _:
            raise TypeError(f"A picture of {source!r} is not known: add it to source_store.")


def sink_stores(sink: Sink, condition: str = "") -> Iterator[tuple[Store, str, str]]:
    """Yield each store that a sink writes, with its guarantee and the condition on its rows."""
    match sink:
        case FanOut(sinks=sinks):
            for inner in sinks:
                yield from sink_stores(inner, condition)
        case Filtered(condition=own, sink=inner):
            yield from sink_stores(inner, own)
        case KafkaTopicSink(topic=topic):
            yield Store("topic", topic), sink.guarantee.value, condition
        case DeltaTableSink(path=path):
            yield Store("Delta table", path), sink.guarantee.value, condition
        case DeltaCdc(path=path):
            yield Store("Delta tables", f"{path}, one per table"), sink.guarantee.value, condition
        case FileSink(path=path, format=kind):
            yield Store(f"{kind} files", path), sink.guarantee.value, condition
        case Console():
            yield Store("console", "standard output"), sink.guarantee.value, condition
        case _:
            raise TypeError(f"A picture of {sink!r} is not known: add it to sink_stores.")


def draw(flows: Sequence[Flow]) -> str:
    """Return the picture of flows as SVG. Stores and flows stand in layers, each behind what it reads.

    Layers are columns from left to right, or rows from top to bottom if there are too many for a page.
    """
    boxes, arrows = _graph(flows)
    depth = _depths(boxes, arrows)
    layers = [[name for name in boxes if depth[name] == layer] for layer in range(max(depth.values()) + 1)]
    is_vertical = len(layers) > _MOST_COLUMNS
    places = _rows(layers, boxes) if is_vertical else _columns(layers, boxes)
    width = max(left for left, _ in places.values()) + _WIDTH + _MARGIN
    height = max(top + boxes[name].height for name, (_, top) in places.items()) + _MARGIN
    drawn = [_arrow(arrow, boxes, places, is_vertical) for arrow in arrows]
    drawn += [_box(boxes[name], *places[name]) for name in boxes]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="ui-sans-serif, system-ui, sans-serif" font-size="13">\n'
        '<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" '
        'orient="auto"><path d="M0 0L8 4L0 8z" fill="#5b6673"/></marker></defs>\n'
        f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>\n' + "\n".join(drawn) + "\n</svg>\n"
    )


def _columns(layers: Sequence[Sequence[str]], boxes: Mapping[str, Box]) -> dict[str, tuple[int, int]]:
    """Return the left and the top of each box: a layer is a column, and columns are centred."""
    heights = [sum(boxes[name].height + _GAP for name in layer) - _GAP for layer in layers]
    places = {}
    for number, (layer, height) in enumerate(zip(layers, heights, strict=True)):
        top = _MARGIN + (max(heights) - height) // 2
        for name in layer:
            places[name] = (_MARGIN + number * (_WIDTH + _CHANNEL), top)
            top += boxes[name].height + _GAP
    return places


def _rows(layers: Sequence[Sequence[str]], boxes: Mapping[str, Box]) -> dict[str, tuple[int, int]]:
    """Return the left and the top of each box: a layer is a row, and rows are centred."""
    most = max(len(layer) for layer in layers)
    places, top = {}, _MARGIN
    for layer in layers:
        left = _MARGIN + (most - len(layer)) * (_WIDTH + _GAP) // 2
        for number, name in enumerate(layer):
            places[name] = (left + number * (_WIDTH + _GAP), top)
        top += max(boxes[name].height for name in layer) + _CHANNEL // 2
    return places


def _graph(flows: Sequence[Flow]) -> tuple[dict[str, Box], list[Arrow]]:
    boxes: dict[str, Box] = {}
    arrows: list[Arrow] = []

    def add_store(store: Store, note: str = "") -> str:
        name = f"{store.kind}:{store.location}"
        # A store that one flow writes and another one reads shows the guarantee of its writer.
        if name not in boxes or note:
            boxes[name] = Box((store.location, f"{store.kind}{note and ' · ' + note}"), is_flow=False)
        return name

    for flow in flows:
        flow_name = f"flow:{flow.name}"
        for input_ in flow.named_inputs.values():
            arrows.append(Arrow(add_store(source_store(input_.source, flow)), flow_name))
        if isinstance(flow.sink, DeltaEnriched):
            arrows.append(Arrow(add_store(Store("Delta table", flow.sink.dimension.path)), flow_name))
        boxes[flow_name] = Box(tuple(_flow_lines(flow)), is_flow=True)
        for store, guarantee, condition in sink_stores(flow.sink):
            arrows.append(Arrow(flow_name, add_store(store, guarantee), condition))
    if any(isinstance(flow.sink, DeltaCdc) for flow in flows):
        boxes = {"database": Box(("Postgres, MariaDB or MySQL", "database · captured by Debezium"), False), **boxes}
        arrows.append(Arrow("database", "topics of Debezium:one per captured table"))
    return boxes, arrows


def _flow_lines(flow: Flow) -> Iterator[str]:
    yield flow.name
    yield _trigger(flow)
    watermarks = {input_.watermark for input_ in flow.named_inputs.values() if input_.watermark is not None}
    for watermark in sorted(watermarks, key=lambda watermark: watermark.column):
        yield _watermark(watermark)
    yield f"output mode {flow.mode.value}"


def _trigger(flow: Flow) -> str:
    match flow.trigger:
        case Every(interval=interval):
            return f"every {interval}"
        case AvailableNow():
            return "all that is available, then ends"
        case AsFastAsPossible():
            return "batch after batch"
        case Continuous() | RealTime():
            return "without batches"


def _watermark(watermark: Watermark) -> str:
    return f"watermark {watermark.column} − {watermark.delay}"  # noqa: RUF001 - a minus sign


def _depths(boxes: Mapping[str, Box], arrows: Sequence[Arrow]) -> dict[str, int]:
    """Return the layer of each box: one more than that of the last box that it reads.

    A box that reads nothing is one layer before its first reader.
    """
    depth = dict.fromkeys(boxes, 0)
    for _ in boxes:
        for arrow in arrows:
            depth[arrow.target] = max(depth[arrow.target], depth[arrow.source] + 1)
    for name in set(boxes) - {arrow.target for arrow in arrows}:
        depth[name] = min(depth[arrow.target] for arrow in arrows if arrow.source == name) - 1
    return depth


def _box(box: Box, left: int, top: int) -> str:
    fill, stroke = ("#e8f1fb", "#2f6fb0") if box.is_flow else ("#f6f4ee", "#8a8169")
    radius = 10 if box.is_flow else 3
    texts = "".join(
        f'<text x="{left + _PADDING}" y="{top + _PADDING + _LINE * number + 13}" {_HEADING if number == 0 else _PLAIN}>'
        f"{escape(line)}</text>"
        for number, line in enumerate(box.lines)
    )
    rectangle = f'<rect x="{left}" y="{top}" width="{_WIDTH}" height="{box.height}" rx="{radius}" '
    return f'{rectangle}fill="{fill}" stroke="{stroke}"/>{texts}'


def _arrow(arrow: Arrow, boxes: Mapping[str, Box], places: Mapping[str, tuple[int, int]], is_vertical: bool) -> str:
    (x1, y1), (x2, y2) = places[arrow.source], places[arrow.target]
    label = (
        f'<text x="{x2}" y="{y2 - 6}" font-size="11" fill="#5b6673">where {escape(arrow.label)}</text>'
        if arrow.label
        else ""
    )
    if is_vertical:
        x1, y1, x2 = x1 + _WIDTH // 2, y1 + boxes[arrow.source].height, x2 + _WIDTH // 2
        path = f"M{x1} {y1}C{x1} {(y1 + y2) // 2} {x2} {(y1 + y2) // 2} {x2} {y2}"
    else:
        x1, y1, y2 = x1 + _WIDTH, y1 + boxes[arrow.source].height // 2, y2 + boxes[arrow.target].height // 2
        path = f"M{x1} {y1}C{(x1 + x2) // 2} {y1} {(x1 + x2) // 2} {y2} {x2} {y2}"
    return f'<path d="{path}" fill="none" stroke="#5b6673" marker-end="url(#head)"/>{label}'


def main() -> int:
    """Write the picture of every pattern."""
    for name, flows in pattern_flows().items():
        (IMAGES / f"pattern-{name}.svg").write_text(draw(flows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
