"""Orders of a web shop: mostly good, some of them against a rule, some late by days, some twice, some broken.

- Customers of eight countries order for a few euros to a few hundred, most of them little.
- Of a hundred orders one is free or negative, one is a test, one has hundreds of items: the rules.
- A `late` record is an order of one to three days ago, from a till that was offline. It reaches gold all the same.
- Other orders arrive seconds late, sometimes minutes.

Duplicates and malformed records: see `headrace.patterns.traffic`. Of these, one from the year 2099 can be
read, and is against a rule.
"""

from dataclasses import dataclass
from typing import ClassVar

from headrace.patterns import traffic

_COUNTRIES = ("DE", "FR", "NL", "AT", "ES", "IT", "PL", "SE")
_DAY_MS = 24 * 60 * 60 * 1000


class _Simulation(traffic.IndependentEvents):
    """One stream of orders."""

    kind = "order"

    def late(self, now: int) -> traffic.GeneratedEvent:
        return self.event_at(now - int((1 + 2 * self.random()) * _DAY_MS))

    def event_at(self, ordered_at: int) -> traffic.GeneratedEvent:
        draw = self.random
        customer, items = f"c-{self._bits(16):05d}", 1 + int(8 * draw() * draw())
        amount = round(items * (2 + 40 * draw() ** 3), 2)
        chance = draw()
        if chance < 0.01:
            amount = 0.0 if chance < 0.005 else -amount
        elif chance < 0.02:
            customer = f"test-{self._bits(8)}"
        elif chance < 0.03:
            items = 100 + self._bits(9)
        country = _COUNTRIES[int(len(_COUNTRIES) * draw() * draw())]
        text = (
            f'{{"order_id":"{self._bits(64):016x}","customer_id":"{customer}","country":"{country}",'
            f'"amount":{amount:.2f},"items":{items},"ordered_at":"{traffic.iso(ordered_at)}"}}'
        )
        return traffic.GeneratedEvent(customer.encode(), text, ordered_at)


# The corruptions of a valid event, by name.
MALFORMED: dict[str, traffic.Corruption] = {
    **traffic.common_corruptions("order_id", "ordered_at"),
    "amount_not_a_number": traffic.set_fields(amount="much"),
    "items_not_whole": traffic.set_fields(items=1.5),
    "no_order_id": traffic.remove_field("order_id"),
    "no_country": traffic.remove_field("country"),
}


@dataclass(frozen=True)
class WebOrderTraffic(traffic.Traffic):
    """How a stream of orders looks: like any traffic."""

    pattern: ClassVar[str] = "medallion"
    simulation = _Simulation
    corruptions = MALFORMED

    topic: str = "web-orders"


generator = WebOrderTraffic().with_traffic
