"""A pytest plugin: a test that fails shows the end of the logs that processes wrote while it ran."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

# The logs that changed last are those of the processes that the test has to do with.
_LOGS, _LINES, _WIDTH = 5, 25, 240
# The time of a file is that of the kernel's last clock tick, which is up to this much earlier than the write.
_TICK_SECONDS = 0.01
_STARTED = pytest.StashKey[float]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach the logs to a failure, in whichever phase it happened."""
    report = yield
    started = item.stash.setdefault(_STARTED, call.start)
    if report.failed:
        folder = item.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        report.sections.extend(ends_of_logs(folder, started))
    return report


def ends_of_logs(folder: Path, since: float) -> Iterator[tuple[str, str]]:
    """Yield the title and the last lines of each log below a folder that changed since a time, newest last."""
    changed = []
    for path in folder.rglob("*.log"):
        # Kafka's segments and Postgres' tables end alike, and are no text.
        if path.is_file() and path.stem.strip("0123456789") and (at := path.stat().st_mtime) >= since - _TICK_SECONDS:
            changed.append((at, path))
    for _, path in sorted(changed)[-_LOGS:]:
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - _LINES * _WIDTH))
            lines = log.read().decode(errors="replace").splitlines()[-_LINES:]
        if lines:
            yield f"end of {path.relative_to(folder)}", "\n".join(line[:_WIDTH] for line in lines)
