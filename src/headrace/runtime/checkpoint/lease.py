"""The lease of a checkpoint: it allows one driver at a time.

A second driver on a checkpoint would write the pending batch again before Spark notices the conflict. So a driver
acquires a lease first. Every lease has a number, its fencing token, and the highest number owns the checkpoint:

    FLOW/headrace/leases/00000007        the holder of lease 7: a record that is created exclusively and never changed
    FLOW/headrace/leases/00000007.beat   a heartbeat counter that its holder increments, or `ended`

Who may acquire the next number depends on the kind of the lease.

| kind   | who acquires the next number                                                      | a dead driver holds it |
|--------|-----------------------------------------------------------------------------------|------------------------|
| lock   | the process that holds a lock of the operating system on FLOW/headrace/lease      | not at all             |
| record | a driver that saw no heartbeat for `seconds`, by its own monotonic clock          | for `seconds`          |

Clocks of different machines are never compared. If two drivers create the same next number, one of them succeeds.

A lease cannot stop a driver that was paused and does not know that it lost. So the runtime calls `ActiveLease.check`
before a batch is written and again before Spark commits it, and the thread of a record calls it with every heartbeat.
Writes in between must be refused by the sink; docs/operate/leases.md says how each sink does that.
"""

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import psutil
from py4j.protocol import Py4JError

from headrace.clients.file_lock import lock_file
from headrace.clients.storage import is_local, local_path
from headrace.errors import ConfigError, HeadraceError, RecoveryError, ServiceUnavailable
from headrace.flow.target import Lease
from headrace.runtime.checkpoint.checkpoint import Checkpoint

# A slow holder may miss some heartbeats before another driver takes over.
_HEARTBEATS_PER_LEASE = 6
_ENDED = "ended"
_DIGITS = 8

# The kernel's list of locks, with the inode of each. Other systems than Linux have none.
_LOCKS = Path("/proc/locks")


