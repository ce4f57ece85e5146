"""A pytest plugin: names a failed test as soon as it has failed, not only at the end of a run of many minutes."""

from __future__ import annotations

import pytest

_WIDTH = 200


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin where a terminal is written: not in the workers of xdist."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_EarlyFailures(terminal))


class _EarlyFailures:
    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            reason = crash.message.splitlines()[0] if crash is not None and crash.message else ""
            # The line of dots has no end yet.
            self._terminal.write_line(f"\nFAILED in {report.when}: {report.nodeid} {reason}"[:_WIDTH], red=True)
