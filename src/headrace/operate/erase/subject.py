"""The subject of an erasure: a row of a source table, the columns that identify it elsewhere, and its texts.

| table of the lake                                        | its rows of the subject                                  |
|----------------------------------------------------------|----------------------------------------------------------|
| with the name of the source table (mirror, history, log of changes, tombstones) | those with the key in the key's own columns |
| named by `--column PATH=COLUMN`                          | those with the key in that column                        |
| any other                                                | those with the key in a column named after the table: for `customers` `customer_id`, `customers_id`, `customerId`; or named as its key, if that is more specific than `id` |
| of quarantined rows                                      | those whose payload has one of these columns with the key, or one of the texts |
"""  # noqa: E501 - a row of a table

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

# Delta truncates texts in its statistics to this length: search terms must not be longer.
_STATISTICS_LENGTH = 32
# Shorter texts occur in files by chance.
_MIN_TEXT_LENGTH = 4
# Numbers and times are everywhere; rows with them are found by their key.
_NUMBER = re.compile(r"[\d.,+\-\s]{1,6}|\d{4}-\d\d-\d\d.*|true|false|null", re.IGNORECASE)
# The type suffix of a number in SQL.
_NUMBER_SUFFIX = "(?:[YSL]|BD)?"
# Names of key columns that do not identify the table.
_GENERIC_KEY_NAMES = {"id", "key", "uuid", "pk", "nr", "no", "number", "code", "name"}

# One way to identify a row of the subject: each of these columns has this text.
Columns = Mapping[str, str]


@dataclass(frozen=True)
class Subject:
    """The row to erase.

    | field    | example                       | meaning                                                             |
    |----------|-------------------------------|---------------------------------------------------------------------|
    | table    | `customers`                   | the source table, without its schema                                |
    | key      | `{"id": "42"}`                | its key                                                             |
    | columns  | `{"gold/orders": "buyer"}`    | the column with the key, by the path of a table below the lake      |
    | anywhere | `("buyer",)`                  | columns that contain the key in every table                         |
    | excluded | `{"state"}`                   | columns of the row whose texts are not searched for                 |
    """

    table: str
    key: Columns
    columns: Mapping[str, str]
    anywhere: tuple[str, ...] = ()
    excluded: frozenset[str] = frozenset()

    def is_own(self, path: str) -> bool:
        """Whether a table below the lake has the name of the source table."""
        return path.rstrip("/").rpartition("/")[2] == self.table

    def key_columns(self, path: str, names: Iterable[str]) -> tuple[Columns, ...]:
        """Return the columns that identify rows of the subject in a table, as alternatives; may be empty."""
        columns = list(names)
        alternatives: list[Columns] = []
        if self.is_own(path):
            # A change log has structures for the key, and for the row before and after.
            prefixes = ["", *dict.fromkeys(f"{name.rpartition('.')[0]}." for name in columns if "." in name)]
            candidates = [{f"{prefix}{name}": text for name, text in self.key.items()} for prefix in prefixes]
            alternatives += [candidate for candidate in candidates if set(candidate) <= set(columns)]
        if len(self.key) == 1:
            text = next(iter(self.key.values()))
            named_column = self.columns.get(path)
            alternatives += [{name: text} for name in columns if name == named_column or self.names_subject(name)]
        return tuple({json.dumps(alternative, sort_keys=True): alternative for alternative in alternatives}.values())

    def names_subject(self, column: str) -> bool:
        """Whether a column of any table is named after the subject."""
        if column in self.anywhere:
            return True
        normalized = _normalized_name(column.rpartition(".")[2])
        (key_column, *more_columns) = self.key
        if (
            not more_columns
            and _normalized_name(key_column) not in _GENERIC_KEY_NAMES
            and normalized == _normalized_name(key_column)
        ):
            return True
        return normalized in {_normalized_name(name) for name in self._names}

    @property
    def identifying_columns(self) -> tuple[Columns, ...]:
        """The columns that may identify rows of the subject in any file."""
        if len(self.key) != 1:
            return ()
        ((key_column, text),) = self.key.items()
        names = {
            *self._names,
            *self.anywhere,
            *({key_column} if _normalized_name(key_column) not in _GENERIC_KEY_NAMES else ()),
        }
        return tuple({name: text} for name in sorted(names))

    @property
    def _names(self) -> set[str]:
        row_name = singular(self.table)
        return {f"{self.table}_id", f"{row_name}_id", _camel_case_id(row_name)}

    def payload_pattern(self, *, own: bool) -> str | None:
        """Return the pattern of a JSON text with the key; None if the key has several columns.

        `own` if the payload is a change of the table itself, in which `id` identifies the subject.
        """
        if len(self.key) != 1:
            return None
        ((column, text),) = self.key.items()
        names = {*self._names, *self.anywhere}
        if own or _normalized_name(column) not in _GENERIC_KEY_NAMES:
            names.add(column)
        escaped = json.dumps(text, ensure_ascii=False)[1:-1]
        return rf'"(?:{"|".join(map(re.escape, sorted(names)))})"\s*:\s*"?{re.escape(escaped)}"?\s*(?:[,}}\]]|$)'

    def delta_log_pattern(self, columns: Iterable[str]) -> str:
        """Return the pattern of the key in a table's log: in statistics, partitions, conditions."""
        patterns = []
        values = "|".join(sorted({re.escape(text) for text in self.key.values()}))
        for name in {column.rpartition(".")[2] for column in columns}:
            column = re.escape(name)
            patterns.append(rf'"{column}":\s*"?(?:{values})"?\s*[,}}]')
            patterns.append(rf"\b{column}=(?:{values})(?:[/%\"]|$)")
            patterns.append(rf"\b{column}\b[^,;{{}}\"]{{0,24}}[ ('](?:{values}){_NUMBER_SUFFIX}\b")
            # The upper bound of a range, and a member of a list.
            patterns.append(
                rf"\b{column}\b[^,;{{}}\"]{{0,4}}\bBETWEEN .{{1,100}}? AND '?(?:{values}){_NUMBER_SUFFIX}\b"
            )
            patterns.append(
                rf"\b{column}\b[^,;{{}}\"]{{0,12}}\bIN(?:SET)? ?\(?.*?[ (,'](?:{values}){_NUMBER_SUFFIX}[ ,)']"
            )
        return "|".join(sorted(patterns))


