"""The expected output of orders and payments, computed in plain Python without Spark.

The model gets the records of Kafka and the offsets of the batches, and nothing else from the system under test. All
times are whole milliseconds since the epoch, UTC. A replay takes these steps for batch N:

1. Take the records between the batch's offsets, of both topics, and parse each: an event, or `InvalidRecord`.
2. W[N] is the watermark in force: W[0] is 0, later ones are step 7 of the batch before.
3. A row at or before W[N-1] is late: counted, and dropped.
4. Match each new order with the payments in the state, then store the order. Match each new payment with the orders
   in the state, new ones included. A row that step 5 would evict immediately is not stored: later rows of the same
   batch do not match it.
5. Evict the orders that are older than W[N] by more than the bound, and the payments older than W[N]: every later
   partner would be late.
6. A pair is emitted when it matches. An unmatched row is emitted with nulls in the batch that evicts it, if the join
   preserves its side.
7. The watermark of a topic is its highest event time so far less the delay, and 0 before its first row. W[N+1] is the
   lower one of the two, or W[N] if that is higher. Invalid records never count.

A restarted driver does not know the progress of each topic, only W: step 7 then uses the batches since that start.
If the batch of the start is unknown, the recorded watermarks are used, provided that some start explains each of them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import NamedTuple, cast

from headrace.patterns import records
from headrace.patterns.records import HOUR_MS, MINUTE_MS, ConsumedRecord, InvalidRecord
from headrace.patterns.window_model import BatchOffsets, batch_records

INPUTS = ("orders", "payments")


@dataclass(frozen=True, slots=True)
class Order:
    """A valid order."""

    order_id: str
    user_id: str
    order_time: int


ORDER = records.RecordSchema(
    Order,
    (
        records.Field("order_id", records.text),
        records.Field("user_id", records.text),
        records.Field("order_time", records.instant_ms),
    ),
    time="order_time",
    key_required=True,
)


@dataclass(frozen=True, slots=True)
class Payment:
    """A valid payment."""

    order_id: str
    amount: Decimal
    pay_time: int


PAYMENT = records.RecordSchema(
    Payment,
    (
        records.Field("order_id", records.text),
        records.Field("amount", records.decimal(12, 2)),
        records.Field("pay_time", records.instant_ms),
    ),
    time="pay_time",
    key_required=True,
)


class Joined(NamedTuple):
    """A row of a join."""

    order_id: str
    user_id: str | None
    order_time: int | None
    amount: Decimal | None
    pay_time: int | None


@dataclass(frozen=True)
class JoinFlow:
    """One join. `how` is `inner`, `left`, `right` or `full`."""

    how: str
    delay_ms: int
    bound_ms: int = HOUR_MS

    def matches(self, order: Order, payment: Payment) -> bool:
        """Whether a payment belongs to an order."""
        return 0 <= payment.pay_time - order.order_time <= self.bound_ms and order.order_id == payment.order_id

    @property
    def emits_unmatched_orders(self) -> bool:
        """Whether an order without payment is emitted."""
        return self.how in ("left", "full")

    @property
    def emits_unmatched_payments(self) -> bool:
        """Whether a payment without order is emitted."""
        return self.how in ("right", "full")


class LateRecord(NamedTuple):
    """A record that a batch dropped as late."""

    batch_id: int
    input: str
    partition: int
    offset: int


@dataclass
class JoinOutcome:
    """The expected result of a flow. `batches`, `watermarks`, `state` and `evicted` have one entry per batch."""

    batches: list[list[Joined]] = field(default_factory=list)
    late: list[LateRecord] = field(default_factory=list)
    watermarks: list[int] = field(default_factory=list)
    invalid: dict[str, list[InvalidRecord]] = field(default_factory=lambda: {name: [] for name in INPUTS})
    """By input."""
    state: list[int] = field(default_factory=list)
    """The rows in the state of both sides after the batch."""
    evicted: list[int] = field(default_factory=list)
    """The rows that the batch removed from the state."""
    restarts: int = 0
    """How many new starts it takes, at least, to explain the watermarks that were recorded."""


@dataclass
class _JoinState:
    """The rows of both sides by order id, and which of them have matched."""

    orders: dict[str, list[Order]] = field(default_factory=dict)
    payments: dict[str, list[Payment]] = field(default_factory=dict)
    met: set[int] = field(default_factory=set)
    """By identity: the state may contain the same order twice."""
    evicted: int = 0
    """How many rows were removed so far."""

    @property
    def rows(self) -> int:
        """The number of rows of both sides."""
        return sum(len(waiting) for waiting in self.orders.values()) + sum(
            len(waiting) for waiting in self.payments.values()
        )


def replay(
    orders: Iterable[ConsumedRecord],
    payments: Iterable[ConsumedRecord],
    batches: Sequence[Mapping[str, BatchOffsets]],
    flow: JoinFlow,
    recorded: Sequence[int] | None = None,
) -> JoinOutcome:
    """Run a join over its batches, in the steps that the module's docstring numbers.

    `recorded` are the watermarks of the offset log, for a flow that was started more than once. One that no start
    explains is an error.
    """
    logs = [{(record.partition, record.offset): record for record in log} for log in (orders, payments)]
    outcome, state, starts = JoinOutcome(), _JoinState(), _PossibleWatermarks(flow.delay_ms)
    before = 0
    for number, batch in enumerate(batches):
        # 1. the records, parsed
        new_orders = [(record, ORDER.parse(record)) for record in batch_records(logs[0], batch["orders"])]
        new_payments = [(record, PAYMENT.parse(record)) for record in batch_records(logs[1], batch["payments"])]
        outcome.invalid["orders"] += [verdict for _, verdict in new_orders if isinstance(verdict, InvalidRecord)]
        outcome.invalid["payments"] += [verdict for _, verdict in new_payments if isinstance(verdict, InvalidRecord)]
        valid_orders = [(record, order) for record, order in new_orders if isinstance(order, Order)]
        valid_payments = [(record, payment) for record, payment in new_payments if isinstance(payment, Payment)]

        # 2. the watermark in force
        now = starts.watermark(None if recorded is None else recorded[number])
        outcome.watermarks.append(now)

        # 3. late rows
        late_orders = [record for record, order in valid_orders if order.order_time <= before]
        late_payments = [record for record, payment in valid_payments if payment.pay_time <= before]
        for name, late in zip(INPUTS, (late_orders, late_payments), strict=True):
            outcome.late += [LateRecord(number, name, record.partition, record.offset) for record in late]
        on_time = [order for _, order in valid_orders if order.order_time > before]
        paid_on_time = [payment for _, payment in valid_payments if payment.pay_time > before]

        # 4.-6. pairs, then evicted rows
        evicted_before = state.evicted
        outcome.batches.append(sorted(_batch(flow, state, on_time, paid_on_time, now), key=str))
        outcome.state.append(state.rows)
        outcome.evicted.append(state.evicted - evicted_before)

        # 7. the next watermark
        starts.add_batch(
            max((order.order_time for _, order in valid_orders), default=0),
            max((payment.pay_time for _, payment in valid_payments), default=0),
        )
        before = now
    outcome.restarts = starts.restarts
    return outcome


@dataclass
class _PossibleWatermarks:
    """The watermarks of a flow, by the batch that its driver may have started with.

    `newest` has the highest event time of each topic since each batch. `first` and `last` are the earliest and the
    latest batch that the current driver may have started with; the first driver started with batch 0.
    """

    delay_ms: int
    now: int = 0
    newest: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    first: int = 0
    last: int = 0
    restarts: int = 0

    def watermark(self, recorded: int | None) -> int:
        """Return the watermark of the next batch: the one of a single start, or the one that was recorded."""
        predicted = [max(self.now, min(since) - self.delay_ms) for since in self.newest]
        if recorded is None:
            self.now = predicted[0]
            return self.now
        explaining = [
            start for start, watermark in enumerate(predicted) if watermark == recorded and start >= self.first
        ]
        if not explaining:
            possible = sorted(set(predicted[self.first :]))
            message = (
                f"batch {len(predicted) - 1} ran with watermark {recorded}, and every start gives one of {possible}"
            )
            raise AssertionError(message)
        same = [start for start in explaining if start <= self.last]
        self.restarts += not same
        self.first, self.last = (same or explaining)[0], (same or explaining)[-1]
        self.now = recorded
        return self.now

    def add_batch(self, order_time: int, pay_time: int) -> None:
        """Add the highest event times of a batch; 0 is none."""
        self.newest = [
            (max(newest_order, order_time), max(newest_payment, pay_time))
            for newest_order, newest_payment in self.newest
        ]
        self.newest.append((0, 0))


def paid_by_minute(outcome: JoinOutcome, bound_ms: int) -> list[tuple[int, int, int]]:
    """Return when a minute begins, how many orders it has, and how many of them are paid.

    For a join that emits unmatched orders, and for minutes that the last watermark has passed by more than the bound:
    then an unpaid order has been emitted.
    """
    closed = (outcome.watermarks[-1] if outcome.watermarks else 0) - bound_ms
    orders, paid = dict[int, set[str]](), dict[int, set[str]]()
    for row in (row for batch in outcome.batches for row in batch if row.order_time is not None):
        minute = cast("int", row.order_time) // MINUTE_MS * MINUTE_MS
        orders.setdefault(minute, set()).add(row.order_id)
        if row.pay_time is not None:
            paid.setdefault(minute, set()).add(row.order_id)
    return [
        (minute, len(ids), len(paid.get(minute, ())))
        for minute, ids in sorted(orders.items())
        if minute + MINUTE_MS <= closed
    ]


def _batch(
    flow: JoinFlow, state: _JoinState, orders: Sequence[Order], payments: Sequence[Payment], watermark: int
) -> Iterable[Joined]:
    """Run steps 4 to 6, and return the emitted rows in no order."""
    for order in orders:
        partners = [partner for partner in state.payments.get(order.order_id, ()) if flow.matches(order, partner)]
        yield from (_pair(order, partner) for partner in partners)
        state.met.update(id(partner) for partner in partners)
        if order.order_time >= watermark - flow.bound_ms:
            state.orders.setdefault(order.order_id, []).append(order)
            state.met.update({id(order)} if partners else ())
        elif flow.emits_unmatched_orders and not partners:
            yield Joined(order.order_id, order.user_id, order.order_time, None, None)
    for payment in payments:
        paid = [partner for partner in state.orders.get(payment.order_id, ()) if flow.matches(partner, payment)]
        yield from (_pair(partner, payment) for partner in paid)
        state.met.update(id(partner) for partner in paid)
        if payment.pay_time >= watermark:
            state.payments.setdefault(payment.order_id, []).append(payment)
            state.met.update({id(payment)} if paid else ())
        elif flow.emits_unmatched_payments and not paid:
            yield Joined(payment.order_id, None, None, payment.amount, payment.pay_time)
    yield from _evict_expired(flow, state, watermark)


def _evict_expired(flow: JoinFlow, state: _JoinState, watermark: int) -> Iterable[Joined]:
    for order in [o for waiting in state.orders.values() for o in waiting if o.order_time < watermark - flow.bound_ms]:
        if flow.emits_unmatched_orders and id(order) not in state.met:
            yield Joined(order.order_id, order.user_id, order.order_time, None, None)
        _drop(state.orders, order.order_id, order)
        state.evicted += 1
        state.met.discard(id(order))
    for payment in [p for waiting in state.payments.values() for p in waiting if p.pay_time < watermark]:
        if flow.emits_unmatched_payments and id(payment) not in state.met:
            yield Joined(payment.order_id, None, None, payment.amount, payment.pay_time)
        _drop(state.payments, payment.order_id, payment)
        state.evicted += 1
        state.met.discard(id(payment))


def _drop(rows_by_id: dict[str, list[Order]] | dict[str, list[Payment]], key: str, row: object) -> None:
    rest = [other_row for other_row in rows_by_id[key] if other_row is not row]
    if rest:
        rows_by_id[key] = rest  # type: ignore[assignment]
    else:
        del rows_by_id[key]


def _pair(order: Order, payment: Payment) -> Joined:
    return Joined(order.order_id, order.user_id, order.order_time, payment.amount, payment.pay_time)
