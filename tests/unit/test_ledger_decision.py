"""The exactly-once decision: cases worked out by hand, and random histories against a model that remembers everything.

`decide` sees only the last entry. The model keeps every committed batch, so it knows what must happen without one.
"""

from __future__ import annotations

import dis
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from headrace.errors import RecoveryError
from headrace.flow.levers import OutputMode
from headrace.flow.sink import Batch
from headrace.flow.target import Target
from headrace.sinks.batch import errors
from headrace.sinks.batch.errors import ErrorTemplate, must_write
from headrace.sinks.batch.ledger import NO_BATCH, Decision, LedgerEntry, RefusalReason, Refuse, Skip, Write, decide
from headrace.sinks.jdbc.ledger import LEDGER_ERRORS as JDBC_ERRORS
from headrace.sinks.jdbc.table import PostgresTable
from headrace.sinks.kafka.errors import LEDGER_ERRORS as KAFKA_ERRORS
from headrace.sinks.kafka.ledger import ENTRY_FIELDS
from headrace.sinks.kafka.transaction import TransactionSlot, is_due

TARGET = Target("test", lake="unused", checkpoints="unused")

WRITE, SKIP = Write(), Skip()
NO_ENTRY, OTHER_CHECKPOINT, OTHER_SLOTS, LOWER_FENCE, SET_BACK, GAP, OTHER_OFFSETS, OTHER_STAGED_ROWS = map(
    Refuse, RefusalReason
)


def batch(number: int, query_id: str = "q1", offsets: str = "a", fence: int = 5) -> Batch:
    return Batch("rides", query_id, number, TARGET, offsets=offsets, fence=fence)


def entry(number: int, query_id: str = "q1", offsets: str = "a", fence: int = 5, **more: Any) -> LedgerEntry:
    return LedgerEntry(query_id, number, offsets, fence, **more)


# ---- cases by hand ----


def test_a_store_that_claims_its_entry_before_batch_0_never_writes_without_one() -> None:
    assert decide(None, batch(0), claimed=True) == NO_ENTRY
    assert decide(entry(NO_BATCH, offsets=""), batch(0), claimed=True) == WRITE


@pytest.mark.parametrize(
    ("last", "attempt", "decision"),
    [
        # No entry: the ledger is new, or it was lost.
        (None, batch(0), WRITE),
        (None, batch(1), NO_ENTRY),
        (None, batch(7), NO_ENTRY),
        # Claimed by an attempt that committed nothing, of this checkpoint or of another one.
        (entry(NO_BATCH, offsets=""), batch(0), WRITE),
        (entry(NO_BATCH, "q2", offsets=""), batch(0), WRITE),
        (entry(NO_BATCH, "q2", offsets=""), batch(1), GAP),
        (entry(NO_BATCH, offsets="", fence=6), batch(0), LOWER_FENCE),
        # The next batch.
        (entry(0), batch(1), WRITE),
        (entry(41), batch(42), WRITE),
        (entry(0, offsets="b"), batch(1), WRITE),
        (entry(0), batch(1, fence=6), WRITE),
        # A retry of the last batch, by the same driver or a later one.
        (entry(0), batch(0), SKIP),
        (entry(3), batch(3, fence=6), SKIP),
        # The same number, and other rows.
        (entry(3), batch(3, offsets="b"), OTHER_OFFSETS),
        (entry(3), batch(3, offsets=""), OTHER_OFFSETS),
        # A checkpoint that was set back: even with the same digest, it may have cut later batches elsewhere.
        (entry(3), batch(2), SET_BACK),
        (entry(3), batch(0), SET_BACK),
        # Batches that nobody wrote.
        (entry(3), batch(5), GAP),
        (entry(0), batch(2), GAP),
        # A zombie, whatever it wants to write.
        (entry(3), batch(4, fence=4), LOWER_FENCE),
        (entry(3), batch(3, fence=4), LOWER_FENCE),
        (entry(3), batch(9, fence=4), LOWER_FENCE),
        (entry(3), batch(1, offsets="b", fence=4), LOWER_FENCE),
        # Another checkpoint: its numbers, digests and fences say nothing.
        (entry(3, "q2"), batch(4), OTHER_CHECKPOINT),
        (entry(3, "q2"), batch(3), OTHER_CHECKPOINT),
        (entry(0, "q2"), batch(0), OTHER_CHECKPOINT),
        (entry(3, "q2"), batch(4, fence=4), OTHER_CHECKPOINT),
    ],
)
def test_a_decision_for_each_case_by_hand(last: LedgerEntry | None, attempt: Batch, decision: Decision):
    assert decide(last, attempt) == decision


