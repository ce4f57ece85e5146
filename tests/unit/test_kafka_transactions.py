"""The protocol of exactly-once into Kafka, played through: crashes, zombies and lost answers at every step.

A log in memory follows Kafka's rules for transactions. Drivers are generators that stop after each of their steps; a
seed decides who continues, who dies, which commit arrives late, and when a second driver takes the flow for dead. What
a ledger's entry means is decided by the sink's own `is_due`. In the end one driver finishes the work undisturbed, and
the log must hold every row of every batch once.

Each test of a broken protocol shows that the play would notice: it takes one rule away, and rows are lost or doubled.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field

import pytest

from headrace.flow.sink import Batch
from headrace.flow.target import Target
from headrace.sinks.batch.ledger import LedgerEntry
from headrace.sinks.kafka.transaction import TransactionSlot, is_due

TARGET = Target("test", lake="unused", checkpoints="unused")
BATCHES, ROWS, SEEDS = 2, 4, 1500

Row = tuple[int, int]
Steps = Generator[None, None, None]
Protocol = Callable[["World", Batch], Steps]


class Fenced(Exception):
    """A producer of a later epoch has taken over."""


class Unfinished(Exception):
    """The transaction is not in: the batch has to be run again."""


@dataclass
class Transaction:
    key: str
    epoch: int
    rows: list[Row] = field(default_factory=list)
    entry: LedgerEntry | None = None


@dataclass
class Log:
    """A coordinator, a topic and a ledger. A call is one step: it happens completely or not at all."""

    epochs: Counter[str] = field(default_factory=Counter)
    open: dict[str, Transaction] = field(default_factory=dict)
    late: list[Transaction] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    entries: dict[str, LedgerEntry] = field(default_factory=dict)

    def fence(self, key: str) -> Transaction:
        """As `init_transactions` does: abort what is open, and bar every earlier epoch."""
        self.epochs[key] += 1
        self.open[key] = Transaction(key, self.epochs[key])
        return self.open[key]

    def send(self, transaction: Transaction, what: Row | LedgerEntry) -> None:
        self._require_current(transaction)
        if isinstance(what, LedgerEntry):
            transaction.entry = what
        else:
            transaction.rows.append(what)

    def commit(self, transaction: Transaction) -> None:
        self._require_current(transaction)
        if self.open.pop(transaction.key, None) is not None:
            self.rows += transaction.rows
            assert transaction.entry is not None
            self.entries[transaction.key] = transaction.entry

    def _require_current(self, transaction: Transaction) -> None:
        if transaction.epoch != self.epochs[transaction.key]:
            raise Fenced


@dataclass
class World:
    """Everything that outlives a driver, and the seed's decisions."""

    chance: random.Random
    log: Log = field(default_factory=Log)
    outbox: dict[int, list[Row]] = field(default_factory=dict)
    committed: int = 0
    calm: bool = False

    def computed(self, batch: Batch) -> list[tuple[Row, int]]:
        """Return the rows of a batch, each with a number that decides about its slot and is different every time."""
        return [((batch.id, number), self.chance.randrange(1000)) for number in range(ROWS)]

    def committing(self, transaction: Transaction) -> bool:
        """Commit, and return whether the answer came. Without one, it happened, happens later, or never does."""
        fate = "answered" if self.calm else self.chance.choice(["answered", "answered", "unheard", "late", "never"])
        if fate in ("answered", "unheard"):
            self.log.commit(transaction)
        elif fate == "late":
            self.log.late.append(transaction)
        return fate == "answered"


def sent(world: World, slot: TransactionSlot, rows: list[Row], *, fence_first: bool = True) -> Steps:
    """Play the five steps of `publish`."""

    def opened() -> Generator[None, None, tuple[Transaction, bool]]:
        actual = None if fence_first else world.log.entries.get(slot.key)
        if not fence_first:
            yield
        transaction = world.log.fence(slot.key)
        yield
        if fence_first:
            actual = world.log.entries.get(slot.key)
            yield
        return transaction, is_due({} if actual is None else {slot.number: actual}, slot)

    transaction, due = yield from opened()
    if not due:
        return
    for row in rows:
        world.log.send(transaction, row)
        yield
    world.log.send(transaction, slot.entry(len(rows)))
    yield
    if world.committing(transaction):
        return
    yield
    _, due = yield from opened()
    if due:
        raise Unfinished


