"""The expected output of real-time aggregates, in plain Python: exact sums, and users counted one by one.

This module parses sales and computes the row of each group, and the longer windows. `headrace.patterns.window_model`
runs the batches, the watermark and the late rows, as for every flow with windows.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from operator import attrgetter
from typing import TypeVar

from headrace.patterns import records
from headrace.patterns.records import MINUTE_MS, Event
from headrace.patterns.window_model import WindowFlow


@dataclass(frozen=True, slots=True)
class Sale(Event):
    """A sale."""

    category: str
    amount: Decimal
    user_id: str


SALE = records.RecordSchema(
    Sale,
    (
        records.Field("product_id", records.text),
        records.Field("category", records.text),
        records.Field("amount", records.decimal(10, 2)),
        records.Field("user_id", records.text),
        records.Field("ts", records.instant),
    ),
    time="ts",
)


@dataclass(frozen=True, slots=True)
class CategorySales:
    """A window of a category, of any length, with its users, which are needed to merge windows."""

    window_start: int
    window_end: int
    category: str
    revenue: Decimal
    orders: int
    users: frozenset[str]


@dataclass(frozen=True, slots=True)
class GoldRow:
    """A row of the gold table; `unique_users` is exact here, where Spark's is approximate."""

    grain: str
    window_start: int
    window_end: int
    category: str
    revenue: Decimal
    orders: int
    unique_users: int


@dataclass(frozen=True, slots=True)
class RollingRevenue:
    """A row of rolling revenue."""

    window_start: int
    window_end: int
    category: str
    revenue: Decimal
    orders: int


_Window = TypeVar("_Window", CategorySales, RollingRevenue)


def newest(batches: Iterable[Sequence[_Window]]) -> list[_Window]:
    """Return the final windows of a table that gets each change: the last row of each window."""
    return list({(row.window_start, row.category): row for batch in batches for row in batch}.values())


def gold(windows: Iterable[CategorySales], grains: Mapping[str, int]) -> list[GoldRow]:
    """Return the rows of the gold table. `grains` gives lengths in milliseconds by name, the windows' own first."""
    gold_rows: list[GoldRow] = []
    rows = list(windows)
    for grain, length in grains.items():
        groups: dict[tuple[int, str], list[CategorySales]] = {}
        for row in rows:
            groups.setdefault((row.window_start // length * length, row.category), []).append(row)
        rows = [_merge(start, start + length, category, parts) for (start, category), parts in sorted(groups.items())]
        gold_rows += [
            GoldRow(grain, row.window_start, row.window_end, row.category, row.revenue, row.orders, len(row.users))
            for row in rows
        ]
    return gold_rows


def _merge(start: int, end: int, category: str, parts: Sequence[CategorySales]) -> CategorySales:
    users = frozenset[str]().union(*(part.users for part in parts))
    revenue = sum((part.revenue for part in parts), Decimal(0))
    return CategorySales(start, end, category, revenue, sum(part.orders for part in parts), users)


def _category_sales(start: int, end: int, category: str, sales: Sequence[Sale]) -> CategorySales:
    users = frozenset(sale.user_id for sale in sales)
    return CategorySales(start, end, category, _amount(sales), len(sales), users)


def _rolling(start: int, end: int, category: str, sales: Sequence[Sale]) -> RollingRevenue:
    return RollingRevenue(start, end, category, _amount(sales), len(sales))


def _amount(sales: Iterable[Sale]) -> Decimal:
    return sum((sale.amount for sale in sales), Decimal(0))


_CATEGORY = attrgetter("category")
CATEGORY_SALES = WindowFlow(5 * MINUTE_MS, MINUTE_MS, SALE.parse, _CATEGORY, _category_sales)
ROLLING_REVENUE = WindowFlow(10 * MINUTE_MS, 2 * MINUTE_MS, SALE.parse, _CATEGORY, _rolling, slide_ms=2 * MINUTE_MS)
