"""The report of an erasure: for machines, for people, and with a checksum that shows later changes.

    erasure-20261117T101112Z.json       all figures
    erasure-20261117T101112Z.md         the same for people
    erasure-20261117T101112Z.sha256     the sha256 of both, as `sha256sum --check` reads it

It contains no value of the row. The key and the texts are slow keyed hashes: whoever has the key can prove that the
report is about it. A key that is a small number can be found by trying all: protect the report like the keys.
"""

import getpass
import hashlib
import hmac
import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from pathlib import Path

from headrace.operate.erase import errors
from headrace.operate.erase.plan import ErasePlan

_FORMAT = 1
# 16 MB and some 50 ms for each guess.
_COST = {"n": 2**14, "r": 8, "p": 1}
_HASH_LENGTH_SHOWN = 24


@dataclass(frozen=True)
class ReportVerification:
    """Whether a report is unchanged: the files that differ, and whether it is about the key in question."""

    differ: tuple[str, ...]
    about: bool | None
    erased: bool

    @property
    def is_valid(self) -> bool:
        """Whether the report can be trusted."""
        return not self.differ and self.about is not False


def report(plan: ErasePlan, began: datetime, ended: datetime, reference: str) -> dict[str, object]:
    """Return the content of the report of an applied erasure."""
    salt = os.urandom(16).hex()
    return {
        "format": _FORMAT,
        "reference": reference,
        "erased": plan.is_clean,
        "began": began.isoformat(timespec="seconds"),
        "ended": ended.isoformat(timespec="seconds"),
        "by": getpass.getuser(),
        "host": socket.gethostname(),
        "versions": {name: version(name) for name in ("headrace", "pyspark", "delta-spark", "pyarrow")},
        "subject": {
            "table": plan.subject.table,
            "columns": list(plan.subject.key),
            "salt": salt,
            "hash": keyed_hash(_key(plan.subject.key), salt),
        },
        "texts": [keyed_hash(text, salt)[:_HASH_LENGTH_SHOWN] for text in plan.texts.values],
        "source": [{"database": name, "row": answer, "why": why} for name, answer, why in plan.source],
        "places": [_redacted(place.as_dict(), plan) for place in plan.places],
        "readers": [{"flow": flow, "table": table} for flow, table in plan.readers],
        "beyond": [place.as_dict() for place in plan.beyond],
    }


def write(folder: Path, figures: Mapping[str, object], ended: datetime) -> Path:
    """Write the three files, the checksums last: without them a report is incomplete. Return the first."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"erasure-{ended:%Y%m%dT%H%M%S}Z"
    number = 1
    while (folder / f"{name}.json").exists():
        number += 1
        name = f"{name.partition('-x')[0]}-x{number}"
    texts = {f"{name}.json": json.dumps(figures, indent=1) + "\n", f"{name}.md": to_markdown(figures)}
    for file, text in texts.items():
        (folder / file).write_text(text)
    sums = "".join(f"{hashlib.sha256(text.encode()).hexdigest()}  {file}\n" for file, text in texts.items())
    (folder / f"{name}.sha256").write_text(sums)
    return folder / f"{name}.json"


def verify(path: Path, key: Mapping[str, str] | None = None) -> ReportVerification:
    """Compare a report and its page with their checksums. Raises HR-138 if the file is not a report."""
    try:
        lines = path.with_suffix(".sha256").read_text().splitlines()
        figures = json.loads(path.read_text())
        subject, erased = figures["subject"], bool(figures["erased"])
        salt, expected, columns = str(subject["salt"]), str(subject["hash"]), list(subject["columns"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise errors.not_a_report(path, f"{type(error).__name__}: {error}.") from error
    changed = []
    checksums = {name: checksum for checksum, _, name in (line.partition("  ") for line in lines)}
    for name in (path.name, path.with_suffix(".md").name):
        file = path.with_name(name)
        content = file.read_bytes() if file.is_file() else b""
        if not hmac.compare_digest(hashlib.sha256(content).hexdigest(), checksums.get(name, "")):
            changed.append(name)
    is_about_key = None
    if key is not None:
        # A key without a column name belongs to the only column that the report names.
        named = {columns[0] if name == "" and len(columns) == 1 else name: text for name, text in key.items()}
        is_about_key = hmac.compare_digest(keyed_hash(_key(named), salt), expected)
    return ReportVerification(tuple(changed), is_about_key, erased)


def keyed_hash(text: str, salt: str) -> str:
    """Return a slow hash, so that guessing many keys takes long."""
    return hashlib.scrypt(text.encode("utf-8", "surrogatepass"), salt=bytes.fromhex(salt), dklen=32, **_COST).hex()


def to_markdown(figures: Mapping[str, object]) -> str:
    """Return the report as Markdown."""
    places, beyond, source = (_rows(figures[name]) for name in ("places", "beyond", "source"))
    subject = figures["subject"]
    assert isinstance(subject, dict)  # noqa: S101 - created above
    lines = [
        "# Erasure",
        "",
        "**Erased: nothing of the row was found in any scanned place.**"
        if figures["erased"]
        else "**Not all is erased: the places below with `left` or `yes` still contain something.**",
        "",
        f"- Table: {subject['table']}, by {', '.join(subject['columns'])}; "
        f"keyed hash {subject['hash'][:_HASH_LENGTH_SHOWN]}",
        f"- Reference: {figures['reference'] or 'none'}",
        f"- Time: {figures['began']} to {figures['ended']}, by {figures['by']} on {figures['host']}",
        f"- Searched for: the key, and {len(list(_rows(figures['texts'])))} text(s) that only this row had",
        "",
        "| place | kind | outcome | rows deleted | rows in files | after | files | after | log files removed |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for place in places:
        before, after = place["before"], place["after"]
        lines.append(
            f"| {place['path']} | {place['kind']} | {place['outcome']} | {place['rows_deleted']} | {before['rows']} | "
            f"{after['rows']} | {before['files']} | {after['files']} | {place['log_files_removed']} |"
        )
    remaining = [place for place in places if place["remedy"]]
    if remaining:
        lines += ["", "## Left or unproven", "", *(f"- {place['path']}: {place['remedy']}" for place in remaining)]
    if source:
        lines += ["", "## The source", ""]
        lines += [
            f"- Database {place['database']}: the row is {place['row']}. {place['why']}".rstrip() for place in source
        ]
    if beyond:
        lines += ["", "## Not changed here", "", "| place | contains it | why | what removes it |", "|---|---|---|---|"]
        lines += [f"| {place['place']} | {place['holds']} | {place['why']} | {place['removes']} |" for place in beyond]
    return "\n".join([*lines, ""])


def _rows(value: object) -> list[dict]:  # type: ignore[type-arg]
    assert isinstance(value, list)  # noqa: S101 - lists of the report
    return value


def _key(key: Mapping[str, str]) -> str:
    return json.dumps(dict(key), sort_keys=True)


def _redacted(place: dict[str, object], plan: ErasePlan) -> dict[str, object]:
    """Return a place without texts of the row: the folder of a partition may contain one."""
    pattern = plan.texts.pattern()
    if pattern is None:
        return place
    return {**place, "path": pattern.sub(b"[erased]", str(place["path"]).encode()).decode("utf-8", "replace")}
