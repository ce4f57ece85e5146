"""Commands on late and invalid rows, interrupted by an exception. `make certify` kills a process."""

from __future__ import annotations

import pytest

from systems.late_and_invalid import *  # noqa: F403 - the tests
from systems.late_and_invalid import Interrupted, by_exception

pytestmark = [pytest.mark.stack, pytest.mark.spark]


@pytest.fixture
def interrupted() -> Interrupted:
    return by_exception
