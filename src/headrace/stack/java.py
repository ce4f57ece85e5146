"""Find the Java that runs Spark and the broker, before anything else is tried.

Two callers. The Makefile runs this file as a script with whatever Python the machine has, before the
virtual environment exists: so it imports the standard library only, quotes its annotations, and keeps to
syntax of Python 3.6. The package calls `find_java` at the start of every Spark session and of every part.

    HEADRACE_JAVA       a binary or a Java home; when set, nothing else is tried
    JAVA_HOME           Spark's own variable
    PATH
    the usual folders   Homebrew's openjdk is on no PATH, and Debian may have 17 in addition to a newer default

The first of these that is Java 17 or 21 wins. Nothing is ever installed or changed here.
"""

import glob
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

# What Spark 4.2 is built and tested for. 11 lacks classes it needs; newer ones removed some it uses.
ACCEPTED = (17, 21)

USUAL_HOMES = (
    "/opt/homebrew/opt/openjdk@{}/libexec/openjdk.jdk/Contents/Home",
    "/usr/local/opt/openjdk@{}/libexec/openjdk.jdk/Contents/Home",
    "/Library/Java/JavaVirtualMachines/*{}*/Contents/Home",
    "/usr/lib/jvm/*{}*",
)

INSTALL = """Install Java 17 and run the same command again:
    Debian, Ubuntu    sudo apt-get install openjdk-17-jre-headless
    Fedora, RHEL      sudo dnf install java-17-openjdk-headless
    macOS             brew install openjdk@17
Java is there already? Name it: export HEADRACE_JAVA=/path/to/bin/java"""


class Java(NamedTuple):
    """One Java installation that answered when asked for its version."""

    home: Path
    binary: Path
    version: str

    @property
    def major(self) -> int:
        """17 for `17.0.15`, 8 for `1.8.0_402`."""
        numbers = [int(number) for number in re.findall(r"\d+", self.version)] or [0]
        return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]


def find_java() -> Java:
    """Return the Java to use. Raises `StackError` HR-401 when there is none that Spark can run on."""
    from headrace.errors import StackError  # noqa: PLC0415  the script runs where headrace is not installed

    java, searched = search()
    if java is None:
        raise StackError(
            "No Java 17 or 21 was found.",
            why="Looked at: {}.".format("; ".join(searched)),
            state="Nothing was started and nothing was written.",
            remedy=INSTALL,
            code="HR-401",
        )
    return java


def search() -> "tuple[Java | None, list[str]]":
    """Return the first candidate that Spark accepts, or None, with the others that were looked at and what they are."""
    searched = []
    for origin, binary in _candidates():
        try:
            java = probe(binary)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            searched.append(f"{origin}: {binary} does not run ({_one_line(error)})")
            continue
        if java.major in ACCEPTED:
            return java, searched
        searched.append(f"{origin}: {binary} is Java {java.version}")
    return None, searched or ["HEADRACE_JAVA and JAVA_HOME are not set, no java on the PATH"]


def probe(binary: Path) -> Java:
    """Run a java binary once and read its version and home. `ValueError`: the answer is not Java's."""
    answer = subprocess.run(  # noqa: S603  the binary is the user's own choice
        [str(binary), "-XshowSettings:properties", "-version"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,  # noqa: UP021  `text` is unknown to Python 3.6
        timeout=60,  # a cold JVM on a busy machine takes seconds; macOS's stub without Java never returns
        check=False,
    )
    version = re.search(r'version "([^"]+)"', answer.stdout)
    home = re.search(r"^\s*java\.home = (.+?)\s*$", answer.stdout, re.MULTILINE)
    if version is None:
        raise ValueError(_one_line(answer.stdout) or f"exit code {answer.returncode}")
    java_home = Path(home.group(1)) if home else binary.resolve().parent.parent
    return Java(home=java_home, binary=binary, version=version.group(1))


def _candidates() -> "list[tuple[str, Path]]":
    """Return the candidates in order, as (description, binary)."""
    override = os.environ.get("HEADRACE_JAVA")
    if override:
        path = Path(override).expanduser()
        return [("HEADRACE_JAVA", path / "bin" / "java" if path.is_dir() else path)]
    candidates = []
    if os.environ.get("JAVA_HOME"):
        candidates.append(("JAVA_HOME", Path(os.environ["JAVA_HOME"]) / "bin" / "java"))
    on_path = shutil.which("java")
    if on_path:
        candidates.append(("PATH", Path(on_path)))
    for major in ACCEPTED:
        for pattern in USUAL_HOMES:
            for home in sorted(glob.glob(pattern.format(major))):
                binary = Path(home) / "bin" / "java"
                if binary.is_file():
                    candidates.append(("installed", binary))
    return candidates


def _one_line(text: object) -> str:
    words = " ".join(str(text).split())
    return words if len(words) <= 200 else words[:200] + "..."


def main() -> int:
    """Return 0 if a Java was found; otherwise print what to install and return 1."""
    java, searched = search()
    if java is None:
        message = "Headrace needs Java 17 or 21, and found none.\n    {}\n{}\n"
        sys.stderr.write(message.format("\n    ".join(searched), INSTALL))
    return 0 if java else 1


if __name__ == "__main__":
    sys.exit(main())
