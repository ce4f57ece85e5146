"""Windows that cannot be are refused at the line that declares them, before there is a Spark session."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace import FlowError, sessions, sliding, tumbling


@pytest.mark.parametrize(
    ("declared", "code", "phrase"),
    [
        (lambda: tumbling("at", "five minutes"), "HR-201", "five minutes"),
        (lambda: tumbling("at", "0 minutes"), "HR-230", "size '0 minutes'"),
        (lambda: tumbling("at", "1 hour", offset="1 hour"), "HR-230", "3600 seconds"),
        (lambda: sliding("at", "2 minutes", every="10 minutes"), "HR-230", "gaps"),
        (lambda: sliding("at", "2 minutes", every="0s"), "HR-230", "every '0s'"),
        (lambda: sessions("at", gap="0s"), "HR-230", "gap '0s'"),
    ],
)
def test_a_window_that_cannot_be_is_refused(declared: Callable[[], object], code: str, phrase: str) -> None:
    with pytest.raises(FlowError) as caught:
        declared()
    assert caught.value.code == code
    assert phrase in str(caught.value)
