"""Sales of a shop with eight categories: mostly in order, sometimes late, duplicate or malformed.

- Which category sells follows its size. A sale costs about the usual price of its category; one in fifty is
  a refund, with an amount below zero.
- Some users buy often, most of them seldom: the users of an hour are fewer than those of its five minutes added up.
- Event times are seconds before the arrival, sometimes minutes.
- A `late` record arrives 20 to 60 minutes after its event time: too late for every window.

Duplicates and malformed records: see `headrace.patterns.traffic`.
"""

import math
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

from headrace.patterns import traffic


@dataclass(frozen=True, slots=True)
class Category:
    """A category: how much of the sales it makes, what a sale of it usually costs, and how many products it has."""

    name: str
    code: str
    size: float
    price: float
    products: int


CATEGORIES = (
    Category("groceries", "gro", 2.6, 14.0, 900),
    Category("fashion", "fas", 1.7, 45.0, 700),
    Category("electronics", "ele", 1.1, 190.0, 300),
    Category("home", "hom", 1.0, 60.0, 400),
    Category("books", "boo", 0.9, 16.0, 800),
    Category("toys", "toy", 0.6, 25.0, 250),
    Category("sports", "spo", 0.5, 55.0, 300),
    Category("garden", "gar", 0.2, 35.0, 150),
)

_WEIGHTS = tuple(accumulate(category.size for category in CATEGORIES))
_USERS = 200_000
_REFUNDS = 0.02


class _Simulation(traffic.IndependentEvents):
    """One stream of sales."""

    kind = "sale"

    def event_at(self, event_ms: int) -> traffic.GeneratedEvent:
        draw = self.random
        category = CATEGORIES[traffic.weighted_index(_WEIGHTS, draw())]
        product = f"{category.code}-{int(draw() * category.products):04d}"
        # The square crowds the draws at the front: a tenth of the users makes a third of the sales.
        user = int(draw() ** 2 * _USERS)
        amount = max(0.01, category.price * math.exp(draw() + draw() - 1))
        if draw() < _REFUNDS:
            amount = -amount
        text = (
            f'{{"product_id":"{product}","category":"{category.name}","amount":{amount:.2f},'
            f'"user_id":"u-{user}","ts":"{traffic.iso(event_ms)}"}}'
        )
        return traffic.GeneratedEvent(product.encode(), text, event_ms)


# The corruptions of a valid event, by name.
MALFORMED: dict[str, traffic.Corruption] = {
    **traffic.common_corruptions("category", "ts"),
    "amount_not_a_number": traffic.set_fields(amount="abc"),
    "amount_too_large": traffic.set_fields(amount=123456789012.5),
    "no_amount": traffic.remove_field("amount"),
    "no_category": traffic.remove_field("category"),
    "no_user_id": traffic.remove_field("user_id"),
}


@dataclass(frozen=True)
class SalesTraffic(traffic.Traffic):
    """How a stream of sales looks: like any traffic, in these categories."""

    pattern: ClassVar[str] = "sales"
    simulation = _Simulation
    corruptions = MALFORMED

    topic: str = "sales"


generator = SalesTraffic().with_traffic
