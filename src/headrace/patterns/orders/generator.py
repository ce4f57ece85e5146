"""Orders of a shop and the payments that follow them, on two topics: mostly soon, sometimes late, sometimes never.

- Seven payments in ten are made within five minutes of their order, and nearly all within the hour. Two in a hundred
  orders are paid after more than the hour, which is no payment of theirs any more, and five never.
- One payment in a hundred is of an order that nobody has seen.
- Event times are seconds before the arrival, sometimes minutes.
- A `late` record is the payment of an order that seemed unpaid, or every fifth time an order. It arrives 45 minutes or
  more behind its time: too late for a watermark of 30. Of two payments in three of an order that nobody has seen, it is
  the order: it was paid in time, and its payment had no order yet.

Duplicates and malformed records: see `headrace.patterns.traffic`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import ClassVar, NamedTuple

from headrace.patterns import traffic
from headrace.patterns.records import MINUTE_MS

_USERS = 5_000
# Payments to come that are remembered. At rates that no shop has, orders go unpaid instead of memory getting full.
_MOST_UNPAID = 500_000
_UNKNOWN = 0.01
# Of these, how many are of an order that is still to come.
_ORDERED_LATE = 2 / 3

# How long after its order a payment is made: shares, and from and to how many minutes.
_WAITS = ((0.70, 0.1, 5.0), (0.90, 5.0, 45.0), (0.93, 45.0, 59.9), (0.95, 60.1, 80.0))


class _PendingPayment(NamedTuple):
    """A payment to come. The first fields order a heap by when it is made. Of an unpaid order: when it was ordered."""

    pay_ms: int
    number: int
    order_id: str


class _PendingOrder(NamedTuple):
    """An order to come, long after its payment. The first field orders a heap by when it arrives, or later."""

    due_ms: int
    pay_ms: int
    order_id: str


class _Simulation(traffic.DelayedSimulation):
    """One stream of orders and payments."""

    kind = "order"

    def __init__(self, settings: OrderTraffic, start_ms: int) -> None:
        super().__init__(settings, start_ms)
        self._topics = settings.topic, settings.payments_topic
        self._due: list[_PendingPayment] = []
        self._unpaid: deque[_PendingPayment] = deque(maxlen=_MOST_UNPAID)
        self._unordered: list[_PendingOrder] = []
        self._number = 0

    def event(self, now: int) -> traffic.GeneratedEvent:
        if self._due and self._due[0].pay_ms <= now:
            due = heappop(self._due)
            return self._payment(due.order_id, due.pay_ms)
        if self.random() < _UNKNOWN:
            order_id = self._new_id()
            if self.random() < _ORDERED_LATE and len(self._unordered) < _MOST_UNPAID:
                behind = int((60 + 120 * self.random()) * MINUTE_MS)
                heappush(self._unordered, _PendingOrder(now + behind, now, order_id))
            return self._payment(order_id, now)
        order_ms = now - self._delay()
        order_id = self._new_id()
        wait_ms = self._wait_ms()
        if wait_ms is None or len(self._due) >= _MOST_UNPAID:
            self._unpaid.append(_PendingPayment(order_ms, self._number, order_id))
        else:
            heappush(self._due, _PendingPayment(order_ms + wait_ms, self._number, order_id))
        return self._order(order_id, order_ms)

    def late(self, now: int) -> traffic.GeneratedEvent:
        behind = int((45 + 105 * self.random()) * MINUTE_MS)
        if self.random() < 0.2 or not self._unpaid or self._unpaid[0].pay_ms > now - behind - 5 * MINUTE_MS:
            return self._late_order(now, behind)
        # The order seemed unpaid; it was paid within five minutes, and the message took its time.
        order = self._unpaid.popleft()
        return self._payment(order.order_id, order.pay_ms + int(5 * MINUTE_MS * self.random()))

    def _late_order(self, now: int, behind: int) -> traffic.GeneratedEvent:
        if not self._unordered or self._unordered[0].due_ms > now:
            return self._order(self._new_id(), now - behind)
        # Its payment came in time and had no order yet.
        paid = heappop(self._unordered)
        return self._order(paid.order_id, paid.pay_ms - int(5 * MINUTE_MS * self.random()))

    def standalone_event(self, now: int) -> traffic.GeneratedEvent:
        order_id = self._new_id()
        return self._order(order_id, now) if self.random() < 0.5 else self._payment(order_id, now)

    def _new_id(self) -> str:
        self._number += 1
        return f"o-{self._bits(48):012x}"

    def _wait_ms(self) -> int | None:
        chance = self.random()
        for share, least, most in _WAITS:
            if chance < share:
                return int((least + (most - least) * self.random()) * MINUTE_MS)
        return None

    def _order(self, order_id: str, order_ms: int) -> traffic.GeneratedEvent:
        user = f"u-{self._bits(32) % _USERS:05d}"
        text = f'{{"order_id":"{order_id}","user_id":"{user}","order_time":"{traffic.iso(order_ms)}"}}'
        return traffic.GeneratedEvent(order_id.encode(), text, order_ms, "order", self._topics[0])

    def _payment(self, order_id: str, pay_ms: int) -> traffic.GeneratedEvent:
        cents = 100 + self._bits(32) % 30_000
        text = f'{{"order_id":"{order_id}","amount":{cents / 100:.2f},"pay_time":"{traffic.iso(pay_ms)}"}}'
        return traffic.GeneratedEvent(order_id.encode(), text, pay_ms, "payment", self._topics[1])


def _other_times(how: traffic.Corruption, order: traffic.Corruption) -> traffic.Corruption:
    """Break a payment in one way, and an order in another: their times have other names."""
    return lambda event: how(event) if '"pay_time"' in event else order(event)


def _malformed() -> dict[str, traffic.Corruption]:
    payments, orders = (
        traffic.common_corruptions("order_id", "pay_time"),
        traffic.common_corruptions("order_id", "order_time"),
    )
    pairs = zip(payments.items(), orders.values(), strict=True)
    both = {
        name.replace("no_pay_time", "no_time"): _other_times(order_kind, payment_kind)
        for (name, order_kind), payment_kind in pairs
    }
    return {
        **both,
        "no_order_id": traffic.remove_field("order_id"),
        "half": _other_times(traffic.set_fields(amount="free"), traffic.remove_field("user_id")),
        "too_dear": _other_times(traffic.set_fields(amount=10**11), traffic.set_fields(user_id=None)),
        "null_key": str.encode,
    }


# The corruptions of a valid event, by name.
MALFORMED = _malformed()


@dataclass(frozen=True)
class OrderTraffic(traffic.Traffic):
    """How a stream of orders and payments looks. The topics are where the flows read."""

    pattern: ClassVar[str] = "orders"
    simulation = _Simulation
    corruptions = MALFORMED

    topic: str = "orders"
    payments_topic: str = "payments"


generator = OrderTraffic().with_traffic
