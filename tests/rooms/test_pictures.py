"""The pictures of the patterns show the flows as they are declared."""

from __future__ import annotations

import pkgutil
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from headrace import patterns
from pattern_pictures import IMAGES, draw, pattern_flows

PATTERNS = sorted(module.name for module in pkgutil.iter_modules(patterns.__path__) if module.ispkg)
PAGES = Path(__file__).parents[2] / "docs" / "patterns"


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_page_of_a_pattern_shows_its_flows_as_they_are_declared(pattern: str) -> None:
    picture = IMAGES / f"pattern-{pattern}.svg"
    command = "python tools/pattern_pictures.py"
    assert picture.read_text() == draw(pattern_flows()[pattern]), f"{picture.name} is out of date: run `{command}`"
    assert f"(../images/{picture.name})" in (PAGES / f"{pattern}.md").read_text()


def test_a_picture_names_every_flow_every_store_and_the_settings_between_them() -> None:
    picture = ET.fromstring(draw(pattern_flows()["iot"]))  # noqa: S314 - drawn here
    texts = {text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")}
    assert texts == {
        *("iot-telemetry", "topic"),
        *("device_metrics", "silent_devices", "every 30 seconds", "watermark ts − 2 minutes"),  # noqa: RUF001
        *("output mode update", "output mode append"),
        *("gold/device_metrics", "Delta table · exactly-once"),
        *("where alert IS NOT NULL", "iot-alerts", "topic · at-least-once"),
        *("iot-device-status", "topic · exactly-once"),
    }
