"""Purchases, and the products that they are of: some become known only after they were bought, and prices change.

The catalogue is the same from every moment that one looks at it: what a product is, when it is born and announced and
what it costs follow from the seed and its number. Every 20 seconds a product is born, and is bought from then on for 40
minutes, most in its first ones.

- Most products are announced a minute before they are born.
- Three in ten are announced up to three minutes after it: their first purchases wait for them.
- One in forty is never announced: its purchases wait forever.
- The price of a product changes every ten minutes.

Both come in one stream, in the order of their arrival, each record with its topic. A stream begins with all products
that are known at its first moment.

Late, duplicate and malformed purchases: see `headrace.patterns.traffic`.
"""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from heapq import heappop, heappush, merge
from itertools import count
from typing import ClassVar

from headrace.patterns import traffic
from headrace.patterns.records import MINUTE_MS

_BORN_EVERY_MS = 20_000
_SOLD_FOR = 120  # products: 40 minutes of births
_PRICE_LASTS_MS = 10 * MINUTE_MS
_AHEAD_MS = MINUTE_MS
_NEVER, _LATE = 1 / 40, 0.3
_CATEGORIES = ("groceries", "fashion", "electronics", "home", "books", "toys", "sports", "garden")
_KINDS = ("Classic", "Light", "Pro", "Mini", "Max", "Eco", "Retro", "Travel")


@dataclass(frozen=True, slots=True)
class GeneratedProduct:
    """A product: when it is first bought, and when it is announced, or None for never."""

    number: int
    product_id: str
    name: str
    category: str
    born_ms: int
    announced_ms: int | None


@lru_cache(maxsize=4096)
def entry(seed: int, number: int) -> GeneratedProduct:
    """Return a product of the catalogue, by its number since the epoch."""
    rng = random.Random(f"{seed}/{number}")  # noqa: S311 - realistic, not secret
    chance, born = rng.random(), number * _BORN_EVERY_MS
    category, kind = rng.choice(_CATEGORIES), rng.choice(_KINDS)
    announced: int | None = born - _AHEAD_MS
    if chance < _NEVER:
        announced = None
    elif chance < _NEVER + _LATE:
        announced = born + int(3 * MINUTE_MS * rng.random())
    return GeneratedProduct(number, f"p-{number:x}", f"{kind} {category} {number % 1000}", category, born, announced)


def price(seed: int, product: GeneratedProduct, change: int) -> str:
    """Return what a product costs after so many changes of its price."""
    rng = random.Random(f"{seed}/{product.number}/{change}")  # noqa: S311 - realistic, not secret
    return f"{1 + 199 * rng.random() ** 2:.2f}"


class _Simulation(traffic.IndependentEvents):
    """One stream of purchases."""

    kind = "purchase"

    def event_at(self, event_ms: int) -> traffic.GeneratedEvent:
        draw = self.random
        # The square crowds the draws at the newest products.
        product = entry(self._seed, event_ms // _BORN_EVERY_MS - int(draw() ** 2 * _SOLD_FOR))
        text = (
            f'{{"purchase_id":"{self._bits(64):016x}","product_id":"{product.product_id}",'
            f'"user_id":"u-{int(draw() * 50_000)}","quantity":{1 + int(draw() ** 3 * 5)},'
            f'"ts":"{traffic.iso(event_ms)}"}}'
        )
        return traffic.GeneratedEvent(product.product_id.encode(), text, event_ms)


# The corruptions of a valid event, by name.
MALFORMED: dict[str, traffic.Corruption] = {
    **traffic.common_corruptions("user_id", "ts"),
    "quantity_not_a_number": traffic.set_fields(quantity="two"),
    "no_quantity": traffic.remove_field("quantity"),
    "no_product_id": traffic.remove_field("product_id"),
}


@dataclass(frozen=True)
class PurchaseTraffic(traffic.Traffic):
    """How a stream of purchases looks: as any traffic. Records of products come on top of `rate`.

    The topics are where the flows read.
    """

    pattern: ClassVar[str] = "enrichment"
    simulation = _Simulation
    corruptions = MALFORMED

    topic: str = "purchases"
    products_topic: str = "products"


@dataclass(frozen=True)
class ProductGenerator:
    """What becomes known of products: all that was known at the first moment, then what changes."""

    settings: PurchaseTraffic = PurchaseTraffic()

    @property
    def topic(self) -> str:
        """Where products go."""
        return self.settings.products_topic

    def events(self, from_: datetime, until: datetime | None = None) -> Iterator[traffic.GeneratedRecord]:
        """Yield the records that arrive from a moment on, in the order of their arrival, without waiting."""
        start = self.settings.milliseconds(from_)
        end = None if until is None else self.settings.milliseconds(until)
        due: list[tuple[int, int, int]] = []
        # Late purchases reach back an hour, to products that were born 40 minutes before.
        for number in count(start // _BORN_EVERY_MS - 3 * _SOLD_FOR):
            product = entry(self.settings.seed, number)
            # This product and later ones are not announced before this time.
            while due and due[0][0] <= product.born_ms - _AHEAD_MS:
                if end is not None and due[0][0] >= end:
                    return
                yield self._event(*heappop(due), start)
            if end is not None and product.born_ms - _AHEAD_MS >= end and not due:
                return
            for event in self._changes(product, start):
                heappush(due, event)

    def _changes(self, product: GeneratedProduct, start: int) -> Iterator[tuple[int, int, int]]:
        """Yield the announcements of a product: the time, its number, and how often its price has changed."""
        if product.announced_ms is None:
            return
        last = _SOLD_FOR * _BORN_EVERY_MS // _PRICE_LASTS_MS
        changes = [
            (max(product.announced_ms, product.born_ms + change * _PRICE_LASTS_MS if change else 0), change)
            for change in range(last)
        ]
        before = [moment_and_change for moment_and_change in changes if moment_and_change[0] <= start]
        for moment, change in [
            *before[-1:],
            *(moment_and_change for moment_and_change in changes if moment_and_change[0] > start),
        ]:
            yield moment, product.number, change

    def _event(self, moment: int, number: int, change: int, start: int) -> traffic.GeneratedRecord:
        product = entry(self.settings.seed, number)
        text = (
            f'{{"product_id":"{product.product_id}","name":{json.dumps(product.name)},'
            f'"category":"{product.category}","price":{price(self.settings.seed, product, change)},'
            f'"updated_at":"{traffic.iso(moment)}"}}'
        )
        kind = "price" if change else "product"
        return traffic.GeneratedRecord(
            product.product_id.encode(), text.encode(), moment, max(moment, start), kind, self.topic
        )


@dataclass(frozen=True)
class EnrichmentTraffic(PurchaseTraffic):
    """Purchases and what becomes known of products, in the order of their arrival, each on its topic."""

    def events(self, from_: datetime, until: datetime | None = None) -> Iterator[traffic.GeneratedRecord]:
        """Yield the records that arrive from a moment on, in the order of their arrival, without waiting."""
        both = ProductGenerator(self).events(from_, until), super().events(from_, until)
        return merge(*both, key=lambda record: record.arrival_ms)


generator = EnrichmentTraffic().with_traffic