@pytest.mark.parametrize(
    ("last", "attempt", "staged", "decision"),
    [
        (None, batch(0), "s1", WRITE),
        (entry(0, slots=3, staged="s1"), batch(1), "s2", WRITE),
        (entry(1, slots=3, staged="s1"), batch(1), "s1", SKIP),
        (entry(1, slots=3, staged="s1"), batch(1), "s2", OTHER_STAGED_ROWS),
        # Before the batch is staged, the driver asks which slots are due.
        (entry(1, slots=3, staged="s1"), batch(1), "", SKIP),
        # Two digests explain two stagings.
        (entry(1, slots=3, staged="s1"), batch(1, offsets="b"), "s2", OTHER_OFFSETS),
        (entry(1, slots=2, staged="s1"), batch(2), "s1", OTHER_SLOTS),
        (entry(1, slots=4, staged="s1"), batch(1), "s1", OTHER_SLOTS),
        (entry(1, slots=2), batch(9, fence=4), "", OTHER_SLOTS),
        (entry(1, "q2", slots=2), batch(1), "s1", OTHER_CHECKPOINT),
    ],
)
def test_a_decision_for_one_of_three_slots_by_hand(
    last: LedgerEntry | None, attempt: Batch, staged: str, decision: Decision
):
    assert decide(last, attempt, slots=3, staged=staged) == decision


# ---- random histories ----


@dataclass(frozen=True)
class Attempt:
    """What a driver tries. `ahead` counts from the next batch: -1 is the last one again."""

    ahead: int
    query_id: str
    is_recut: bool
    fence: int
    crashes: bool

    def of(self, history: History) -> Batch:
        number = max(0, len(history.committed) + self.ahead)
        return batch(number, self.query_id, f"{number} recut" if self.is_recut else f"{number}", self.fence)


@dataclass
class History:
    """All committed batches in order, and what is left of them in a ledger: the last entry.

    `claims`: attempts that are let through claim the ledger first, as in Postgres. `fences` are those in the ledger.
    """

    claims: bool
    committed: list[Batch] = field(default_factory=list)
    fences: list[int] = field(default_factory=list)
    last: LedgerEntry | None = None

    def apply(self, attempt: Batch, decision: Decision, *, crashes: bool) -> bool:
        """Do what the decision says, as a sink does; return whether the batch was written."""
        if isinstance(decision, Refuse):
            return False
        if self.claims:
            empty = LedgerEntry(attempt.query_id, NO_BATCH)
            self.last = replace(self.last or empty, query_id=attempt.query_id, fence=attempt.fence)
            self.fences.append(attempt.fence)
        if crashes or isinstance(decision, Skip):
            return False
        self.committed.append(attempt)
        self.fences.append(attempt.fence)
        self.last = LedgerEntry(attempt.query_id, attempt.id, attempt.offsets, attempt.fence)
        return True

    def must_be(self, attempt: Batch) -> Decision:
        """Return the right decision, from everything that happened."""
        if not self.fences:
            return WRITE if attempt.id == 0 else NO_ENTRY
        if any(earlier.query_id != attempt.query_id for earlier in self.committed):
            return OTHER_CHECKPOINT
        if any(attempt.fence < fence for fence in self.fences):
            return LOWER_FENCE
        written = [earlier for earlier in self.committed if earlier.id == attempt.id]
        if not written:
            missing = set(range(attempt.id)) - {earlier.id for earlier in self.committed}
            return GAP if missing else WRITE
        if any(earlier.id > attempt.id for earlier in self.committed):
            return SET_BACK
        return SKIP if written[0].offsets == attempt.offsets else OTHER_OFFSETS


# Most attempts are the next batch or a retry, of one checkpoint: otherwise almost every batch would be refused.
ATTEMPTS = st.builds(
    Attempt,
    ahead=st.sampled_from([0, 0, 0, -1, -1, -2, -3, 1, 4]),
    query_id=st.sampled_from(["q1", "q1", "q1", "q2"]),
    is_recut=st.sampled_from([False, False, False, True]),
    fence=st.integers(0, 3),
    crashes=st.booleans(),
)
HISTORIES = st.lists(ATTEMPTS, max_size=25)


@given(HISTORIES, st.booleans())
def test_every_decision_is_that_of_a_model_with_the_full_history(attempts: list[Attempt], claims: bool):
    history = History(claims)
    for tried in attempts:
        attempt = tried.of(history)
        decision = decide(history.last, attempt)
        assert decision == history.must_be(attempt)
        history.apply(attempt, decision, crashes=tried.crashes)


