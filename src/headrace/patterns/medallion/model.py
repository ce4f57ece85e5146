"""The expected rows of each layer of the medallion, computed in plain Python without Spark.

Bronze has all records. Silver has the records that meet the schema and the rules, each order once within a time of
arrival in bronze. Gold has figures over silver. No layer depends on the boundaries of its batches: one function of all
records computes its rows.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal

from headrace.patterns import records
from headrace.patterns.records import HOUR_MS, ConsumedRecord, InvalidRecord, average


@dataclass(frozen=True, slots=True)
class WebOrder:
    """A row of silver."""

    order_id: str
    customer_id: str
    country: str
    amount: Decimal
    items: int
    ordered_at: int
    order_date: date = field(init=False)

    def __post_init__(self) -> None:
        day = datetime.fromtimestamp(self.ordered_at // 1000, UTC).date()
        object.__setattr__(self, "order_date", day)


ORDER = records.RecordSchema(
    WebOrder,
    (
        records.Field("order_id", records.text),
        records.Field("customer_id", records.text),
        records.Field("country", records.text),
        records.Field("amount", records.decimal(10, 2)),
        records.Field("items", records.integer),
        records.Field("ordered_at", records.instant_ms),
    ),
    time=None,
)


@dataclass(frozen=True, slots=True)
class DailySales:
    """A row of gold."""

    order_date: date
    country: str
    orders: int
    items: int
    revenue: Decimal
    avg_order: Decimal
    largest_order: Decimal


# A rule by its name: what is done with a row that breaks it, and whether a row keeps it.
Rules = Mapping[str, tuple[str, Callable[[WebOrder, ConsumedRecord], bool]]]
RULES: Rules = {
    "positive_amount": ("quarantine", lambda order, _: order.amount > 0),
    "not_from_the_future": ("quarantine", lambda order, record: order.ordered_at <= record.timestamp_ms + HOUR_MS),
    "no_test_orders": ("drop", lambda order, _: not order.customer_id.startswith("test-")),
    "few_items": ("warn", lambda order, _: order.items <= 50),
    "sane_amount": ("fail", lambda order, _: order.amount < 1_000_000),
}


@dataclass(frozen=True)
class Silver:
    """The expected rows of silver, its quarantined records, and how many rows violated each rule."""

    orders: list[WebOrder] = field(default_factory=list)
    invalid: list[InvalidRecord] = field(default_factory=list)
    violations: Counter[str] = field(default_factory=Counter)


def silver(records: Iterable[ConsumedRecord], *, within_ms: int = HOUR_MS, rules: Rules = RULES) -> Silver:
    """Return what silver makes of records, in the order of their arrival. Their timestamp is when bronze got them."""
    result = Silver(violations=Counter(dict.fromkeys(rules, 0)))
    first_arrivals: dict[str, int] = {}
    for record in sorted(records, key=lambda record: (record.timestamp_ms, record.partition, record.offset)):
        order = ORDER.parse(record)
        if isinstance(order, InvalidRecord):
            result.invalid.append(order)
            continue
        violated = [name for name, (_, keeps) in rules.items() if not keeps(order, record)]
        result.violations.update(violated)
        rule = next((name for name in violated if rules[name][0] == "quarantine"), None)
        if rule is not None:
            result.invalid.append(InvalidRecord(record.partition, record.offset, f"rule:{rule}"))
        elif not any(rules[name][0] == "drop" for name in violated):
            before = first_arrivals.get(order.order_id)
            if before is None or record.timestamp_ms > before + within_ms:
                first_arrivals[order.order_id] = record.timestamp_ms
                result.orders.append(order)
    return result


def gold(orders: Iterable[WebOrder]) -> list[DailySales]:
    """Return what gold makes of the orders of silver."""
    groups: dict[tuple[date, str], list[WebOrder]] = {}
    for order in orders:
        groups.setdefault((order.order_date, order.country), []).append(order)
    return [
        DailySales(
            day,
            country,
            len(of),
            sum(order.items for order in of),
            sum((order.amount for order in of), Decimal(0)),
            average([order.amount for order in of]),
            max(order.amount for order in of),
        )
        for (day, country), of in sorted(groups.items())
    ]
