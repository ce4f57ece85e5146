"""Whether the logs of a checkpoint can be trusted: asked before Spark is let near them, and by `headrace checkpoint`.

Every flaw names a file, what is wrong with it, what that means for the flow, and what to do. A flow is not started on a
checkpoint with damage: Spark would stop later and say less, or go on from other rows.

| found                                         | weight | because                                                     |
|-----------------------------------------------|--------|-------------------------------------------------------------|
| a file is empty, torn, or not what was noted  | damage | what it held is gone                                        |
| a file that was noted, or one in a row, lacks | damage | Spark purges from the beginning, and never the last entries |
| the commit of the last batch lacks            | note   | as after a crash: the batch is run again from its offsets   |
| a file has no sum yet                         | note   | the driver died, or runs, between a commit and its note     |
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Literal

from headrace.errors import RecoveryError
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.checkpoint.manifest import LOGS, SOURCE_LOG, Known, Manifest, log_files

# Written by a restore before its first change and deleted after its last.
RESTORING = "restoring.json"

# Sessions tell Spark to keep at least so many batches. What is older may be half purged, in any order, by a driver that
# was killed; nothing reads it any more.
_RETAINED = 100

_BACKUP = "Restore a backup: `headrace checkpoint restore {flow} --from BACKUP`."


@dataclass(frozen=True)
class Flaw:
    """One thing about one file of a checkpoint. `path` is relative to the flow's folder."""

    level: Literal["damage", "note"]
    path: str
    found: str
    means: str
    remedy: str

    def as_dict(self) -> dict[str, str]:
        """The flaw as `--json` prints it."""
        return asdict(self)


def require_intact(checkpoint: Checkpoint) -> None:
    """Raise when the logs are damaged. Called under the lease, before each start of a query."""
    damages = [flaw for flaw in log_flaws(checkpoint) if flaw.level == "damage"]
    if damages:
        raise damaged(checkpoint, damages)


def damaged(checkpoint: Checkpoint, damages: list[Flaw]) -> RecoveryError:
    """Return the error for a checkpoint with damage: the first one in full, and how many more there are."""
    first, more = damages[0], len(damages) - 1
    others = f" {more} more: `headrace checkpoint verify {checkpoint.flow}` lists all." if more else ""
    return RecoveryError(
        f"Flow '{checkpoint.flow}': the checkpoint is damaged: {checkpoint.folder}/{first.path} {first.found}.",
        why=f"{first.means}{others}",
        state="Nothing was started and nothing was changed. The sinks hold every batch that was committed.",
        remedy=first.remedy,
        code="HR-320",
    )


def log_flaws(checkpoint: Checkpoint) -> list[Flaw]:
    """Return what is wrong with the logs, damage first. Reads every file of them once; changes nothing."""
    # The manifest first: a file that it names was written before.
    known = Manifest(checkpoint).known()
    present = set(log_files(checkpoint))
    flaws = [
        *_restore_cut_off(checkpoint),
        *_manifest_flaws(checkpoint, known),
        *_missing(checkpoint, known, present),
        *_contents(checkpoint, known, present),
    ]
    return sorted(flaws, key=lambda flaw: flaw.level)


def numbers(paths: set[str], log: str) -> list[int]:
    """Return the batches that a log has a file of, oldest first."""
    return sorted(int(path.rpartition("/")[2]) for path in paths if path.startswith(f"{log}/"))


def _restore_cut_off(checkpoint: Checkpoint) -> Iterator[Flaw]:
    if checkpoint.files.read_bytes(f"{checkpoint.house}/{RESTORING}") is not None:
        yield Flaw(
            "damage",
            f"headrace/{RESTORING}",
            "says that a restore was cut off",
            "Parts of the backup and of the checkpoint before it may be mixed.",
            "Run the same `headrace checkpoint restore` again.",
        )


def _manifest_flaws(checkpoint: Checkpoint, known: Known) -> Iterator[Flaw]:
    for path in known.damaged:
        yield Flaw(
            "damage",
            f"headrace/{path}",
            "is not what Headrace wrote",
            "It holds sums of files of the checkpoint; these cannot be compared.",
            f"Look after the disk. If `headrace checkpoint verify {checkpoint.flow}` finds nothing else, delete the "
            "file: the sums are taken again with the next batch.",
        )


def _missing(checkpoint: Checkpoint, known: Known, present: set[str]) -> Iterator[Flaw]:
    """Yield the files that were there, or must have been."""
    begun, done = numbers(present, "offsets"), numbers(present, "commits")
    if "metadata" not in present and ("metadata" in known.sums or begun or done):
        yield _lost(checkpoint, "metadata")
    for path in sorted(set(known.sums) - present - {"metadata"}, key=_place):
        if path == f"commits/{begun[-1] if begun else None}":
            yield Flaw(
                "note",
                f"spark/{path}",
                "was there and is gone",
                "The same as a crash before the commit: the next start runs the batch again from the same offsets.",
                "Nothing to do: exactly-once sinks skip what they hold of it.",
            )
        elif not _purged(path, present):
            yield _lost(checkpoint, path)
    oldest = max(begun[0], begun[-1] - _RETAINED) if begun else 0
    for number in sorted(_gaps(begun) | {number for number in done if begun and number > oldest} - set(begun)):
        if f"offsets/{number}" not in known.sums:
            yield _lost(checkpoint, f"offsets/{number}")
    if done and not begun and not any(path.startswith("offsets/") for path in known.sums):
        yield _lost(checkpoint, f"offsets/{done[-1]}")
    # Every batch but the last one is committed before the next one is begun.
    begun_later = {number for number in begun[:-1] if number > max(oldest - 1, done[0] if done else -1)}
    for number in sorted(_gaps(done) | begun_later - set(done)):
        if f"commits/{number}" not in known.sums:
            yield _lost(checkpoint, f"commits/{number}")


