"""Payloads of invalid rows are safe to print."""

from __future__ import annotations

import pytest

from headrace.operate.quarantine.listing import printable


@pytest.mark.parametrize(
    ("payload", "shown"),
    [
        (None, None),
        (b"", ""),
        ("grün".encode(), "grün"),
        (b"\x1b[2Jgone\r\n", "\\x1b[2Jgone\\r\\n"),
        # A mark that turns the direction of writing, and bytes that are no text.
        ("a\u202eb".encode(), "a\\u202eb"),
        (b"\xff\x00", "\\xff\\x00"),
        (b"x" * 161, "x" * 160 + "…"),
        (b"x" * 10_000, "x" * 160 + "…"),
    ],
)
def test_a_payload_is_shown_as_one_line_that_no_terminal_takes_for_a_command(payload: bytes | None, shown: str | None):
    assert printable(payload) == shown
