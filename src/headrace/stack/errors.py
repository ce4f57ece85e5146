"""Errors of the local stack: its codes, and a function for each error that is raised in several places.

| code   | means                                                             |
|--------|-------------------------------------------------------------------|
| HR-401 | no Java 17 or 21                                                  |
| HR-402 | a jar is missing, truncated or not the one in jars.lock           |
| HR-403 | jars could not be fetched                                         |
| HR-404 | a jar configuration or a part that does not exist                 |
| HR-405 | a folder cannot be written                                        |
| HR-406 | the disk is full                                                  |
| HR-407 | every port of a range is taken                                    |
| HR-408 | a part died while starting                                        |
| HR-409 | a part runs but does not answer                                   |
| HR-410 | a part does not stop                                              |
| HR-411 | another command locks the local stack for too long                |
| HR-412 | the wheel with PostgreSQL's binaries is not installed             |
| HR-413 | a database refuses root, and privileges cannot be dropped         |
| HR-414 | the password of the local database is lost, or others can read it |
| HR-415 | the data folder was created by another release of PostgreSQL      |
| HR-416 | MariaDB's server is not installed on this machine                 |

Each function builds the error and returns it; the caller raises it, with `from` where there is a cause.
"""

import errno
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from headrace.errors import StackError, did_you_mean

# Below this the broker would start, and stop at its first segments with a stack trace nobody expects.
LEAST_FREE_BYTES = 256 * 1024 * 1024

# The most jars and problems that a message names.
_MAX_NAMED = 3


def fetch_failed(jars: Sequence[str], why: str) -> StackError:
    """HR-403: Ivy could not bring the jars, or brought other bytes than the lock names."""
    return StackError(
        f"{len(jars)} jar(s) could not be fetched: {first_items(jars)}.",
        why=why,
        state="Jars that were fetched before stay; no partial file was installed.",
        remedy="Check the network and run `headrace jars sync` again. Behind a mirror, name your Ivy "
        "settings: `export HEADRACE_IVY_SETTINGS=/path/to/ivysettings.xml`.",
        code="HR-403",
    )


def unknown_name(name: str, kind: str, known_names: Iterable[str]) -> StackError:
    """HR-404: a name that is not in the list of jar configurations or parts."""
    names = sorted(known_names)
    return StackError(
        f"There is no {kind} '{name}'.{did_you_mean(name, names)}",
        why=f"Known: {', '.join(names)}.",
        state="Nothing was done.",
        remedy="Use one of the known names.",
        code="HR-404",
    )


def not_writable(path: Path, error: OSError) -> StackError:
    """HR-405: the folder for the state is not writable."""
    return StackError(
        f"{path} cannot be written.",
        why=f"The system says: {error.strerror or error}.",
        state="Nothing was started, and what was there is untouched.",
        remedy="Choose another folder with `--home` (or HEADRACE_HOME; for jars HEADRACE_CACHE), or fix its "
        "permissions.",
        code="HR-405",
    )


def disk_full(path: Path, free: int) -> StackError:
    """HR-406: no room for a part to work."""
    return StackError(
        f"The disk of {path} is full.",
        why=f"{free // 2**20} MB are free, and a part needs at least {LEAST_FREE_BYTES // 2**20} MB.",
        state="Nothing was started, and what was there is untouched.",
        remedy="Free some space, or choose another folder with `--home`. `headrace down --wipe` deletes this "
        "folder's broker data.",
        code="HR-406",
    )


def start_failed(part: str, log: Path, lines: Sequence[str]) -> StackError:
    """HR-408: the process ended before it answered. The error has the last of the lines of its log."""
    last_lines = "\n    ".join(lines[-12:]) or "(nothing)"
    return StackError(
        f"{part} died while it was starting.",
        why=f"Its last output, in {log}:\n    {last_lines}\n",
        state="Its data is unchanged; no process is left.",
        remedy=f"Read {log} and run `headrace up` again. `headrace doctor` checks the machine.",
        code="HR-408",
    )


def password_unusable(path: Path, why: str) -> StackError:
    """HR-414: a database without its password."""
    return StackError(
        f"The password of the local database in {path} cannot be used.",
        why=why,
        state="Nothing was started; the data is kept.",
        remedy=f"Restore the file and run `chmod 600 {path}`; or delete the database with `headrace down --wipe`.",
        code="HR-414",
    )


@contextmanager
def as_stack_errors(path: Path) -> Iterator[None]:
    """Turn every OSError in the block into HR-406 (disk full) or HR-405 (all others)."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise disk_full(path, 0) from error
        raise not_writable(path, error) from error


def first_items(items: Sequence[str]) -> str:
    """Return the first items and the number of the others, to keep messages short."""
    rest = len(items) - _MAX_NAMED
    return "; ".join(items[:_MAX_NAMED]) + (f"; and {rest} more" if rest > 0 else "")