def _gaps(found: list[int]) -> set[int]:
    return set(range(max(found[0], found[-1] - _RETAINED + 1), found[-1] + 1)) - set(found) if found else set()


def _purged(path: str, present: set[str]) -> bool:
    """Whether Spark may have deleted a file: it does so from the beginning of a log, and what was compacted."""
    log, _, name = path.rpartition("/")
    number = _number(name)
    there = [each.rpartition("/")[2] for each in present if each.rpartition("/")[0] == log]
    if log in LOGS:
        numbers_there = [_number(each) for each in there]
        return bool(there) and (min(numbers_there) > number or max(numbers_there) - number >= _RETAINED)
    return any(each.endswith(".compact") and _number(each) >= number for each in there)


def _contents(checkpoint: Checkpoint, known: Known, present: set[str]) -> Iterator[Flaw]:
    """Yield the files that are empty, torn, or not what the manifest holds; and those that it does not hold."""
    last = {log: max(numbers(present, log), default=-1) for log in LOGS}
    for path in sorted(present, key=_place):
        found = checkpoint.files.read_bytes(f"{checkpoint.location}/{path}")
        if found is None:  # purged since the folder was listed
            continue
        noted = known.sums.get(path)
        if noted is not None and hashlib.sha256(found).hexdigest() == noted:
            continue
        wrong = _torn(path, found)
        if wrong is None and noted is not None:
            wrong = "was changed since it was written: its sha256 is not that of the manifest"
        if wrong is not None:
            yield Flaw("damage", f"spark/{path}", wrong, _meaning(path), _repair(checkpoint, path, last, present))
        elif known.sums:
            yield Flaw(
                "note",
                f"spark/{path}",
                "is not in the manifest yet",
                "The driver runs, or ended between the batch and its note. The file can be read.",
                "Nothing to do: its sum is taken with the next batch.",
            )


def _torn(path: str, found: bytes) -> str | None:
    """Return what is wrong with a file's text, or None when it reads as Spark writes it."""
    if not found:
        return "is empty"
    try:
        _parse(path, found.decode())
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        return f"is torn: {str(error).splitlines()[0]}"
    return None


def _parse(path: str, text: str) -> None:
    if path == "metadata":
        json.loads(text)["id"]
        return
    # Kafka's source writes a zero byte before the version, for readers of Spark 2.1.
    version, *lines = text.lstrip("\0").split("\n")
    if not re.fullmatch(r"v\d+", version):
        raise ValueError("it does not begin with a version")
    if not any(lines):
        raise ValueError("it ends after the version")
    if path.startswith("sources/"):
        for line in filter(None, lines):
            json.loads(line)
        return
    # Continuous processing leaves the line of settings empty in its offsets.
    settings = json.loads(lines[0]) if lines[0] or not path.startswith("offsets/") else {"batchWatermarkMs": 0}
    if path.startswith("offsets/"):
        int(settings["batchWatermarkMs"])
        if len(lines) < 2:
            raise ValueError("it ends before the offsets")
        # Later versions name the sources and write them in another way.
        for line in lines[1:] if version == "v1" else ():
            line == "-" or json.loads(line)
    else:
        int(settings["nextBatchWatermarkMs"])


def _lost(checkpoint: Checkpoint, path: str) -> Flaw:
    return Flaw("damage", f"spark/{path}", "is not there", _meaning(path), _BACKUP.format(flow=checkpoint.flow))


def _meaning(path: str) -> str:
    log, _, name = path.rpartition("/")
    if path == "metadata":
        return "It holds the identity of the checkpoint, by which sinks know the batches that they hold."
    if log == "offsets":
        return f"It says which rows batch {name} reads."
    if log == "commits":
        return f"It says that batch {name} is in the sinks, and the watermark after it."
    return f"It says what source {log.rpartition('/')[2]} has read, or where it began."


def _repair(checkpoint: Checkpoint, path: str, last: Mapping[str, int], present: set[str]) -> str:
    """Return the smallest thing that helps."""
    log, _, name = path.rpartition("/")
    side = f"{log}/.{name}.crc"
    if log == "commits" and int(name) == last["commits"] and int(name) == last["offsets"]:
        return (
            f"Delete spark/{path} and spark/{side}: the next start runs batch {name} again from the same offsets, and "
            "exactly-once sinks skip what they hold of it. Or restore a backup."
        )
    if log == "offsets" and int(name) == last["offsets"] and f"commits/{name}" not in present:
        return (
            f"If no sink holds rows of batch {name}, delete spark/{path} and spark/{side}: the batch is planned anew. "
            f"Otherwise: {_BACKUP.format(flow=checkpoint.flow)}"
        )
    return _BACKUP.format(flow=checkpoint.flow)


def _number(name: str) -> int:
    match = SOURCE_LOG.fullmatch(name)
    return int(match[1]) if match else -1


def _place(path: str) -> tuple[str, int]:
    log, _, name = path.rpartition("/")
    return log, _number(name)
