"""The jars that Headrace adds to PySpark: download them, and verify them against jars.lock.

`ivy.xml` declares the dependencies, `jars.lock` the resolved jars: one line per jar with size and sha256.
Only jars of the lock are ever loaded. Versions are resolved in one place, `resolve_lock`, which a
developer runs after editing ivy.xml; a user's `sync` asks for locked coordinates and nothing else.

    <root>/jars/<conf>/<file>.jar   verified, in use
    <root>/ivy/                     Ivy's working copies
    <root>/staging-*/               a running sync; jars are moved from here into place one by one
    <root>/lock                     the lock of a running sync
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from headrace.errors import StackError
from headrace.stack import errors
from headrace.stack.file_lock import file_lock
from headrace.stack.ivy import Coordinate, Ivy, module_for
from headrace.stack.java import find_java

OnProgress = Callable[[str, int, int], None]

# What a cluster's --packages names where the local lock has to differ: see ivy.xml for the reason.
CLUSTER_VERSIONS = {"spark-token-provider-kafka-0-10_2.13": "4.2.0"}

LOCK_HEADER = """\
# Every jar the local parts load, as resolved from ivy.xml. Written by `headrace jars lock`, not by hand.
# conf  group:name:version  file  bytes  sha256
"""


@dataclass(frozen=True, order=True)
class LockedJar:
    """One line of jars.lock."""

    conf: str
    coordinate: str
    file: str
    size: int
    sha256: str

    @classmethod
    def parse(cls, line: str) -> LockedJar:
        """Read one line of the lock; raises `ValueError` when it is not one."""
        conf, coordinate, file, size, sha256 = line.split()
        return cls(conf, coordinate, file, int(size), sha256)

    def __str__(self) -> str:
        return f"{self.conf}  {self.coordinate}  {self.file}  {self.size}  {self.sha256}"

    def fault(self, path: Path) -> str | None:
        """Return why the file at `path` is not this jar, or None when it is, byte for byte."""
        try:
            size = path.stat().st_size
            if size != self.size:
                return f"{path} has {size} bytes instead of {self.size}"
            with path.open("rb") as stream:
                if hashlib.file_digest(stream, "sha256").hexdigest() != self.sha256:
                    return f"{path} was changed: its sha256 is not the one in jars.lock"
        except FileNotFoundError:
            return f"{path} is missing"
        except OSError as error:
            return f"{path} cannot be read ({error.strerror})"
        return None


def cache_root() -> Path:
    """Return the folder of this user's jars: HEADRACE_CACHE, else XDG_CACHE_HOME/headrace, else ~/.cache/headrace."""
    named = os.environ.get("HEADRACE_CACHE")
    if named:
        return Path(named).expanduser().absolute()
    xdg = os.environ.get("XDG_CACHE_HOME")
    return (Path(xdg) if xdg else Path.home() / ".cache") / "headrace"


def read_lock(text: str | None = None) -> tuple[LockedJar, ...]:
    """Read the lock of this installation, or the given text."""
    if text is None:
        text = resources.files("headrace.stack").joinpath("jars.lock").read_text(encoding="utf-8")
    return tuple(LockedJar.parse(line) for line in text.splitlines() if line and not line.startswith("#"))


