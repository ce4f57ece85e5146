"""Whom an erasure is about: a row of a source table, the columns that name it elsewhere, and the texts that it held.

| table of the lake                                        | its rows of the subject                                  |
|----------------------------------------------------------|----------------------------------------------------------|
| named as the source table is (mirror, history, log of changes, tombstones) | those with the key in the key's own columns |
| named by `--column PATH=COLUMN`                          | those with the key in that column                        |
| any other                                                | those with the key in a column named after the table: for `customers` `customer_id`, `customers_id`, `customerId`; or named as its key, where that says more than `id` |
| of rows that were set aside                              | those whose payload says one of these columns and the key, or one of the texts |
"""  # noqa: E501 - a row of a table

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

# Delta cuts texts in its statistics after so many characters: what is looked for must not be longer.
_KEPT_IN_STATISTICS = 32
# Shorter ones are in files by chance.
_SHORTEST = 4
# Numbers and times are everywhere; rows that hold them are found by their key.
_NUMBER = re.compile(r"[\d.,+\-\s]{1,6}|\d{4}-\d\d-\d\d.*|true|false|null", re.IGNORECASE)
# What SQL writes behind a number, by its type.
_KIND = "(?:[YSL]|BD)?"
# Names of a key that say nothing about whose it is.
_BARE = {"id", "key", "uuid", "pk", "nr", "no", "number", "code", "name"}

# One way to know a row of the subject: each of these columns holds its text.
Columns = Mapping[str, str]


@dataclass(frozen=True)
class Subject:
    """The row to erase.

    | field    | example                       | meaning                                                             |
    |----------|-------------------------------|---------------------------------------------------------------------|
    | table    | `customers`                   | the source table, without its schema                                |
    | key      | `{"id": "42"}`                | its key                                                             |
    | columns  | `{"gold/orders": "buyer"}`    | what was told: in which column a table below the lake holds the key |
    | anywhere | `("buyer",)`                  | columns that hold it in every table                                 |
    | excepted | `{"state"}`                   | columns of the row whose texts are not looked for                   |
    """

    table: str
    key: Columns
    columns: Mapping[str, str]
    anywhere: tuple[str, ...] = ()
    excepted: frozenset[str] = frozenset()

    def is_own(self, path: str) -> bool:
        """Whether a table below the lake is one of the source table itself."""
        return path.rstrip("/").rpartition("/")[2] == self.table

    def known_by(self, path: str, names: Iterable[str]) -> tuple[Columns, ...]:
        """Return the ways to know rows of the subject in a table; empty where it has no such column."""
        held = list(names)
        found: list[Columns] = []
        if self.is_own(path):
            # Of a log of changes: the key, and the row before and after, each a structure.
            around = ["", *dict.fromkeys(f"{name.rpartition('.')[0]}." for name in held if "." in name)]
            ways = [{f"{each}{name}": text for name, text in self.key.items()} for each in around]
            found += [way for way in ways if set(way) <= set(held)]
        if len(self.key) == 1:
            text = next(iter(self.key.values()))
            told = self.columns.get(path)
            found += [{name: text} for name in held if name == told or self.names_it(name)]
        return tuple({json.dumps(each, sort_keys=True): each for each in found}.values())

    def names_it(self, column: str) -> bool:
        """Whether a column of any table is named after the subject."""
        if column in self.anywhere:
            return True
        plain = _plain(column.rpartition(".")[2])
        (own, *others) = self.key
        if not others and _plain(own) not in _BARE and plain == _plain(own):
            return True
        return plain in {_plain(name) for name in self._names}

    @property
    def named(self) -> tuple[Columns, ...]:
        """The ways to know rows of the subject in files of which nothing else is known."""
        if len(self.key) != 1:
            return ()
        ((own, text),) = self.key.items()
        names = {*self._names, *self.anywhere, *({own} if _plain(own) not in _BARE else ())}
        return tuple({name: text} for name in sorted(names))

    @property
    def _names(self) -> set[str]:
        one = singular(self.table)
        return {f"{self.table}_id", f"{one}_id", _camel(one)}

    def in_payloads(self, *, own: bool) -> str | None:
        """Return the pattern of a JSON text that holds the key; None where the key has several columns.

        `own` when the payload is a change of the table itself, in which `id` means the subject.
        """
        if len(self.key) != 1:
            return None
        ((column, text),) = self.key.items()
        names = {*self._names, *self.anywhere}
        if own or _plain(column) not in _BARE:
            names.add(column)
        escaped = json.dumps(text, ensure_ascii=False)[1:-1]
        return rf'"(?:{"|".join(map(re.escape, sorted(names)))})"\s*:\s*"?{re.escape(escaped)}"?\s*(?:[,}}\]]|$)'

    def in_logs(self, columns: Iterable[str]) -> str:
        """Return the pattern of a text in a table's log that holds the key: statistics, partitions, conditions."""
        found = []
        either = "|".join(sorted({re.escape(text) for text in self.key.values()}))
        for name in {each.rpartition(".")[2] for each in columns}:
            column = re.escape(name)
            found.append(rf'"{column}":\s*"?(?:{either})"?\s*[,}}]')
            found.append(rf"\b{column}=(?:{either})(?:[/%\"]|$)")
            found.append(rf"\b{column}\b[^,;{{}}\"]{{0,24}}[ ('](?:{either}){_KIND}\b")
            # The upper bound of a range, and a member of a list: whatever is before it.
            found.append(rf"\b{column}\b[^,;{{}}\"]{{0,4}}\bBETWEEN .{{1,100}}? AND '?(?:{either}){_KIND}\b")
            found.append(rf"\b{column}\b[^,;{{}}\"]{{0,12}}\bIN(?:SET)? ?\(?.*?[ (,'](?:{either}){_KIND}[ ,)']")
        return "|".join(sorted(found))


@dataclass(frozen=True)
class Texts:
    """The texts of the row that tell who it is: those that no other row holds. Never printed."""

    values: tuple[str, ...]

    @property
    def needles(self) -> tuple[bytes, ...]:
        """What is looked for in bytes: the beginning of each text, also as JSON writes it, also JSON within JSON."""
        found = set()
        for value in self.values:
            text = value[:_KEPT_IN_STATISTICS]
            for ascii_only in (True, False):
                once = json.dumps(text, ensure_ascii=ascii_only)[1:-1]
                found |= {text, once, json.dumps(once, ensure_ascii=ascii_only)[1:-1]}
        return tuple(sorted(each.encode("utf-8", "surrogatepass") for each in found))

    def pattern(self) -> re.Pattern[bytes] | None:
        """Return the pattern of bytes that hold one of the texts, or None without any."""
        return re.compile(b"|".join(map(re.escape, self.needles))) if self.values else None


def in_json(value: str) -> str:
    """Return the beginning of a text as JSON writes it."""
    return json.dumps(value[:_KEPT_IN_STATISTICS], ensure_ascii=False)[1:-1]


def telling(value: str) -> bool:
    """Whether a text can tell who a row is about, by itself."""
    return len(value.strip()) >= _SHORTEST and not _NUMBER.fullmatch(value.strip())


def singular(name: str) -> str:
    """Return the name of one row of a table: `customer` of `customers`, `category` of `categories`."""
    if name.endswith("ies"):
        return f"{name[:-3]}y"
    if re.search(r"(ss|x|ch|sh)es$", name):
        return name[:-2]
    return name[:-1] if name.endswith("s") and not name.endswith("ss") else name


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return "".join([first, *(part.capitalize() for part in rest), "Id"])
