"""Run a database without root privileges and with its own password.

Database servers refuse to run as root, and in containers processes usually run as root. There they are started with
`setpriv`, as the user `postgres` or `nobody`, with one capability: to ignore file permissions. So a home below a
private folder works, and no permissions are changed. The data folder then belongs to that user.
"""

import contextlib
import functools
import os
import pwd
import secrets
import shutil
from pathlib import Path

from headrace.errors import StackError
from headrace.flow.secret import Secret
from headrace.stack import errors
from headrace.stack.part import PartFiles


@functools.cache
def _server_user() -> pwd.struct_passwd | None:
    """Return the user that runs a server started by root: `postgres`, or else `nobody`."""
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    return None


def unprivileged_prefix() -> list[str]:
    """Return the command prefix that drops root privileges; empty for an ordinary user."""
    if os.geteuid() != 0:
        return []
    setpriv, user = shutil.which("setpriv"), _server_user()
    if setpriv is None or user is None:
        missing = "no program `setpriv`" if setpriv is None else "neither a user postgres nor a user nobody"
        raise StackError(
            "A database cannot be started by root.",
            why=f"Its server refuses to run as root. There is {missing}.",
            state="Nothing was started, and what was there is untouched.",
            remedy="Run `headrace up` as an ordinary user, or install util-linux, which has `setpriv`.",
            code="HR-413",
        )
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


def make_data_folder(files: PartFiles) -> Path:
    """Create an empty staging folder for the data; the caller moves it to `files.data` when it is complete.

    Called when the data folder is missing or incomplete: a server would refuse an incomplete one, so it is removed.
    """
    forming = files.folder / "data.forming"
    for leftover in (forming, files.data):
        if leftover.exists():
            shutil.rmtree(leftover)
    forming.mkdir(mode=0o700)
    user = _server_user()
    if os.geteuid() == 0 and user is not None:
        os.chown(forming, user.pw_uid, user.pw_gid)
    return forming


def write_new_password(files: PartFiles) -> Path:
    """Write a new database password to a file that only its owner can read, and return the file."""
    path = files.folder / "password"
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_urlsafe(24) + "\n")
    return path


def read_password(files: PartFiles) -> Secret:
    """Return the database password. Raises HR-414 when it is lost or other users can read it."""
    path = files.folder / "password"
    try:
        if path.stat().st_mode & 0o077:
            raise errors.password_unusable(path, "Other users of this machine can read it.")
        return Secret(f"${{file:{path}}}", path.read_text().strip())
    except OSError as error:
        raise errors.password_unusable(path, f"The system says: {error.strerror or error}.") from error
