"""The right answer of enrichment, in plain Python: each purchase once, with its product or waiting for it.

A replay is handed what Kafka held, where Spark cut its batches, which version of the dimension each batch saw, and what
these versions held. For each batch, in order:

1. Take the purchases that wait, and those of the batch that are not bad.
2. Look each one up in the batch's version: the product's row, or the one that was valid when it was bought.
3. Whoever is found is enriched for good; whoever is not waits, marked with the version.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import cast

from headrace.patterns.records import (
    ConsumedRecord,
    Event,
    Field,
    InvalidRecord,
    RecordSchema,
    decimal,
    instant,
    integer,
    text,
)
from headrace.patterns.window_model import BatchOffsets, batch_records

PURCHASE = RecordSchema(
    (
        Field("purchase_id", text),
        Field("product_id", text),
        Field("user_id", text),
        Field("quantity", integer),
        Field("ts", instant),
    ),
    time="ts",
)
PRODUCT = RecordSchema(
    (
        Field("product_id", text),
        Field("name", text),
        Field("category", text),
        Field("price", decimal(10, 2)),
        Field("updated_at", instant),
    ),
    time=None,
)


@dataclass(frozen=True, slots=True)
class Purchase(Event):
    """A purchase."""

    purchase_id: str
    product_id: str
    user_id: str
    quantity: int


@dataclass(frozen=True, slots=True)
class Product:
    """A row of the dimension. It is valid from a time until before another one, microseconds; None is always."""

    product_id: str
    name: str
    category: str
    price: Decimal
    valid_from_us: int | None = None
    valid_to_us: int | None = None

    def is_valid_at(self, moment_us: int) -> bool:
        """Whether the row says what was so at that time."""
        is_started = self.valid_from_us is None or self.valid_from_us <= moment_us
        return is_started and (self.valid_to_us is None or moment_us < self.valid_to_us)


@dataclass(frozen=True, slots=True)
class EnrichedPurchase:
    """A row of the table; `ts` in milliseconds. Without its product it waits."""

    purchase_id: str
    product_id: str
    user_id: str
    quantity: int
    ts: int
    name: str | None
    category: str | None
    price: Decimal | None
    enriched: bool
    dimension_version: int


@dataclass(frozen=True)
class EnrichmentOutcome:
    """What the table must hold, the bad records, and how many purchases were enriched in a later batch than theirs."""

    rows: list[EnrichedPurchase]
    bad: list[InvalidRecord]
    enriched_later: int


Catalogue = Sequence[Product]
"""All rows of one version of the dimension."""


def replay(
    records: Iterable[ConsumedRecord],
    batches: Sequence[BatchOffsets],
    versions_seen: Sequence[int],
    versions: Mapping[int, Catalogue],
) -> EnrichmentOutcome:
    """Run the purchases through their batches, in the steps that the module's docstring numbers."""
    log = {(record.partition, record.offset): record for record in records}
    by_id: dict[int, dict[str, list[Product]]] = {}
    for version, catalogue in versions.items():
        for product in catalogue:
            by_id.setdefault(version, {}).setdefault(product.product_id, []).append(product)
    waiting: list[Purchase] = []
    outcome = EnrichmentOutcome([], [], 0)
    later, version = 0, -1
    for batch, version in zip(batches, versions_seen, strict=True):
        parsed = [parse_purchase(record) for record in batch_records(log, batch)]
        outcome.bad.extend(verdict for verdict in parsed if isinstance(verdict, InvalidRecord))
        arrived = [verdict for verdict in parsed if not isinstance(verdict, InvalidRecord)]
        still: list[Purchase] = []
        for number, purchase in enumerate([*waiting, *arrived]):
            match = _find(by_id.get(version, {}).get(purchase.product_id, ()), purchase)
            if match is None:
                still.append(purchase)
            else:
                outcome.rows.append(_row(purchase, match, version))
                later += number < len(waiting)
        waiting = still
    outcome.rows.extend(_row(purchase, None, version) for purchase in waiting)
    return EnrichmentOutcome(outcome.rows, outcome.bad, later)


def parse_purchase(record: ConsumedRecord) -> Purchase | InvalidRecord:
    """Say what a record is: a purchase, or bad for the first reason that holds."""
    return PURCHASE.parse_event(record, Purchase)


def newest_products(records: Iterable[ConsumedRecord]) -> dict[str, Product]:
    """Return what the dimension must hold after these records: of each product what was said last, by its own time."""
    newest: dict[str, tuple[int, Product]] = {}
    for record in records:
        values = PRODUCT.parse(record)
        if isinstance(values, InvalidRecord):
            continue
        product = Product(
            str(values["product_id"]), str(values["name"]), str(values["category"]), cast("Decimal", values["price"])
        )
        updated_at = cast("int", values["updated_at"])
        if updated_at >= newest.get(product.product_id, (updated_at, product))[0]:
            newest[product.product_id] = (updated_at, product)
    return {name: product for name, (_, product) in newest.items()}


def _find(products: Iterable[Product], purchase: Purchase) -> Product | None:
    return next((product for product in products if product.is_valid_at(purchase.event_time_us)), None)


def _row(purchase: Purchase, product: Product | None, version: int) -> EnrichedPurchase:
    return EnrichedPurchase(
        purchase.purchase_id,
        purchase.product_id,
        purchase.user_id,
        purchase.quantity,
        purchase.event_time_us // 1000,
        name=None if product is None else product.name,
        category=None if product is None else product.category,
        price=None if product is None else product.price,
        enriched=product is not None,
        dimension_version=version,
    )