@given(HISTORIES, st.booleans())
def test_a_batch_is_applied_at_most_once_and_in_order(attempts: list[Attempt], claims: bool):
    history = History(claims)
    for tried in attempts:
        attempt = tried.of(history)
        decision = decide(history.last, attempt)
        if decision == SKIP:
            assert (attempt.query_id, attempt.id, attempt.offsets) in [
                (earlier.query_id, earlier.id, earlier.offsets) for earlier in history.committed
            ]
        history.apply(attempt, decision, crashes=tried.crashes)
    assert [written.id for written in history.committed] == list(range(len(history.committed)))
    assert len({written.query_id for written in history.committed}) <= 1


@given(HISTORIES, st.booleans())
def test_a_zombie_never_writes(attempts: list[Attempt], claims: bool):
    history = History(claims)
    for tried in attempts:
        attempt, later_drivers = tried.of(history), [fence for fence in history.fences if fence > tried.fence]
        written = history.apply(attempt, decide(history.last, attempt), crashes=tried.crashes)
        assert not (written and later_drivers)


@given(HISTORIES, st.booleans(), st.integers(0, 3))
def test_the_driver_with_the_lease_can_always_write_the_next_batch(attempts: list[Attempt], claims: bool, ahead: int):
    history = History(claims)
    for tried in attempts:
        attempt = tried.of(history)
        history.apply(attempt, decide(history.last, attempt), crashes=tried.crashes)
    owner = history.committed[0].query_id if history.committed else "q3"
    fence = max(history.fences, default=0) + ahead
    following = batch(len(history.committed), owner, "next", fence)

    decision = decide(history.last, following)
    assert decision == WRITE
    assert history.apply(following, decision, crashes=False)
    assert decide(history.last, following) == SKIP


@given(st.lists(st.tuples(st.sets(st.integers(0, 2)), st.booleans()), max_size=12))
def test_the_slots_of_a_batch_come_from_one_staging_and_each_is_sent_once(crashes: list[tuple[set[int], bool]]):
    """Each attempt dies after some slots; its successor may find the batch staged, or stages it again."""
    entries: dict[int, LedgerEntry] = {}
    sent: list[tuple[int, int, str]] = []
    number, staged = 0, "s0"
    for tried, (reached, outbox_lost) in enumerate(crashes):
        staged = f"s{tried}" if outbox_lost else staged
        for slot_number in sorted(reached):
            slot = TransactionSlot(batch(number, fence=0), "topic", "ledger", slot_number, 3, staged)
            others = [last for last in entries.values() if last.batch_id == number]
            if any(last.staged != staged for last in others):
                with pytest.raises(RecoveryError, match="HR-342"):
                    is_due(entries, slot)
            elif is_due(entries, slot):
                sent.append((number, slot_number, staged))
                entries[slot_number] = slot.entry(rows=1)
        if len(entries) == 3 and all(last.batch_id == number for last in entries.values()):
            number += 1

    assert len({(number, slot) for number, slot, _ in sent}) == len(sent)
    assert all(len({staged for of, _, staged in sent if of == number}) <= 1 for number in range(len(crashes)))


# ---- nothing but its arguments ----

ENTRIES = st.none() | st.builds(
    LedgerEntry,
    st.sampled_from(["q1", "q2"]),
    st.integers(NO_BATCH, 4),
    st.sampled_from(["", "a", "b"]),
    st.integers(0, 2),
    slots=st.integers(1, 2),
    staged=st.sampled_from(["", "s1", "s2"]),
)
BATCHES = st.builds(
    batch, st.integers(0, 4), st.sampled_from(["q1", "q2"]), st.sampled_from(["", "a", "b"]), st.integers(0, 2)
)
STAGED = st.sampled_from(["", "s1", "s2"])


@given(ENTRIES, BATCHES, STAGED, st.lists(st.tuples(ENTRIES, BATCHES)))
def test_a_decision_depends_on_nothing_that_was_decided_before(
    last: LedgerEntry | None, attempt: Batch, staged: str, others: list[tuple[LedgerEntry | None, Batch]]
):
    decision = decide(last, attempt, slots=2, staged=staged)
    for other in others:
        decide(*other)
    assert decide(last, attempt, slots=2, staged=staged) == decision


@given(ENTRIES, BATCHES, st.text(), st.text(), st.sampled_from(OutputMode), st.text(), st.integers())
def test_a_decision_ignores_what_does_not_identify_the_rows(
    last: LedgerEntry | None, attempt: Batch, flow: str, step: str, mode: OutputMode, ledger_id: str, rows: int
):
    same = replace(attempt, flow=flow, step=step, mode=mode, target=Target("other", lake="there", checkpoints="there"))
    renamed = None if last is None else replace(last, ledger=ledger_id, rows=rows)
    assert decide(renamed, same) == decide(last, attempt)


