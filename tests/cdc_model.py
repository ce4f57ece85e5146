"""What a mirror and a history have to hold after a set of changes: plain Python, that shares nothing with the package.

A change counts once, wherever and however often it arrived. Of a key's changes and of all truncates, in the order of
the log, each row is a version that ends with the next change of its key.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace

from cdc_changes import Change, Key, Value, row

Values = dict[str, Value]


@dataclass(frozen=True)
class Version:
    """One version: what the key held, from which position to which, and the kinds of both changes."""

    key: Key
    values: tuple[tuple[str, Value], ...] | None
    op: str
    position: str
    until: str | None
    ended: str | None

    @property
    def is_current(self) -> bool:
        return self.until is None


def _order(change: Change) -> tuple[str, int]:
    return change.text, {"r": 0, "d": 1, "t": 1}.get(change.op, 2)


def history(changes: Iterable[Change], *, marks: bool = False) -> set[Version]:
    """Every version; with `marks` also one without values for each time in which a row that had been was not there."""
    log = _complete(sorted(set(changes), key=_order))
    actual: set[Version] = set()
    for key in {item.key for item in log if item.key is not None}:
        mine = [item for item in log if item.key in (key, None)]
        for at, change in enumerate(mine):
            after = mine[at + 1 :]
            if change.op in "dt":
                if not marks or at == 0 or mine[at - 1].op in "dt":
                    continue
                after = [item for item in after if item.op not in "dt"]
                reported = None
            else:
                reported = change.values
            until = after[0] if after else None
            ends = (until.text, until.op) if until else (None, None)
            actual.add(Version(key, reported, change.op, change.text, *ends))
    return actual


def _complete(log: Iterable[Change]) -> list[Change]:
    """The log with the values that it left out: those of the row before, under its old key where it moved."""
    stored: dict[Key | None, Values] = {}
    left: dict[str, Values] = {}
    actual = []
    for item in log:
        if item.op == "d":
            left[item.text] = stored.pop(item.key, {})
        elif item.op != "t":
            before = left.get(item.text, {}) if item.op == "c" else stored.get(item.key, {})
            values = {name: before[name] if name in item.unavailable else value for name, value in item.values}
            stored[item.key] = values
            item = replace(item, values=tuple(values.items()))  # noqa: PLW2901 - the same change with all values
        actual.append(item)
    return actual


def mirror(changes: Iterable[Change]) -> dict[Key, Values]:
    """The rows that are there."""
    return {item.key: dict(item.values) for item in history(changes) if item.is_current and item.values is not None}


@dataclass
class Source:
    """A table that things happen to by chance, and its log. Rows of a snapshot existed before."""

    chance: random.Random
    keys: int
    large: bool

    def __post_init__(self) -> None:
        self.rows: dict[Key, tuple[Value, Value]] = {}
        self.log: list[Change] = []
        self.place = 100
        for key in range(self.keys // 2):
            self.rows[key] = self._values()
            self.log.append(row("r", self.place, key, *self.rows[key]))

    def live(self, steps: int) -> list[Change]:
        """Let so many things happen, a truncate somewhere among them, and return the log from its beginning."""
        truncate = self.chance.randrange(steps // 2, steps)
        for step in range(steps):
            # Two changes at one place never are of one key: only a move has two.
            self.place += self.chance.randint(1, 3)
            if step == truncate:
                self.rows.clear()
                self.log.append(Change("t", self.place, None))
            else:
                self._change(self.chance.randrange(self.keys))
        return self.log

    def _change(self, key: Key) -> None:
        if key not in self.rows:
            self.rows[key] = self._values()
            self.log.append(row("c", self.place, key, *self.rows[key]))
            return
        what = self.chance.choices(("update", "delete", "move"), (6, 2, 1))[0]
        if what == "update":
            self._update(key)
            return
        pieces_and_note = self.rows.pop(key)
        self.log.append(row("d", self.place, key))
        other = self.chance.choice(
            [number for number in range(self.keys + 5) if number not in self.rows and number != key]
        )
        if what == "move":
            self.rows[other] = pieces_and_note
            lacks = self.large and self.chance.random() < 0.5
            reported = (pieces_and_note[0], None, "note") if lacks else pieces_and_note
            self.log.append(row("c", self.place, other, *reported))

    def _update(self, key: Key) -> None:
        pieces, note = self._values()
        if self.large and self.chance.random() < 0.4:
            # The large value stayed as it was, so the log does not hold it.
            self.rows[key] = (pieces, self.rows[key][1])
            self.log.append(row("u", self.place, key, pieces, None, "note"))
        else:
            self.rows[key] = (pieces, note)
            self.log.append(row("u", self.place, key, pieces, note))

    def _values(self) -> tuple[Value, Value]:
        return self.chance.choice((None, *range(9))), self.chance.choice((None, "", "a", "b" * 40))


def batches(chance: random.Random, log: list[Change], count: int) -> list[list[Change]]:
    """Cut a log into batches. After its first, each begins with something that came before, in another order.

    The two changes of a move stay together.
    """
    between = [at for at in range(1, len(log)) if log[at].text != log[at - 1].text]
    edges = [0, *sorted(chance.sample(between, count - 1)), len(log)]
    cut = [log[edges[at] : edges[at + 1]] for at in range(count)]
    for at in range(1, count):
        again = chance.sample(log[: edges[at]], min(edges[at], len(cut[at]) // 2))
        cut[at] = [*again, *cut[at], *cut[at][-2:]]
    return cut


def shuffled(chance: random.Random, log: list[Change], count: int) -> list[list[Change]]:
    """Deal a log out to batches without regard to its order."""
    mixed = chance.sample(log, len(log))
    return [mixed[at::count] for at in range(count)]
