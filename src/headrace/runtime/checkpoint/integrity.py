"""Verifies the logs of a checkpoint, before each start and for `headrace checkpoint`.

Every flaw names a file, the problem, its meaning for the flow, and the remedy. A flow does not start on a damaged
checkpoint: Spark would fail later with less detail, or continue from other rows.

| problem                                       | level  | reason                                                      |
|-----------------------------------------------|--------|-------------------------------------------------------------|
| a file is empty, torn, or was changed         | damage | its content is lost                                         |
| a recorded or intermediate file is missing    | damage | Spark purges from the beginning, and never the last entries |
| the commit of the last batch is missing       | note   | as after a crash: the batch is retried from its offsets     |
| a file has no checksum yet                    | note   | the driver died, or runs, between a commit and its record   |
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from headrace.errors import RecoveryError
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.checkpoint.manifest import LOGS, SOURCE_LOG, Manifest, ManifestSums, log_files

# A restore writes this file before its first change and deletes it after its last.
RESTORE_MARKER = "restoring.json"

# Sessions tell Spark to keep at least this many batches. Older files may be partly purged, in any order, by a killed
# driver; nothing reads them.
_RETAINED = 100

_BACKUP = "Restore a backup: `headrace checkpoint restore {flow} --from BACKUP`."


@dataclass(frozen=True)
class CheckpointProblem:
    """A problem with one file of a checkpoint. `path` is relative to the folder of the flow."""

    level: Literal["damage", "note"]
    path: str
    problem: str
    means: str
    remedy: str


def require_intact(checkpoint: Checkpoint) -> None:
    """Raise if the logs are damaged. Called under the lease, before each start of a query."""
    damages = [flaw for flaw in find_log_flaws(checkpoint) if flaw.level == "damage"]
    if damages:
        raise damaged_error(checkpoint, damages)


def damaged_error(checkpoint: Checkpoint, damages: list[CheckpointProblem]) -> RecoveryError:
    """Return the error for a damaged checkpoint: the first damage in full, and the number of others."""
    first, others = damages[0], len(damages) - 1
    hint = f" {others} more: `headrace checkpoint verify {checkpoint.flow}` lists all." if others else ""
    return RecoveryError(
        f"Flow '{checkpoint.flow}': the checkpoint is damaged: {checkpoint.folder}/{first.path} {first.problem}.",
        why=f"{first.means}{hint}",
        state="Nothing was started and nothing was changed. The sinks hold every batch that was committed.",
        remedy=first.remedy,
        code="HR-320",
    )


def find_log_flaws(checkpoint: Checkpoint) -> list[CheckpointProblem]:
    """Return the flaws of the logs, damage first. Reads every file once; changes nothing."""
    # The manifest first: a file that it names was written before.
    recorded = Manifest(checkpoint).read()
    present = set(log_files(checkpoint))
    flaws = [
        *_unfinished_restore(checkpoint),
        *_manifest_flaws(checkpoint, recorded),
        *_missing_files(checkpoint, recorded, present),
        *_content_flaws(checkpoint, recorded, present),
    ]
    return sorted(flaws, key=lambda flaw: flaw.level)


def batch_numbers(paths: set[str], log: str) -> list[int]:
    """Return the batches that have a file in a log, oldest first."""
    return sorted(int(path.rpartition("/")[2]) for path in paths if path.startswith(f"{log}/"))


def _unfinished_restore(checkpoint: Checkpoint) -> Iterator[CheckpointProblem]:
    if checkpoint.files.read_bytes(f"{checkpoint.metadata_dir}/{RESTORE_MARKER}") is not None:
        yield CheckpointProblem(
            "damage",
            f"headrace/{RESTORE_MARKER}",
            "shows that a restore was interrupted",
            "Parts of the backup and of the checkpoint before it may be mixed.",
            "Run the same `headrace checkpoint restore` again.",
        )


def _manifest_flaws(checkpoint: Checkpoint, recorded: ManifestSums) -> Iterator[CheckpointProblem]:
    for path in recorded.damaged:
        yield CheckpointProblem(
            "damage",
            f"headrace/{path}",
            "is not what Headrace wrote",
            "It has the checksums of files of the checkpoint, which now cannot be compared.",
            f"Look after the disk. If `headrace checkpoint verify {checkpoint.flow}` finds nothing else, delete the "
            "file: the next batch records the checksums again.",
        )


def _missing_files(checkpoint: Checkpoint, recorded: ManifestSums, present: set[str]) -> Iterator[CheckpointProblem]:
    """Yield the missing files: recorded ones, and gaps in the logs."""
    planned, committed = batch_numbers(present, "offsets"), batch_numbers(present, "commits")
    if "metadata" not in present and ("metadata" in recorded.sums or planned or committed):
        yield _missing_flaw(checkpoint, "metadata")
    for path in sorted(set(recorded.sums) - present - {"metadata"}, key=_sort_key):
        if path == f"commits/{planned[-1] if planned else None}":
            yield CheckpointProblem(
                "note",
                f"spark/{path}",
                "existed and is missing",
                "The same as a crash before the commit: the next start runs the batch again from the same offsets.",
                "Nothing to do: exactly-once sinks skip what they hold of it.",
            )
        elif not _may_be_purged(path, present):
            yield _missing_flaw(checkpoint, path)
    oldest = max(planned[0], planned[-1] - _RETAINED) if planned else 0
    committed_later = {number for number in committed if planned and number > oldest}
    for number in sorted(_missing_numbers(planned) | committed_later - set(planned)):
        if f"offsets/{number}" not in recorded.sums:
            yield _missing_flaw(checkpoint, f"offsets/{number}")
    if committed and not planned and not any(path.startswith("offsets/") for path in recorded.sums):
        yield _missing_flaw(checkpoint, f"offsets/{committed[-1]}")
    # Every batch except the last one is committed before the next one is planned.
    planned_later = {number for number in planned[:-1] if number > max(oldest - 1, committed[0] if committed else -1)}
    for number in sorted(_missing_numbers(committed) | planned_later - set(committed)):
        if f"commits/{number}" not in recorded.sums:
            yield _missing_flaw(checkpoint, f"commits/{number}")


def _missing_numbers(batches: list[int]) -> set[int]:
    if not batches:
        return set()
    return set(range(max(batches[0], batches[-1] - _RETAINED + 1), batches[-1] + 1)) - set(batches)


def _may_be_purged(path: str, present: set[str]) -> bool:
    """Whether Spark may have deleted a file: it deletes the oldest files of a log, and compacted ones."""
    log, _, name = path.rpartition("/")
    number = _number(name)
    names = [file.rpartition("/")[2] for file in present if file.rpartition("/")[0] == log]
    if log in LOGS:
        numbers = [_number(file) for file in names]
        return bool(names) and (min(numbers) > number or max(numbers) - number >= _RETAINED)
    return any(file.endswith(".compact") and _number(file) >= number for file in names)


def _content_flaws(checkpoint: Checkpoint, recorded: ManifestSums, present: set[str]) -> Iterator[CheckpointProblem]:
    """Yield the files that are empty, torn, different from the manifest, or not in it."""
    last = {log: max(batch_numbers(present, log), default=-1) for log in LOGS}
    for path in sorted(present, key=_sort_key):
        content = checkpoint.files.read_bytes(f"{checkpoint.location}/{path}")
        if content is None:  # purged since the folder was listed
            continue
        checksum = recorded.sums.get(path)
        if checksum is not None and hashlib.sha256(content).hexdigest() == checksum:
            continue
        problem = _parse_problem(path, content)
        if problem is None and checksum is not None:
            problem = "was changed since it was written: its sha256 is not that of the manifest"
        if problem is not None:
            yield CheckpointProblem(
                "damage", f"spark/{path}", problem, _file_purpose(path), _repair(checkpoint, path, last, present)
            )
        elif recorded.sums:
            yield CheckpointProblem(
                "note",
                f"spark/{path}",
                "is not in the manifest yet",
                "The driver runs, or ended between the batch and its note. The file can be read.",
                "Nothing to do: the next batch records its checksum.",
            )


def _parse_problem(path: str, content: bytes) -> str | None:
    """Return the problem of a file that Spark could not parse, or None."""
    if not content:
        return "is empty"
    try:
        _parse(path, content.decode())
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
        # Later versions name the sources and use a different format.
        for line in lines[1:] if version == "v1" else ():
            line == "-" or json.loads(line)
    else:
        int(settings["nextBatchWatermarkMs"])


def _missing_flaw(checkpoint: Checkpoint, path: str) -> CheckpointProblem:
    return CheckpointProblem(
        "damage", f"spark/{path}", "is not there", _file_purpose(path), _BACKUP.format(flow=checkpoint.flow)
    )


def _file_purpose(path: str) -> str:
    log, _, name = path.rpartition("/")
    if path == "metadata":
        return "It has the query id of the checkpoint, by which sinks recognize the batches that they contain."
    if log == "offsets":
        return f"It says which rows batch {name} reads."
    if log == "commits":
        return f"It says that batch {name} is in the sinks, and the watermark after it."
    return f"It says what source {log.rpartition('/')[2]} has read, or where it began."


def _repair(checkpoint: Checkpoint, path: str, last: Mapping[str, int], present: set[str]) -> str:
    """Return the smallest repair that helps."""
    log, _, name = path.rpartition("/")
    crc = f"{log}/.{name}.crc"
    if log == "commits" and int(name) == last["commits"] and int(name) == last["offsets"]:
        return (
            f"Delete spark/{path} and spark/{crc}: the next start runs batch {name} again from the same offsets, and "
            "exactly-once sinks skip what they hold of it. Or restore a backup."
        )
    if log == "offsets" and int(name) == last["offsets"] and f"commits/{name}" not in present:
        return (
            f"If no sink holds rows of batch {name}, delete spark/{path} and spark/{crc}: the next start plans the "
            f"batch again. Otherwise: {_BACKUP.format(flow=checkpoint.flow)}"
        )
    return _BACKUP.format(flow=checkpoint.flow)


def _number(name: str) -> int:
    match = SOURCE_LOG.fullmatch(name)
    return int(match[1]) if match else -1


def _sort_key(path: str) -> tuple[str, int]:
    log, _, name = path.rpartition("/")
    return log, _number(name)