@dataclass(frozen=True)
class Texts:
    """The texts that identify the row: those that no other row has. Never printed."""

    values: tuple[str, ...]

    @property
    def search_bytes(self) -> tuple[bytes, ...]:
        """The byte strings to search for: the beginning of each text, plain, as JSON, and as JSON within JSON."""
        search_bytes = set()
        for value in self.values:
            text = value[:_STATISTICS_LENGTH]
            for ascii_only in (True, False):
                as_json = json.dumps(text, ensure_ascii=ascii_only)[1:-1]
                search_bytes |= {text, as_json, json.dumps(as_json, ensure_ascii=ascii_only)[1:-1]}
        return tuple(sorted(needle.encode("utf-8", "surrogatepass") for needle in search_bytes))

    def pattern(self) -> re.Pattern[bytes] | None:
        """Return the pattern of bytes that contain one of the texts, or None without texts."""
        return re.compile(b"|".join(map(re.escape, self.search_bytes))) if self.values else None


def in_json(value: str) -> str:
    """Return the beginning of a text, escaped as in JSON."""
    return json.dumps(value[:_STATISTICS_LENGTH], ensure_ascii=False)[1:-1]


def is_identifying(value: str) -> bool:
    """Whether a text is specific enough to identify a row."""
    return len(value.strip()) >= _MIN_TEXT_LENGTH and not _NUMBER.fullmatch(value.strip())


def singular(name: str) -> str:
    """Return the name of one row of a table: `customer` of `customers`, `category` of `categories`."""
    if name.endswith("ies"):
        return f"{name[:-3]}y"
    if re.search(r"(ss|x|ch|sh)es$", name):
        return name[:-2]
    return name[:-1] if name.endswith("s") and not name.endswith("ss") else name


def _normalized_name(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def _camel_case_id(name: str) -> str:
    first, *rest = name.split("_")
    return "".join([first, *(part.capitalize() for part in rest), "Id"])


@dataclass(frozen=True)
class Journal:
    """The file with the search terms of an erasure while it is in progress.

    Once the rows are deleted, the texts to search for cannot be found again. So they are written before the first table
    is changed, to a file that only its owner can read, and deleted with the last step. An interrupted erasure reads
    them.
    """

    path: Path

    @classmethod
    def of(cls, folder: Path, subject: Subject) -> Journal:
        """Return the journal of a subject, whether it exists or not."""
        name = hashlib.sha256(json.dumps([subject.table, dict(subject.key)], sort_keys=True).encode()).hexdigest()
        return cls(folder / f"{name[:16]}.unfinished")

    def read(self) -> tuple[str, ...] | None:
        """Return the texts of an unfinished erasure, or None."""
        try:
            return tuple(json.loads(self.path.read_text()))
        except FileNotFoundError:
            return None

    def write(self, texts: tuple[str, ...]) -> None:
        """Write the texts. They are on disk when this returns."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new_file = self.path.with_suffix(".new")
        new_file.unlink(missing_ok=True)
        with os.fdopen(os.open(new_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(texts, file)
            file.flush()
            os.fsync(file.fileno())
        new_file.replace(self.path)

    def delete(self) -> None:
        """Delete the journal."""
        self.path.unlink(missing_ok=True)
