"""The expected output of enrichment, in plain Python: each purchase once, with its product or waiting for it.

A replay gets the records of Kafka, the offsets of the batches, the version of the dimension that each batch read, and
the rows of these versions. For each batch, in order:

1. Take the waiting purchases, and the valid purchases of the batch.
2. Look up each product in the batch's version: its row, or the row that was valid at the time of the purchase.
3. A purchase with a product is enriched and final. A purchase without one waits, with the number of the version.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import cast

from headrace.patterns import records
from headrace.patterns.records import ConsumedRecord, Event, InvalidRecord
from headrace.patterns.window_model import BatchOffsets, batch_records


@dataclass(frozen=True, slots=True)
class Purchase(Event):
    """A purchase."""

    purchase_id: str
    product_id: str
    user_id: str
    quantity: int


PURCHASE = records.RecordSchema(
    Purchase,
    (
        records.Field("purchase_id", records.text),
        records.Field("product_id", records.text),
        records.Field("user_id", records.text),
        records.Field("quantity", records.integer),
        records.Field("ts", records.instant),
    ),
    time="ts",
)


@dataclass(frozen=True, slots=True)
class Product:
    """A row of the dimension. It is valid from `valid_from_us` to before `valid_to_us`; None is unbounded."""

    product_id: str
    name: str
    category: str
    price: Decimal
    valid_from_us: int | None = None
    valid_to_us: int | None = None

    def is_valid_at(self, moment_us: int) -> bool:
        """Whether the row is valid at that time."""
        is_started = self.valid_from_us is None or self.valid_from_us <= moment_us
        return is_started and (self.valid_to_us is None or moment_us < self.valid_to_us)


PRODUCT = records.RecordSchema(
    Product,
    (
        records.Field("product_id", records.text),
        records.Field("name", records.text),
        records.Field("category", records.text),
        records.Field("price", records.decimal(10, 2)),
        records.Field("updated_at", records.instant),
    ),
    time=None,
)


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
    """The expected rows, the invalid records, and how many purchases were enriched in a later batch than theirs."""

    rows: list[EnrichedPurchase]
    invalid: list[InvalidRecord]
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
        parsed = [PURCHASE.parse(record) for record in batch_records(log, batch)]
        outcome.invalid.extend(verdict for verdict in parsed if isinstance(verdict, InvalidRecord))
        arrived = [verdict for verdict in parsed if not isinstance(verdict, InvalidRecord)]
        still: list[Purchase] = []
        for number, purchase in enumerate([*waiting, *arrived]):
            products = by_id.get(version, {}).get(purchase.product_id, ())
            match = next((product for product in products if product.is_valid_at(purchase.event_time_us)), None)
            if match is None:
                still.append(purchase)
            else:
                outcome.rows.append(_row(purchase, match, version))
                later += number < len(waiting)
        waiting = still
    outcome.rows.extend(_row(purchase, None, version) for purchase in waiting)
    return EnrichmentOutcome(outcome.rows, outcome.invalid, later)


def newest_products(records: Iterable[ConsumedRecord]) -> dict[str, Product]:
    """Return the expected dimension after these records: the newest row of each product by `updated_at`."""
    newest: dict[str, Product] = {}
    updated: dict[str, int] = {}
    for record in records:
        values, product = PRODUCT.values(record), PRODUCT.parse(record)
        if isinstance(values, InvalidRecord) or isinstance(product, InvalidRecord):
            continue
        updated_at = cast("int", values["updated_at"])
        if updated_at >= updated.get(product.product_id, updated_at):
            newest[product.product_id], updated[product.product_id] = product, updated_at
    return newest


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