class ActiveLease:
    """An acquired lease. Created by `acquire_lease`; every method may be called from any thread."""

    def __init__(self, checkpoint: Checkpoint, token: int, record: str) -> None:
        self.token = token
        self._checkpoint, self._record = checkpoint, record
        self._callback: Callable[[HeadraceError], None] = lambda _lost: None

    def check(self) -> None:
        """Raise unless this lease is still the highest: RecoveryError if it is lost, ServiceUnavailable if unknown."""
        try:
            highest = highest_lease(self._checkpoint)
            record = self._checkpoint.files.read(_path(self._checkpoint, self.token))
        except (OSError, Py4JError) as error:
            raise _unreadable(self._checkpoint, error) from error
        # On storage without exclusive creation, two drivers may have created this number: the later record wins.
        if highest == self.token and record == self._record:
            return
        cause = (
            f"lease {highest} was acquired by {_holder(self._checkpoint, highest)}"
            if highest
            else "its record was deleted"
        )
        raise RecoveryError(
            f"Flow '{self._checkpoint.flow}' has lost its lease.",
            why=f"This driver holds lease {self.token} of {self._checkpoint.folder}, and {cause}.",
            state="This driver commits nothing more. The sinks hold each batch as the other driver leaves it.",
            remedy="Leave the flow to the other driver, or stop that one and start the flow again. If this driver was "
            "paused or its storage was away for longer than the lease, raise `lease.seconds` in headrace.yml.",
            code="HR-330",
        )

    @contextmanager
    def checked(self) -> Iterator[None]:
        """Check the lease before and after the block, so that Spark commits a batch only with a valid lease."""
        self.check()
        yield
        self.check()

    def explain(self, error: HeadraceError) -> HeadraceError:
        """Return the cause of a failed query: the lost lease if it is lost, since the sink then refuses this driver."""
        try:
            self.check()
        except RecoveryError as lost:
            lost.__cause__ = error
            return lost
        except ServiceUnavailable:
            return error
        return error

    def on_lost(self, callback: Callable[[HeadraceError], None]) -> None:
        """Call `callback` once with HR-330, from the heartbeat thread, if the lease is lost.

        It must return quickly. A later call replaces the callback.
        """
        self._callback = callback

    @contextmanager
    def keep_alive(self, interval: float) -> Iterator[None]:
        """Write heartbeats while the block runs, and release the lease at its end."""
        done = threading.Event()
        path = f"{_path(self._checkpoint, self.token)}.beat"
        self._checkpoint.files.write(path, "0")

        def write_heartbeats() -> None:
            count = 0
            while not done.wait(interval):
                count += 1
                try:
                    self.check()
                    self._checkpoint.files.write(path, str(count))
                except (OSError, Py4JError, ServiceUnavailable):
                    # The storage is unavailable. Another driver may take over, and the next heartbeat notices that.
                    continue
                except RecoveryError as lost:
                    self._callback(lost)
                    return

        thread = threading.Thread(target=write_heartbeats, name=f"lease-{self._checkpoint.flow}", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
            # If the lease is lost or unknown, the next driver waits as for a dead one.
            with suppress(OSError, Py4JError, HeadraceError):
                self.check()
                self._checkpoint.files.write(path, _ENDED)


@contextmanager
def acquire_lease(checkpoint: Checkpoint, terms: Lease | None = None) -> Iterator[ActiveLease]:
    """Acquire the lease of a checkpoint; raise if another driver holds it. Waits up to `terms.seconds` for a record."""
    terms = terms or Lease()
    local = is_local(checkpoint.metadata_dir)
    if terms.kind == "lock" and not local:
        raise ConfigError(
            f"The checkpoint of flow '{checkpoint.flow}' cannot be locked.",
            why=f"A lock of the operating system needs a local folder, and the checkpoint is {checkpoint.folder}.",
            state="Nothing was started and nothing was written.",
            remedy="Remove `lease.kind` from the target in headrace.yml, or set it to record.",
            code="HR-109",
        )
    with ExitStack() as stack:
        try:
            if local and terms.kind != "record":
                stack.enter_context(_hold_file_lock(checkpoint))
                lease = _create_lease(checkpoint, highest_lease(checkpoint) + 1)
            else:
                lease = _create_lease(checkpoint, _await_free_lease(checkpoint, terms.seconds) + 1)
                stack.enter_context(lease.keep_alive(terms.seconds / _HEARTBEATS_PER_LEASE))
        except OSError as error:
            raise ConfigError(
                f"The checkpoint of flow '{checkpoint.flow}' cannot be written.",
                why=f"{checkpoint.metadata_dir}: {os.strerror(error.errno or 0)}.",
                state="Nothing was started and nothing was written.",
                remedy="Make the folder writable, or set another checkpoints root in headrace.yml.",
                code="HR-111",
            ) from error
        except Py4JError as error:
            raise _unreadable(checkpoint, error) from error
        yield lease


def raise_lease_number(checkpoint: Checkpoint, number: int) -> None:
    """Raise the number of the next lease above an earlier one whose record is lost.

    Called by a restore: sinks remember the highest number so far, and refuse drivers with a lower one.
    """
    if highest_lease(checkpoint) < number:
        checkpoint.files.write(f"{_path(checkpoint, number)}.beat", _ENDED)
        checkpoint.files.create(_path(checkpoint, number), json.dumps({"restored": True}))


@contextmanager
def _hold_file_lock(checkpoint: Checkpoint) -> Iterator[None]:
    file = lock_file(local_path(checkpoint.metadata_dir) / "lease")
    if file is None:
        raise _already_running(checkpoint)
    with file:
        yield


def _await_free_lease(checkpoint: Checkpoint, seconds: float) -> int:
    """Return the highest number if its holder has ended or sent no heartbeat for `seconds`; raise if it is alive."""
    number = highest_lease(checkpoint)
    path = f"{_path(checkpoint, number)}.beat"
    heartbeat, since = checkpoint.files.read(path), time.monotonic()
    while number and heartbeat != _ENDED and time.monotonic() - since < seconds:
        time.sleep(seconds / _HEARTBEATS_PER_LEASE / 2)
        latest = checkpoint.files.read(path)
        if latest not in (heartbeat, _ENDED) or highest_lease(checkpoint) != number:
            raise _already_running(checkpoint)
        heartbeat = latest
    return number


def _create_lease(checkpoint: Checkpoint, number: int) -> ActiveLease:
    """Create the record of a number, or raise if another driver was faster; then delete earlier records."""
    holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": datetime.now(UTC).isoformat()}
    record = json.dumps({**holder, "nonce": uuid.uuid4().hex})
    if not checkpoint.files.create(_path(checkpoint, number), record):
        raise _already_running(checkpoint)
    lease = ActiveLease(checkpoint, number, record)
    try:
        # A deleted earlier number can be created again, but it is not the highest.
        lease.check()
    except RecoveryError as lost:
        raise _already_running(checkpoint) from lost
    for name in checkpoint.files.names(_folder(checkpoint)):
        if name[:_DIGITS].isdigit() and int(name[:_DIGITS]) < number:
            checkpoint.files.delete(f"{_folder(checkpoint)}/{name}")
    return lease


def highest_lease(checkpoint: Checkpoint) -> int:
    """Return the highest lease number, 0 before the first."""
    return max((int(name) for name in checkpoint.files.names(_folder(checkpoint)) if name.isdigit()), default=0)


def current_holder(checkpoint: Checkpoint) -> dict[str, object] | None:
    """Return the holder of the lease as recorded (pid, host, since), or None if the lease is free.

    Does not take the lease, which could fail a start. Shared storage has no locks to inspect: a lease there counts as
    held until its holder records `ended`, even if the holder has died.
    """
    number, file = highest_lease(checkpoint), f"{checkpoint.metadata_dir}/lease"
    try:
        holder = json.loads(checkpoint.files.read(_path(checkpoint, number) if number else file) or "{}")
    except ValueError:
        holder = {}
    if not isinstance(holder, dict):
        holder = {}
    heartbeat = checkpoint.files.read(f"{_path(checkpoint, number)}.beat") if number else None
    if heartbeat is not None:
        return holder if heartbeat != _ENDED else None
    is_locked = holder and is_local(file) and _is_locked(local_path(file), holder)
    return holder if is_locked else None


def _is_locked(path: Path, holder: dict[str, object]) -> bool:
    if not path.exists():
        return False
    if not _LOCKS.exists():
        return psutil.pid_exists(int(str(holder.get("pid", -1))))
    inode = str(path.stat().st_ino)
    # A process that waits for a lock has its own line, with an arrow in the second column.
    locks = [line.split() for line in _LOCKS.read_text().splitlines() if "->" not in line]
    return any(len(lock) > 5 and lock[1] == "FLOCK" and lock[5].endswith(f":{inode}") for lock in locks)


def _folder(checkpoint: Checkpoint) -> str:
    return f"{checkpoint.metadata_dir}/leases"


def _path(checkpoint: Checkpoint, number: int) -> str:
    return f"{_folder(checkpoint)}/{number:0{_DIGITS}d}"


def _holder(checkpoint: Checkpoint, number: int) -> str:
    try:
        record = checkpoint.files.read(_path(checkpoint, number))
        holder = json.loads(record or "")
        return f"process {holder['pid']} on {holder['host']} at {holder['since']}"
    except (OSError, Py4JError, ValueError, KeyError, TypeError):
        return "another process"


def _already_running(checkpoint: Checkpoint) -> RecoveryError:
    return RecoveryError(
        f"Flow '{checkpoint.flow}' is running already.",
        why=f"Its checkpoint {checkpoint.folder} was acquired by {_holder(checkpoint, highest_lease(checkpoint))}.",
        state="Nothing was started; the running flow is not touched.",
        remedy="Stop the other process, or run this flow against another target.",
        code="HR-302",
    )


def _unreadable(checkpoint: Checkpoint, error: Exception) -> ServiceUnavailable:
    return ServiceUnavailable(
        f"The lease of flow '{checkpoint.flow}' cannot be read.",
        why=f"{checkpoint.metadata_dir}: {next(iter(str(error).strip().splitlines()), type(error).__name__)}.",
        state="Nothing was committed by this driver without its lease.",
        remedy="Nothing: when the storage answers, the flow continues, unless another driver has taken over.",
        code="HR-608",
    )
