"""What a failed test says of the processes behind it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from process_logs import ends_of_logs


def test_changed_logs_are_shown_with_their_last_lines(tmp_path: Path):
    now = time.time()
    for name, age in (("old.log", 60), ("broker/kafka.log", -1), ("driver/spark.log", -2), ("topic/000123.log", -3)):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(f"{name} {number}\n" for number in range(100)))
        os.utime(path, (now - age, now - age))

    last_lines = dict(ends_of_logs(tmp_path, now))

    assert list(last_lines) == ["end of broker/kafka.log", "end of driver/spark.log"]
    assert last_lines["end of driver/spark.log"].splitlines() == [
        f"driver/spark.log {number}" for number in range(75, 100)
    ]


def test_a_failure_ends_with_the_logs_and_a_success_shows_none(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    pytester.makeconftest("pytest_plugins = ['process_logs']")
    pytester.makepyfile(
        """
        import pytest

        def write(path):
            (path / "spark.log").write_text("the driver died of this")

        @pytest.fixture
        def broken(tmp_path):
            write(tmp_path)
            raise RuntimeError("no fixture")

        def test_fails(tmp_path):
            write(tmp_path)
            assert False

        def test_fails_before_it_starts(broken): ...

        def test_passes(tmp_path):
            write(tmp_path)
        """
    )

    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:xdist")

    result.assert_outcomes(passed=1, failed=1, errors=1)
    for failed in ("test_fails0", "test_fails_before_it_starts0"):
        result.stdout.fnmatch_lines([f"*end of {failed}/spark.log*", "the driver died of this"])
    result.stdout.no_fnmatch_line("*test_passes0/spark.log*")


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_failure_is_named_before_the_tests_after_it_run(
    workers: str, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    pytester.makeconftest("pytest_plugins = ['early_failures']")
    pytester.makepyfile(
        """
        def test_bad():
            assert 1 == 2

        def test_good():
            pass
        """
    )

    shown = pytester.runpytest_subprocess("-q", "-n", workers).stdout

    shown.fnmatch_lines(["FAILED in call: *::test_bad assert 1 == 2", "*= FAILURES =*", "*1 failed, 1 passed*"])
