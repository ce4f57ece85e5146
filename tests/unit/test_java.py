"""The Java that is found, and the words for one that is not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.errors import StackError
from headrace.stack import java
from headrace.stack.java import Java, find_java

SCRIPT = Path(java.__file__)


def fake_java(folder: Path, version: str) -> Path:
    """A program that answers like a Java of that version. Other Javas cannot be installed for a test."""
    binary = folder / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text(
        f"#!/bin/sh\necho '    java.home = {folder}' >&2\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n"
    )
    binary.chmod(0o755)
    return binary


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine without any Java in sight."""
    for name in ("HEADRACE_JAVA", "JAVA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(java, "USUAL_HOMES", ())
    return monkeypatch


def test_the_java_of_this_machine_has_a_home() -> None:
    java_of_machine = find_java()
    assert java_of_machine.major in (17, 21)
    assert (java_of_machine.home / "bin" / "java").exists()


@pytest.mark.parametrize(
    ("version", "major"), [("17.0.15", 17), ("21", 21), ("1.8.0_402", 8), ("25-ea", 25), ("strange", 0)]
)
def test_the_major_version_of_every_format_is_parsed(version: str, major: int) -> None:
    assert Java(Path("/j"), Path("/j/bin/java"), version).major == major


@pytest.mark.parametrize("version", ["17.0.15", "21.0.2"])
def test_17_and_21_are_accepted(bare: pytest.MonkeyPatch, tmp_path: Path, version: str) -> None:
    bare.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    binary = fake_java(tmp_path / "jdk", version)
    assert find_java() == Java(tmp_path / "jdk", binary, version)


def test_headrace_java_wins_and_may_name_a_home_or_a_binary(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bare.setenv("JAVA_HOME", str(fake_java(tmp_path / "other", "21").parent.parent))
    binary = fake_java(tmp_path / "chosen", "17.0.1")
    for value in (binary, tmp_path / "chosen"):
        bare.setenv("HEADRACE_JAVA", str(value))
        assert find_java().binary == binary


def test_a_wrong_java_home_is_skipped(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bare.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "11.0.2").parent.parent))
    right = fake_java(tmp_path / "new", "17.0.2")
    bare.setenv("PATH", str(right.parent))
    assert find_java().binary == right


def test_a_wrong_headrace_java_is_always_an_error(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bare.setenv("JAVA_HOME", str(fake_java(tmp_path / "right", "17").parent.parent))
    bare.setenv("HEADRACE_JAVA", str(fake_java(tmp_path / "wrong", "11.0.2")))
    with pytest.raises(StackError, match=r"is Java 11\.0\.2"):
        find_java()


def test_no_java_is_hr_401_and_names_the_packages(bare: pytest.MonkeyPatch) -> None:
    with pytest.raises(StackError) as caught:
        find_java()
    assert caught.value.code == "HR-401"
    for package in ("openjdk-17-jre-headless", "java-17-openjdk-headless", "brew install openjdk@17"):
        assert package in caught.value.remedy


def run_script(**environment: str) -> subprocess.CompletedProcess[str]:
    """Run the file as the Makefile does: by path, in a Python that knows nothing of headrace."""
    return subprocess.run(
        [sys.executable, "-I", "-S", str(SCRIPT)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_as_a_script_it_is_silent_when_java_is_there() -> None:
    done = run_script()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_as_a_script_it_names_the_packages_and_fails_when_java_is_wrong(tmp_path: Path) -> None:
    done = run_script(HEADRACE_JAVA=str(fake_java(tmp_path, "11.0.2")))
    assert done.returncode == 1
    assert "is Java 11.0.2" in done.stderr
    assert "openjdk-17-jre-headless" in done.stderr


def test_no_module_shadows_the_standard_library() -> None:
    """Run as a script, its folder is first on the path: a sibling named like a module would be imported."""
    siblings = {path.stem for path in SCRIPT.parent.glob("*.py")} - {"__init__"}
    assert not siblings & set(sys.stdlib_module_names)