def slots_of(batch: Batch, number: int) -> list[TransactionSlot]:
    return [TransactionSlot(batch, "topic", "ledger", slot, number) for slot in range(number)]


def complete_batch(world: World, batch: Batch) -> Steps:
    """One transaction per batch."""
    return sent(world, slots_of(batch, 1)[0], [row for row, _ in world.computed(batch)])


def ledger_before_fence(world: World, batch: Batch) -> Steps:
    """Broken: the ledger is read first, and a commit that is still on its way is missed."""
    return sent(world, slots_of(batch, 1)[0], [row for row, _ in world.computed(batch)], fence_first=False)


def in_slots(world: World, batch: Batch, *, staged: bool = True) -> Steps:
    """A transaction per slot, from staged rows: fence all, then read, then stage, then send what is due."""
    slots = slots_of(batch, 2)
    for slot in slots:
        world.log.fence(slot.key)
        yield
    actual = {slot.number: world.log.entries[slot.key] for slot in slots if slot.key in world.log.entries}
    yield
    due = [slot for slot in slots if is_due(actual, slot)]
    rows = world.computed(batch)
    if staged:
        rows = world.outbox.setdefault(batch.id, rows)  # type: ignore[arg-type,assignment]
        yield
    # Tasks run side by side.
    tasks: list[Iterator[None]] = [
        sent(world, slot, [row for row, key in rows if key % len(slots) == slot.number]) for slot in due
    ]
    while tasks:
        task = world.chance.choice(tasks)
        if next(task, StopIteration) is StopIteration:
            tasks.remove(task)
        yield


def slots_without_staging(world: World, batch: Batch) -> Steps:
    """Broken: a second attempt sends the rows that it recomputed, to the slots that are not in."""
    return in_slots(world, batch, staged=False)


def driver(world: World, protocol: Protocol) -> Steps:
    """Write the batches from the first that the checkpoint has not committed, as Spark does."""
    while world.committed < BATCHES:
        number = world.committed
        try:
            yield from protocol(world, Batch("flow", "q1", number, TARGET, offsets=f"digest {number}"))
        except Unfinished:
            continue
        world.committed = max(world.committed, number + 1)
        yield


def played(protocol: Protocol, seed: int) -> list[Row]:
    """Play one schedule, then let a last driver finish alone; return the rows in the log."""
    world = World(random.Random(seed))  # noqa: S311 - a schedule, not a secret
    living = [driver(world, protocol)]
    for _ in range(world.chance.randrange(10, 80)):
        if world.log.late and world.chance.random() < 0.3:
            arrived(world, world.log.late.pop())
        if world.chance.random() < 0.08:
            living.append(driver(world, protocol))
        if living and world.chance.random() < 0.06:
            living.remove(world.chance.choice(living))
        if living:
            first = world.chance.choice(living)
            if not goes_on(first):
                living.remove(first)
    world.calm = True
    for _ in driver(world, protocol):
        while world.log.late:
            arrived(world, world.log.late.pop())
    return world.log.rows


def goes_on(first: Steps) -> bool:
    """Let a driver do a step; False when it is done, or was refused."""
    try:
        next(first)
    except (StopIteration, Fenced):
        return False
    except Exception as error:  # a ledger that moved on without it: `is_due` refuses
        if getattr(error, "code", "") != "HR-307":
            raise
        return False
    return True


def arrived(world: World, late: Transaction) -> None:
    """Let a commit arrive that its sender has given up."""
    try:
        world.log.commit(late)
    except Fenced:
        return


EXPECTED = Counter({(batch, number): 1 for batch in range(BATCHES) for number in range(ROWS)})


@pytest.mark.parametrize("protocol", [complete_batch, in_slots])
def test_every_row_is_in_once_whatever_happens(protocol: Protocol):
    wrong = [seed for seed in range(SEEDS) if Counter(played(protocol, seed)) != EXPECTED]
    assert wrong == []


@pytest.mark.parametrize("protocol", [ledger_before_fence, slots_without_staging])
def test_a_protocol_without_one_of_its_rules_is_caught(protocol: Protocol):
    assert any(Counter(played(protocol, seed)) != EXPECTED for seed in range(SEEDS))
