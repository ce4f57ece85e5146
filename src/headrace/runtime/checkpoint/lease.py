"""One driver per checkpoint.

A second driver on a checkpoint runs the pending batch's sink again before Spark notices the conflict. So a driver takes
a lease first. Every lease has a number, its token, and the highest number owns the checkpoint:

    FLOW/headrace/leases/00000007        who took lease 7: a record that is made exclusively and never changed
    FLOW/headrace/leases/00000007.beat   a counter that its holder moves on, or `ended`

Who may take the next number depends on the kind of the lease.

| kind   | the next number is for                                                            | a dead driver holds it |
|--------|-----------------------------------------------------------------------------------|------------------------|
| lock   | the process that holds a lock of the operating system on FLOW/headrace/lease      | not at all             |
| record | who has watched the counter stand still for `seconds`, by its own monotonic clock | for `seconds`          |

No clocks are compared between machines. Two that watch the same counter make the same next number: one of them does.

A lease cannot stop a driver that was paused: it does not know that it lost. So the runtime asks `Holding.check` before
a batch is handed to its sink and again before Spark may commit it, and a record's own thread asks with every beat. What
is under way in between is for the sink to refuse; docs/operate/leases.md says how each sink does.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime

from py4j.protocol import Py4JError

from headrace.clients.storage import is_local, local_path
from headrace.errors import ConfigError, HeadraceError, PartUnavailable, RecoveryError
from headrace.flow.target import Lease
from headrace.runtime.checkpoint.checkpoint import Checkpoint

# A holder that is slow may miss some beats before anybody takes its lease from it.
_BEATS_PER_LEASE = 6
_ENDED = "ended"
_DIGITS = 8


class Holding:
    """A lease that is held. Made by `lease`; every method may be called from any thread."""

    def __init__(self, checkpoint: Checkpoint, token: int, record: str) -> None:
        self.token = token
        self._checkpoint, self._record = checkpoint, record
        self._act: Callable[[], None] = lambda: None

    def check(self) -> None:
        """Raise unless this lease is still the highest: RecoveryError when it is lost, PartUnavailable if unknown."""
        try:
            highest = highest_lease(self._checkpoint)
            record = self._checkpoint.files.read(_path(self._checkpoint, self.token))
        except (OSError, Py4JError) as error:
            raise _unanswered(self._checkpoint, error) from error
        # On storage that makes no file exclusively, two may have made this number: the later text stands.
        if highest == self.token and record == self._record:
            return
        by = f"lease {highest} was taken by {_holder(self._checkpoint, highest)}" if highest else "its record is gone"
        raise RecoveryError(
            f"Flow '{self._checkpoint.flow}' has lost its lease.",
            why=f"This driver holds lease {self.token} of {self._checkpoint.folder}, and {by}.",
            state="This driver commits nothing more. The sinks hold each batch as the other driver leaves it.",
            remedy="Leave the flow to the other driver, or stop that one and start the flow again. If this driver was "
            "paused or its storage was away for longer than the lease, raise `lease.seconds` in headrace.yml.",
            code="HR-330",
        )

    @contextmanager
    def required(self) -> Iterator[None]:
        """Ask before the block and after it: around a sink's write, Spark commits the batch only when both are well."""
        self.check()
        yield
        self.check()

    def explained(self, error: Exception) -> Exception:
        """Return what a failed batch died of: the lost lease, if it is lost, for then the sink refused its driver."""
        try:
            self.check()
        except RecoveryError as lost:
            lost.__cause__ = error
            return lost
        except PartUnavailable:
            return error
        return error

    def when_lost(self, act: Callable[[], None]) -> None:
        """Call `act` once, from a thread of the lease, when a beat finds that it is lost. The last one given counts."""
        self._act = act

    @contextmanager
    def beating(self, every: float) -> Iterator[None]:
        """Move the counter on while the block runs, and say at its end that the lease is free."""
        done = threading.Event()
        path = f"{_path(self._checkpoint, self.token)}.beat"
        self._checkpoint.files.write(path, "0")

        def beat() -> None:
            count = 0
            while not done.wait(every):
                count += 1
                try:
                    self.check()
                    self._checkpoint.files.write(path, str(count))
                except (OSError, Py4JError, PartUnavailable):
                    # The storage is away. Whoever can reach it may take over, and the next beat finds out.
                    continue
                except RecoveryError:
                    self._act()
                    return

        thread = threading.Thread(target=beat, name=f"lease-{self._checkpoint.flow}", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
            # Lost, or not to be told: the next driver waits as it would for one that died.
            with suppress(OSError, Py4JError, HeadraceError):
                self.check()
                self._checkpoint.files.write(path, _ENDED)


@contextmanager
def lease(checkpoint: Checkpoint, terms: Lease | None = None) -> Iterator[Holding]:
    """Hold the checkpoint, or raise when another process does. A record is watched for up to `terms.seconds`."""
    terms = terms or Lease()
    local = is_local(checkpoint.house)
    if terms.kind == "lock" and not local:
        raise ConfigError(
            f"The checkpoint of flow '{checkpoint.flow}' cannot be locked.",
            why=f"A lock of the operating system needs a local folder, and the checkpoint is {checkpoint.folder}.",
            state="Nothing was started and nothing was written.",
            remedy="Remove `lease.kind` from the target in headrace.yml, or set it to record.",
            code="HR-102",
        )
    with ExitStack() as stack:
        try:
            if local and terms.kind != "record":
                stack.enter_context(_locked(checkpoint))
                holding = _taken(checkpoint, highest_lease(checkpoint) + 1)
            else:
                holding = _taken(checkpoint, _watched(checkpoint, terms.seconds) + 1)
                stack.enter_context(holding.beating(terms.seconds / _BEATS_PER_LEASE))
        except OSError as error:
            raise ConfigError(
                f"The checkpoint of flow '{checkpoint.flow}' cannot be written.",
                why=f"{checkpoint.house}: {os.strerror(error.errno or 0)}.",
                state="Nothing was started and nothing was written.",
                remedy="Make the folder writable, or set another checkpoints root in headrace.yml.",
                code="HR-111",
            ) from error
        except Py4JError as error:
            raise _unanswered(checkpoint, error) from error
        yield holding


def go_on_above(checkpoint: Checkpoint, number: int) -> None:
    """Let the next lease have a number above one that was taken before, where the records of it are lost.

    Called by a restore: sinks remember the highest number that they have seen, and refuse drivers with a lower one.
    """
    if highest_lease(checkpoint) < number:
        checkpoint.files.write(f"{_path(checkpoint, number)}.beat", _ENDED)
        checkpoint.files.create(_path(checkpoint, number), json.dumps({"restored": True}))


@contextmanager
def _locked(checkpoint: Checkpoint) -> Iterator[None]:
    path = local_path(checkpoint.house) / "lease"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise _running(checkpoint) from error
        yield


def _watched(checkpoint: Checkpoint, seconds: float) -> int:
    """Return the highest number when its holder is done or has been silent for `seconds`; raise when it lives."""
    number = highest_lease(checkpoint)
    path = f"{_path(checkpoint, number)}.beat"
    heard, since = checkpoint.files.read(path), time.monotonic()
    while number and heard != _ENDED and time.monotonic() - since < seconds:
        time.sleep(seconds / _BEATS_PER_LEASE / 2)
        now = checkpoint.files.read(path)
        if now not in (heard, _ENDED) or highest_lease(checkpoint) != number:
            raise _running(checkpoint)
        heard = now
    return number


def _taken(checkpoint: Checkpoint, number: int) -> Holding:
    """Make the record of a number, or raise when another driver was faster; then forget the numbers before it."""
    holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": datetime.now(UTC).isoformat()}
    record = json.dumps({**holder, "nonce": uuid.uuid4().hex})
    if not checkpoint.files.create(_path(checkpoint, number), record):
        raise _running(checkpoint)
    holding = Holding(checkpoint, number, record)
    try:
        # A number that was passed and forgotten can be made again; it is not the highest then.
        holding.check()
    except RecoveryError as lost:
        raise _running(checkpoint) from lost
    for name in checkpoint.files.names(_folder(checkpoint)):
        if name[:_DIGITS].isdigit() and int(name[:_DIGITS]) < number:
            checkpoint.files.delete(f"{_folder(checkpoint)}/{name}")
    return holding


def highest_lease(checkpoint: Checkpoint) -> int:
    """Return the highest number that was taken, 0 before the first."""
    return max((int(name) for name in checkpoint.files.names(_folder(checkpoint)) if name.isdigit()), default=0)


def _folder(checkpoint: Checkpoint) -> str:
    return f"{checkpoint.house}/leases"


def _path(checkpoint: Checkpoint, number: int) -> str:
    return f"{_folder(checkpoint)}/{number:0{_DIGITS}d}"


def _holder(checkpoint: Checkpoint, number: int) -> str:
    try:
        record = checkpoint.files.read(_path(checkpoint, number))
        holder = json.loads(record or "")
        return f"process {holder['pid']} on {holder['host']} at {holder['since']}"
    except (OSError, Py4JError, ValueError, KeyError, TypeError):
        return "another process"


def _running(checkpoint: Checkpoint) -> RecoveryError:
    return RecoveryError(
        f"Flow '{checkpoint.flow}' is running already.",
        why=f"Its checkpoint {checkpoint.folder} was taken by {_holder(checkpoint, highest_lease(checkpoint))}.",
        state="Nothing was started; the running flow is not touched.",
        remedy="Stop the other process, or run this flow against another target.",
        code="HR-302",
    )


def _unanswered(checkpoint: Checkpoint, error: Exception) -> PartUnavailable:
    return PartUnavailable(
        f"The lease of flow '{checkpoint.flow}' cannot be read.",
        why=f"{checkpoint.house}: {next(iter(str(error).strip().splitlines()), type(error).__name__)}.",
        state="Nothing was committed by this driver without its lease.",
        remedy="Nothing: when the storage answers, the flow goes on, unless another driver has taken over.",
        code="HR-608",
    )
