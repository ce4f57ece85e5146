"""A database without the rights of root, and with a password of its own.

Database servers refuse to run as root, and in containers everybody is root. There they are started through `setpriv`,
as the user `postgres` or `nobody`, with one right kept: to pass over the permissions of files. So a home below a folder
that is closed to others works, and no permission of any folder is changed. The data folder belongs to that user then.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pwd
import secrets
import shutil
from pathlib import Path

from headrace.flow.secret import Secret
from headrace.stack import errors
from headrace.stack.part import Place


@functools.cache
def _user() -> pwd.struct_passwd | None:
    """Return the user under which root starts a server: the machine's own for PostgreSQL, or nobody."""
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    return None


def without_root() -> list[str]:
    """Return the words before a command that take the rights of root away from it; none for an ordinary user."""
    if os.geteuid() != 0:
        return []
    setpriv, user = shutil.which("setpriv"), _user()
    if setpriv is None:
        raise errors.not_as_root("There is no program `setpriv`.")
    if user is None:
        raise errors.not_as_root("There is neither a user postgres nor a user nobody.")
    rights = "-all,+dac_override"
    return [
        setpriv,
        f"--reuid={user.pw_uid}",
        f"--regid={user.pw_gid}",
        "--clear-groups",
        f"--inh-caps={rights}",
        f"--ambient-caps={rights}",
        "--",
    ]


def make_folder(place: Place) -> Path:
    """Make an empty folder to form the data in, and return it; the caller moves it to `place.data` once it is whole.

    Called where the data folder is missing, or was never made whole: a server would refuse it, and it is removed.
    """
    forming = place.folder / "data.forming"
    for leftover in (forming, place.data):
        if leftover.exists():
            shutil.rmtree(leftover)
    forming.mkdir(mode=0o700)
    user = _user()
    if os.geteuid() == 0 and user is not None:
        os.chown(forming, user.pw_uid, user.pw_gid)
    return forming


def new_password(place: Place) -> Path:
    """Write a new password for the database of a place, for its owner only, and return the file."""
    path = place.folder / "password"
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_urlsafe(24) + "\n")
    return path


def password(place: Place) -> Secret:
    """Return the password of the database of a place. Raises HR-414 when it is lost, or others can read it."""
    path = place.folder / "password"
    try:
        if path.stat().st_mode & 0o077:
            raise errors.password_unusable(path, "Other users of this machine can read it.")
        return Secret(f"${{file:{path}}}", path.read_text().strip())
    except OSError as problem:
        raise errors.password_unusable(path, f"The system says: {problem.strerror or problem}.") from problem
