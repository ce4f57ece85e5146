"""Download jars with the Ivy that PySpark ships. Needs only Java and configures no repository.

Where jars come from is Ivy's default, or the user's `ivysettings.xml`: HEADRACE_IVY_SETTINGS, else
`~/.ivy2/ivysettings.xml` (`~/.ivy2.5.2/` is where Spark keeps its own).

`retrieve` is called by `headrace.stack.jars` only, under its lock. It never touches a jar in use: it
writes below the folder it is given, and the caller checks every file before moving it.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr

from headrace.stack import errors
from headrace.stack.java import Java

# Where a retrieved jar lands. The folders carry its coordinate, so no report of Ivy has to be parsed.
PATTERN = "[conf]/[organisation]/[module]/[revision]/[artifact]-[revision].[ext]"

RESOLVED = re.compile(r"^\s*found \S+?#(?P<name>[^;]+);(?P<version>\S+) in ")
DOWNLOADED = re.compile(r"^\s*\[SUCCESSFUL \] \S+?#(?P<name>[^;]+);(?P<version>[^!]+)!")
COMPLAINT = re.compile(r"UNRESOLVED|FAILED|not found|Exception|Unknown|refused|timed out", re.IGNORECASE)


@dataclass(frozen=True)
class Coordinate:
    """What a repository calls a jar: `group:name:version`."""

    group: str
    name: str
    version: str

    @classmethod
    def parse(cls, text: str) -> Coordinate:
        """Read `group:name:version`; raises `ValueError` on anything else."""
        group, name, version = text.split(":")
        return cls(group, name, version)

    def __str__(self) -> str:
        return f"{self.group}:{self.name}:{self.version}"


def module_for(jars_to_fetch: Iterable[tuple[str, Coordinate]]) -> str:
    """Write an ivy.xml that asks for exactly these jars, and for nothing they depend on."""
    jars = sorted(jars_to_fetch, key=str)
    confs = sorted({conf for conf, _ in jars})
    lines = [
        '<ivy-module version="2.0">',
        '  <info organisation="headrace" module="locked-parts"/>',
        "  <configurations>",
        *(f"    <conf name={quoteattr(conf)}/>" for conf in confs),
        "  </configurations>",
        "  <dependencies>",
        *(
            f"    <dependency org={quoteattr(jar.group)} name={quoteattr(jar.name)} "
            f'rev={quoteattr(jar.version)} conf={quoteattr(conf + "->default")} transitive="false"/>'
            for conf, jar in jars
        ),
        "  </dependencies>",
        "</ivy-module>",
    ]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Ivy:
    """Ivy with its own cache folder, run by one Java.

    | field | meaning                                                             |
    |-------|---------------------------------------------------------------------|
    | java  | from `find_java`                                                    |
    | cache | Ivy's working copies; kept between runs so that an interrupted one continues |
    """

    java: Java
    cache: Path

    def retrieve(
        self, module: Path, target: Path, *, on_step: Callable[[str, str], None], lock: int | None = None
    ) -> None:
        """Resolve every configuration of the ivy.xml at `module` and put the jars below `target`.

        `on_step(step, jar)` is called for each jar twice, `resolved` and `downloaded`, as Ivy speaks; not for one
        that Ivy had already. `lock` is a descriptor the child keeps: should this process be killed, the next
        sync waits until the orphaned Ivy has let go of the cache. Raises HR-403 with Ivy's own complaint.
        """
        command = [str(self.java.binary), "-jar", str(ivy_jar()), "-cache", str(self.cache)]
        settings = user_settings()
        if settings is not None:
            command += ["-settings", str(settings)]
        command += ["-ivy", str(module), "-retrieve", str(target / PATTERN)]
        output: deque[str] = deque(maxlen=400)
        with subprocess.Popen(  # noqa: S603  our own Java, our own arguments
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            pass_fds=() if lock is None else (lock,),
        ) as ivy:
            try:
                for line in ivy.stdout or ():
                    output.append(line.rstrip())
                    for step, pattern in (("resolved", RESOLVED), ("downloaded", DOWNLOADED)):
                        match = pattern.match(line)
                        if match:
                            on_step(step, f"{match['name']}-{match['version']}.jar")
            except BaseException:
                ivy.kill()
                raise
        if ivy.returncode != 0:
            if any("No space left" in line for line in output):
                raise errors.disk_full(self.cache, shutil.disk_usage(target.parent).free)
            complaints = list(dict.fromkeys(line.strip(" \t:") for line in output if COMPLAINT.search(line)))
            raise errors.fetch_failed(complaints[:3] or ["Ivy stopped"], f"Ivy ended with exit code {ivy.returncode}.")

    def forget(self, jar: Coordinate, file: str) -> None:
        """Remove Ivy's working copy of a jar, so that the next `retrieve` downloads it again."""
        for copy in (self.cache / jar.group / jar.name).glob(f"*/{file}"):
            copy.unlink(missing_ok=True)

    def copies(self, jar: Coordinate, file: str) -> list[Path]:
        """Ivy's working copies of a jar: one, or none."""
        return sorted((self.cache / jar.group / jar.name).glob(f"*/{file}"))


def user_settings() -> Path | None:
    """Return the user's ivysettings.xml, or None when Ivy's defaults are to be used."""
    named = os.environ.get("HEADRACE_IVY_SETTINGS")
    if named:
        return Path(named).expanduser()
    for folder in (".ivy2", ".ivy2.5.2"):
        path = Path.home() / folder / "ivysettings.xml"
        if path.is_file():
            return path
    return None


def ivy_jar() -> Path:
    """Return the Ivy jar of the installed PySpark, without importing PySpark (that takes a second)."""
    spec = importlib.util.find_spec("pyspark")
    folder = Path(spec.origin).parent / "jars" if spec and spec.origin else Path("pyspark/jars")
    candidates = sorted(folder.glob("ivy-*.jar"))
    if not candidates:
        raise errors.fetch_failed(
            ["the Ivy jar of PySpark"], f"There is no ivy-*.jar in {folder}: PySpark is not installed completely."
        )
    return candidates[-1]
