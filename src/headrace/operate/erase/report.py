"""The report of an erasure: for machines, for people, and with a sum that shows whether it was changed since.

    erasure-20261117T101112Z.json       all figures
    erasure-20261117T101112Z.md         the same to read
    erasure-20261117T101112Z.sha256     the sha256 of both, as `sha256sum --check` reads it

No value of the row is in it. The key and the texts stand there as slow keyed hashes: whoever has the key can show that
the report is about it. A key that is a small number can be guessed by trying all: treat the report as you treat keys.
"""

from __future__ import annotations

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

from headrace.operate.erase import errors as refusals
from headrace.operate.erase.plan import ErasePlan

_FORMAT = 1
# 16 MB and some 50 ms for each guess.
_COST = {"n": 2**14, "r": 8, "p": 1}
_SHOWN = 24


@dataclass(frozen=True)
class Verdict:
    """Whether a report is as it was written: files that differ, and whether it is about a key that was given."""

    differ: tuple[str, ...]
    about: bool | None
    erased: bool

    @property
    def holds(self) -> bool:
        """Whether the report can be relied upon."""
        return not self.differ and self.about is not False


def report(plan: ErasePlan, began: datetime, ended: datetime, reference: str) -> dict[str, object]:
    """Return the figures of an erasure that was carried out."""
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
        "texts": [keyed_hash(text, salt)[:_SHOWN] for text in plan.texts.values],
        "source": [{"database": name, "row": answer, "why": why} for name, answer, why in plan.source],
        "places": [_redacted(place.as_dict(), plan) for place in plan.places],
        "readers": [{"flow": flow, "table": table} for flow, table in plan.readers],
        "beyond": [each.as_dict() for each in plan.beyond],
    }


def write(folder: Path, figures: Mapping[str, object], ended: datetime) -> Path:
    """Write the three files, the sums last: a report without them was cut off. Return the first."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"erasure-{ended:%Y%m%dT%H%M%S}Z"
    number = 1
    while (folder / f"{name}.json").exists():
        number += 1
        name = f"{name.partition('-x')[0]}-x{number}"
    texts = {f"{name}.json": json.dumps(figures, indent=1) + "\n", f"{name}.md": page(figures)}
    for file, text in texts.items():
        (folder / file).write_text(text)
    sums = "".join(f"{hashlib.sha256(text.encode()).hexdigest()}  {file}\n" for file, text in texts.items())
    (folder / f"{name}.sha256").write_text(sums)
    return folder / f"{name}.json"


def verify(path: Path, key: Mapping[str, str] | None = None) -> Verdict:
    """Compare a report and its page with their sums. Raises HR-138 for what is no report."""
    try:
        lines = path.with_suffix(".sha256").read_text().splitlines()
        figures = json.loads(path.read_text())
        subject, erased = figures["subject"], bool(figures["erased"])
        salt, noted, columns = str(subject["salt"]), str(subject["hash"]), list(subject["columns"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise refusals.no_report(path, f"{type(error).__name__}: {error}.") from error
    differ = []
    files = {name: noted_sum for noted_sum, _, name in (line.partition("  ") for line in lines)}
    for name in (path.name, path.with_suffix(".md").name):
        file = path.with_name(name)
        content = file.read_bytes() if file.is_file() else b""
        if not hmac.compare_digest(hashlib.sha256(content).hexdigest(), files.get(name, "")):
            differ.append(name)
    about = None
    if key is not None:
        # A key without a column's name is of the one column that the report names.
        named = {columns[0] if name == "" and len(columns) == 1 else name: text for name, text in key.items()}
        about = hmac.compare_digest(keyed_hash(_key(named), salt), noted)
    return Verdict(tuple(differ), about, erased)


def keyed_hash(text: str, salt: str) -> str:
    """Return a hash that takes a while: guessing many keys takes that while for each."""
    return hashlib.scrypt(text.encode("utf-8", "surrogatepass"), salt=bytes.fromhex(salt), dklen=32, **_COST).hex()


def page(figures: Mapping[str, object]) -> str:
    """Return the report to read."""
    places, beyond, source = (_rows(figures[name]) for name in ("places", "beyond", "source"))
    subject = figures["subject"]
    assert isinstance(subject, dict)  # noqa: S101 - made above
    lines = [
        "# Erasure",
        "",
        "**Erased: nothing of the row was found in any place that was looked through.**"
        if figures["erased"]
        else "**Not all is erased: the places below that say `left` or `yes` still hold something.**",
        "",
        f"- Table: {subject['table']}, by {', '.join(subject['columns'])}; keyed hash {subject['hash'][:_SHOWN]}",
        f"- Reference: {figures['reference'] or 'none'}",
        f"- Time: {figures['began']} to {figures['ended']}, by {figures['by']} on {figures['host']}",
        f"- Looked for: the key, and {len(list(_rows(figures['texts'])))} text(s) that only this row held",
        "",
        "| place | kind | outcome | rows deleted | rows in files | after | files | after | log files removed |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for each in places:
        before, after = each["before"], each["after"]
        lines.append(
            f"| {each['path']} | {each['kind']} | {each['outcome']} | {each['rows_deleted']} | {before['rows']} | "
            f"{after['rows']} | {before['files']} | {after['files']} | {each['log_files_removed']} |"
        )
    left = [each for each in places if each["remedy"]]
    if left:
        lines += ["", "## Left or unproven", "", *(f"- {each['path']}: {each['remedy']}" for each in left)]
    if source:
        lines += ["", "## The source", ""]
        lines += [f"- Database {each['database']}: the row is {each['row']}. {each['why']}".rstrip() for each in source]
    if beyond:
        lines += ["", "## Not changed here", "", "| place | holds it | why | what removes it |", "|---|---|---|---|"]
        lines += [f"| {each['place']} | {each['holds']} | {each['why']} | {each['removes']} |" for each in beyond]
    return "\n".join([*lines, ""])


def _rows(found: object) -> list[dict]:  # type: ignore[type-arg]
    assert isinstance(found, list)  # noqa: S101 - lists of the report
    return found


def _key(key: Mapping[str, str]) -> str:
    return json.dumps(dict(key), sort_keys=True)


def _redacted(place: dict[str, object], plan: ErasePlan) -> dict[str, object]:
    """Return a place without texts of the row: the folder of a partition may be named after one."""
    pattern = plan.texts.pattern()
    if pattern is None:
        return place
    return {**place, "path": pattern.sub(b"[erased]", str(place["path"]).encode()).decode("utf-8", "replace")}