class JarCache:
    """The jars of one user on one machine.

    `verify` is called at the start of every session and part, `sync` when it says no or by
    `headrace jars sync`. Several processes may use one root concurrently. A jar in place is never
    written to: a new one is moved over it, so a JVM that has the old one open keeps the complete old file.
    """

    def __init__(self, root: Path | None = None, lock: Sequence[LockedJar] | None = None) -> None:
        self.root = root if root is not None else cache_root()
        self.lock = tuple(lock) if lock is not None else read_lock()

    @property
    def confs(self) -> tuple[str, ...]:
        """Return the configurations that the lock knows, sorted."""
        return tuple(sorted({jar.conf for jar in self.lock}))

    def locked(self, conf: str) -> tuple[LockedJar, ...]:
        """Return the lock's lines of one configuration; raises HR-404 for one it does not know."""
        jars = tuple(jar for jar in self.lock if jar.conf == conf)
        if not jars:
            raise errors.unknown_name(conf, "jar configuration", self.confs)
        return jars

    def path(self, jar: LockedJar) -> Path:
        """The path of a jar in the cache."""
        return self.root / "jars" / jar.conf / jar.file

    def missing(self, conf: str) -> tuple[LockedJar, ...]:
        """Return the jars of a configuration that are missing, truncated or changed."""
        jars = self.locked(conf)
        return tuple(jar for jar, fault in zip(jars, self._faults(jars), strict=True) if fault)

    def verify(self, conf: str) -> tuple[Path, ...]:
        """Return the paths of a configuration after comparing every byte with the lock.

        Takes a tenth of a second for all jars: hashing releases the interpreter lock, so cores share it.
        Raises HR-402 that names the jars at fault. Never fetches.
        """
        jars = self.locked(conf)
        faults = [fault for fault in self._faults(jars) if fault]
        if faults:
            raise StackError(
                f"The jars for '{conf}' cannot be used: {errors.first_items(faults)}.",
                why="Every jar is compared with the sha256 in jars.lock before it is loaded.",
                state="Nothing was started; no data was touched.",
                remedy="Run `headrace jars sync`: it fetches only what is missing or damaged.",
                code="HR-402",
            )
        return tuple(self.path(jar) for jar in jars)

    def sync(self, confs: Iterable[str], on_progress: OnProgress = lambda _jar, _done, _total: None) -> int:
        """Download missing or damaged jars, and return their number.

        1. Take the lock: a second sync waits here, and then finds nothing left to do.
        2. Compare with jars.lock; drop damaged working copies of Ivy's.
        3. Let Ivy download the rest to a staging folder.
        4. Compare again, and move each valid jar into place in one step.

        `on_progress(jar, done, total)` counts two steps per jar: found in a repository, and in place.
        If interrupted, a jar is in place completely or not at all. Raises HR-403 when a jar cannot be had.
        """
        requested = [jar for conf in confs for jar in self.locked(conf)]
        if not any(self._faults(requested)):
            return 0
        with errors.as_stack_errors(self.root), file_lock(self.root / "lock") as lock:
            jars_to_fetch = [jar for jar, fault in zip(requested, self._faults(requested), strict=True) if fault]
            if not jars_to_fetch:
                return 0
            ivy = Ivy(find_java(), self.root / "ivy")
            self._drop_damaged_copies(ivy, jars_to_fetch)
            # What a killed sync left: under the lock no staging folder is in use.
            for folder in self.root.glob("staging-*"):
                shutil.rmtree(folder, ignore_errors=True)
            with tempfile.TemporaryDirectory(prefix="staging-", dir=self.root) as staging:
                self._fetch(ivy, jars_to_fetch, Path(staging), lock, on_progress)
        return len(jars_to_fetch)

    def packages(self) -> tuple[str, ...]:
        """Return the coordinates that a cluster's `--packages` takes, for the Spark this was built with."""
        coordinates = [Coordinate.parse(jar.coordinate) for jar in self.locked("spark")]
        return tuple(f"{c.group}:{c.name}:{CLUSTER_VERSIONS.get(c.name, c.version)}" for c in coordinates)

    def jars_argument(self) -> str:
        """Return the verified local paths as `--jars` and `spark.jars` take them."""
        return ",".join(str(path) for path in self.verify("spark"))

    def _faults(self, jars: Sequence[LockedJar]) -> list[str | None]:
        with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
            return list(pool.map(lambda jar: jar.fault(self.path(jar)), jars))

    def _drop_damaged_copies(self, ivy: Ivy, jars_to_fetch: Sequence[LockedJar]) -> None:
        for jar in jars_to_fetch:
            coordinate = Coordinate.parse(jar.coordinate)
            if any(jar.fault(copy) for copy in ivy.copies(coordinate, jar.file)):
                ivy.forget(coordinate, jar.file)

    def _fetch(
        self, ivy: Ivy, jars_to_fetch: Sequence[LockedJar], staging: Path, lock: int, on_progress: OnProgress
    ) -> None:
        module = staging / "ivy.xml"
        module.write_text(module_for((jar.conf, Coordinate.parse(jar.coordinate)) for jar in jars_to_fetch))
        total, resolved = 2 * len(jars_to_fetch), 0

        def on_step(step: str, jar: str) -> None:
            nonlocal resolved
            if step == "resolved":
                resolved = min(resolved + 1, len(jars_to_fetch))
            on_progress(jar, resolved, total)

        on_progress(jars_to_fetch[0].file, 0, total)
        ivy.retrieve(module, staging / "jars", on_step=on_step, lock=lock)
        faulty = []
        for done, jar in enumerate(jars_to_fetch, start=1):
            coordinate = Coordinate.parse(jar.coordinate)
            downloaded = staging / "jars" / jar.conf / coordinate.group / coordinate.name / coordinate.version
            fault = jar.fault(downloaded / jar.file)
            if fault:
                ivy.forget(coordinate, jar.file)
                faulty.append(f"{jar.file}: {fault}")
                continue
            target = self.path(jar)
            target.parent.mkdir(parents=True, exist_ok=True)
            (downloaded / jar.file).replace(target)
            on_progress(jar.file, len(jars_to_fetch) + done, total)
        if faulty:
            raise errors.fetch_failed(faulty, "The repository serves other bytes than jars.lock names.")


def resolve_lock(module: Path, root: Path, on_progress: OnProgress = lambda _jar, _done, _total: None) -> str:
    """Resolve an ivy.xml with all dependencies and return the text of its lock.

    Used by developers through `headrace jars lock`, after editing ivy.xml. Never used at runtime.
    """
    steps = 0

    def on_step(_step: str, jar: str) -> None:
        nonlocal steps
        steps += 1
        on_progress(jar, steps, 0)

    with (
        errors.as_stack_errors(root),
        file_lock(root / "lock") as lock,
        tempfile.TemporaryDirectory(prefix="staging-", dir=root) as staging,
    ):
        Ivy(find_java(), root / "ivy").retrieve(module, Path(staging), on_step=on_step, lock=lock)
        jars = sorted(_as_locked(path, Path(staging)) for path in Path(staging).rglob("*.jar"))
    return LOCK_HEADER + "".join(f"{jar}\n" for jar in jars)


def _as_locked(path: Path, staging: Path) -> LockedJar:
    conf, group, name, version, file = path.relative_to(staging).parts
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return LockedJar(conf, str(Coordinate(group, name, version)), file, path.stat().st_size, digest)