def test_a_decision_uses_no_clock_no_randomness_and_no_state():
    used = {step.argval for step in dis.get_instructions(decide) if step.opname in ("LOAD_GLOBAL", "LOAD_DEREF")}
    assert used == {"NO_BATCH", "RefusalReason", "Refuse", "Skip", "Write"}
    assert not any(step.opname.startswith("IMPORT") for step in dis.get_instructions(decide))


# ---- the words of each sink ----

# What each sink's ledger can answer: only Kafka has slots, and its broker fences earlier drivers.
CODES: list[tuple[Mapping[RefusalReason, ErrorTemplate], dict[RefusalReason, str]]] = [
    (
        errors.LEDGER_ERRORS,
        {
            RefusalReason.NO_ENTRY: "HR-314",
            RefusalReason.OTHER_CHECKPOINT: "HR-313",
            RefusalReason.LOWER_FENCE: "HR-304",
            RefusalReason.SET_BACK: "HR-314",
            RefusalReason.GAP: "HR-314",
            RefusalReason.OTHER_OFFSETS: "HR-314",
        },
    ),
    (
        JDBC_ERRORS,
        {
            RefusalReason.NO_ENTRY: "HR-316",
            RefusalReason.OTHER_CHECKPOINT: "HR-315",
            RefusalReason.LOWER_FENCE: "HR-317",
            RefusalReason.SET_BACK: "HR-316",
            RefusalReason.GAP: "HR-316",
            RefusalReason.OTHER_OFFSETS: "HR-316",
        },
    ),
    (
        KAFKA_ERRORS,
        {
            RefusalReason.NO_ENTRY: "HR-308",
            RefusalReason.OTHER_CHECKPOINT: "HR-306",
            RefusalReason.OTHER_SLOTS: "HR-340",
            RefusalReason.SET_BACK: "HR-307",
            RefusalReason.GAP: "HR-307",
            RefusalReason.OTHER_OFFSETS: "HR-341",
            RefusalReason.OTHER_STAGED_ROWS: "HR-342",
        },
    ),
]


@pytest.mark.parametrize(("texts", "codes"), CODES, ids=["store", "postgres", "kafka"])
def test_a_sink_has_an_error_for_each_reason_that_its_ledger_can_give(
    texts: Mapping[RefusalReason, ErrorTemplate], codes: dict[RefusalReason, str]
):
    assert {reason: text.code for reason, text in texts.items()} == codes
    attempt = batch(3, offsets="0123456789abcdef")
    fields = {
        "batch": attempt,
        "last": entry(7),
        "place": "there",
        "table": PostgresTable("public", "rides"),
        "ledger": "ledger",
        "slot": TransactionSlot(attempt, "topic", "ledger", 1, 2, "s1"),
        "number": 1,
    }
    for reason in texts:
        with pytest.raises(RecoveryError) as refused:
            must_write(Refuse(reason), texts, **fields)
        error = refused.value
        assert all((error.what, error.why, error.state, error.remedy))
        assert not {"{", "}"} & set(str(error))


def test_names_with_braces_are_not_taken_for_fields():
    attempt = replace(batch(3), flow="{rides}")
    with pytest.raises(RecoveryError, match=r"Batch 3 of flow '\{rides\}' .* in a \{place\}\."):
        must_write(GAP, errors.LEDGER_ERRORS, batch=attempt, last=entry(1), place="a {place}")


def test_a_batch_that_is_not_refused_is_written_or_skipped():
    assert must_write(WRITE, {}) is True
    assert must_write(SKIP, {}) is False


# ---- a record of the ledger topic ----


@given(st.builds(LedgerEntry, st.text(), st.integers(), st.text(), rows=st.integers(), slots=st.integers()))
def test_a_record_of_the_ledger_topic_is_read_as_it_was_written(last: LedgerEntry):
    assert LedgerEntry.from_json(last.to_json(ENTRY_FIELDS), ENTRY_FIELDS) == last


@pytest.mark.parametrize("name", ["query_id", "batch_id", "rows", "offsets", "slots", "staged"])
def test_a_record_that_lacks_a_field_is_no_entry(name: str):
    fields = json.loads(entry(1, rows=2).to_json(ENTRY_FIELDS))
    del fields[name]
    with pytest.raises(ValueError, match="not an entry"):
        LedgerEntry.from_json(json.dumps(fields), ENTRY_FIELDS)


@pytest.mark.parametrize("value", [b"", b"{", b"[]", b"7", b'{"query_id": "q1", "batch_id": null}'])
def test_a_damaged_record_is_no_entry(value: bytes):
    with pytest.raises(ValueError, match=r"not an entry|Expecting"):
        LedgerEntry.from_json(value, ENTRY_FIELDS)
