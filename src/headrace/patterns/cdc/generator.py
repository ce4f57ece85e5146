"""The history of a small shop, as transactions of row changes: the same seed gives the same history.

    customers <- orders <- items      (customer_id of an order, order_id of an item)

| what happens        | per 100 | changes of one transaction                                                     |
|---------------------|---------|--------------------------------------------------------------------------------|
| an order is placed  | 40      | the order and its items; sometimes its customer before them                    |
| an order moves on   | 22      | only its status: the log then omits a long note                                |
| a line is changed   | 8       | the item, and the total of its order                                           |
| a note is written   | 4       | a text of some kilobytes, which the database stores outside of the row         |
| a customer changes  | 12      | balance, tags or profile                                                       |
| an order is removed | 8       | its items, then the order                                                      |
| an order comes back | 3       | a deleted key is inserted again                                                |
| a customer is new   | 2       | one row                                                                        |
| a key changes       | 1       | a customer gets another primary key, and its orders reference the new one      |

This module uses no database: `shop` writes the changes to Postgres, `model` computes the tables after them.
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Literal

Key = tuple[int, ...]
Value = int | str | Decimal | datetime | list[str] | dict[str, object] | None
Row = Mapping[str, Value]

# By table, in the order in which rows may be inserted: the columns of the primary key.
KEYS: Mapping[str, tuple[str, ...]] = {"customers": ("id",), "orders": ("id",), "items": ("order_id", "line")}

# The opening rows of the shop: enough for more than one fetch of a snapshot, and few enough to wait for.
_CUSTOMERS, _ORDERS = 400, 1_200
# The number of transactions with the opening rows. Live transactions follow.
OPENING = 16

_OPENED = datetime(2026, 1, 1, 8, tzinfo=UTC)
_STATUSES = ("placed", "paid", "packed", "sent", "delivered", "returned")
_TAGS = ("regular", "gift", "b2b", "zażółć", 'said "hello"', "{curly}", "a,b", "")
_NAMES = ("Ada", "Grace", "Edsger", "Barbara", "Søren", "李", "Zoë", "O'Neill")
_PRODUCTS = ("kettle", "lamp", "chair", "desk", "rug", "crème brûlée torch", "100 % wool\tblanket")
# Postgres stores rows of up to two kilobytes in a page; longer values are stored outside.
_LONG = (2_500, 9_000)
_LETTERS = "abcdefghijklmnopqrstuvwxyz ÄÖÜ\n"


@dataclass(frozen=True)
class RowChange:
    """One row inserted, updated or deleted. An update has the columns that change, also of the key if it moves."""

    op: Literal["insert", "update", "delete"]
    table: str
    key: Key
    values: Row = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """The kind under which the change is counted."""
        moved = self.op == "update" and any(name in self.values for name in KEYS[self.table])
        return "key change" if moved else self.op


@dataclass(frozen=True)
class ShopTransaction:
    """Changes that are committed together. `number` counts from 0 over the whole history."""

    number: int
    changes: tuple[RowChange, ...]


class Shop:
    """A running shop. `history` may be called once; the shop remembers only what later changes need."""

    def __init__(self, seed: int = 7) -> None:
        self._random = random.Random(seed)  # noqa: S311 - a repeatable history, no secret
        self._next = {"customer": 1, "order": 1}
        self._orders_of: dict[int, set[int]] = {}
        self._orders: dict[int, dict[int, Decimal]] = {}
        self._customer_of: dict[int, int] = {}
        self._deleted_orders: list[int] = []
        self._number = 0

    def history(self) -> Iterator[ShopTransaction]:
        """Yield an endless sequence of transactions, without waiting. The first `OPENING` create the shop."""
        for part in range(OPENING):
            changes = [change for _ in range(_CUSTOMERS // OPENING) for change in self._insert_customer()]
            if part:  # the first customers have no orders yet
                changes += [change for _ in range(_ORDERS // (OPENING - 1)) for change in self._insert_order()]
            yield self._next_transaction(changes)
        happenings = (
            (self._place_order, 40),
            (self._update_order_status, 22),
            (self._update_item, 8),
            (self._write_note, 4),
            (self._update_customer, 12),
            (self._delete_order, 8),
            (self._reinsert_order, 3),
            (self._insert_customer, 2),
            (self._change_customer_key, 1),
        )
        kinds, weights = zip(*happenings, strict=True)
        while True:
            (happens,) = self._random.choices(kinds, weights)
            changes = happens()
            if changes:
                yield self._next_transaction(changes)

    def _next_transaction(self, changes: list[RowChange]) -> ShopTransaction:
        done = ShopTransaction(self._number, tuple(changes))
        self._number += 1
        return done

    def _insert_customer(self) -> list[RowChange]:
        number = self._next_id("customer")
        self._orders_of[number] = set()
        name = f"{self._random.choice(_NAMES)} {number}"
        values: dict[str, Value] = {
            "id": number,
            "name": name,
            "email": f"{number}@example.org" if self._chance(0.9) else None,
            "balance": self._money(-50_000, 500_000),
            "tags": self._tags(),
            "profile": self._profile(),
            "since": self._now(),
        }
        return [RowChange("insert", "customers", (number,), values)]

    def _place_order(self) -> list[RowChange]:
        new = self._insert_customer() if self._chance(0.05) else []
        return [*new, *self._insert_order(new[0].key[0] if new else None)]

    def _insert_order(self, customer: int | None = None, order: int | None = None) -> list[RowChange]:
        """Return an order with its items, for the given customer or any, under the given key or a new one."""
        customer = self._random_key(self._orders_of) if customer is None else customer
        order = self._next_id("order") if order is None else order
        lines = {line: self._money(99, 250_000) for line in range(1, self._random.randint(1, 5) + 1)}
        self._orders[order] = lines
        self._orders_of[customer].add(order)
        self._customer_of[order] = customer
        items = []
        for line, price in lines.items():
            values: dict[str, Value] = {
                "order_id": order,
                "line": line,
                "product": self._random.choice(_PRODUCTS),
                "quantity": 1,
                "price": price,
            }
            items.append(RowChange("insert", "items", (order, line), values))
        head: dict[str, Value] = {
            "id": order,
            "customer_id": customer,
            "status": _STATUSES[0],
            "total": sum(lines.values(), Decimal(0)),
            "placed_at": self._now(),
            "note": self._text() if self._chance(0.2) else None,
            "details": self._profile(),
        }
        return [RowChange("insert", "orders", (order,), head), *items]

    def _update_order_status(self) -> list[RowChange]:
        return [
            RowChange("update", "orders", (self._random_key(self._orders),), {"status": self._random.choice(_STATUSES)})
        ]

    def _update_item(self) -> list[RowChange]:
        order = self._random_key(self._orders)
        line = self._random.choice(sorted(self._orders[order]))
        quantity, price = self._random.randint(2, 9), self._money(99, 250_000)
        self._orders[order][line] = quantity * price
        total = sum(self._orders[order].values(), Decimal(0))
        return [
            RowChange("update", "items", (order, line), {"quantity": quantity, "price": price}),
            RowChange("update", "orders", (order,), {"total": total}),
        ]

    def _write_note(self) -> list[RowChange]:
        return [RowChange("update", "orders", (self._random_key(self._orders),), {"note": self._text()})]

    def _update_customer(self) -> list[RowChange]:
        new: Row
        match self._random.randrange(3):
            case 0:
                new = {"balance": self._money(-50_000, 500_000)}
            case 1:
                new = {"tags": self._tags()}
            case _:
                new = {"profile": self._profile(), "email": None}
        return [RowChange("update", "customers", (self._random_key(self._orders_of),), new)]

    def _delete_order(self) -> list[RowChange]:
        order = self._random_key(self._orders)
        lines = self._orders.pop(order)
        self._orders_of[self._customer_of.pop(order)].discard(order)
        self._deleted_orders.append(order)
        items = [RowChange("delete", "items", (order, line)) for line in lines]
        return [*items, RowChange("delete", "orders", (order,))]

    def _reinsert_order(self) -> list[RowChange]:
        if not self._deleted_orders:
            return []
        return self._insert_order(order=self._deleted_orders.pop(self._random.randrange(len(self._deleted_orders))))

    def _change_customer_key(self) -> list[RowChange]:
        old, new = self._random_key(self._orders_of), self._next_id("customer")
        orders = self._orders_of.pop(old)
        self._orders_of[new] = orders
        self._customer_of |= dict.fromkeys(orders, new)
        moved = RowChange("update", "customers", (old,), {"id": new})
        return [moved, *(RowChange("update", "orders", (order,), {"customer_id": new}) for order in sorted(orders))]

    def _random_key(self, keys: Mapping[int, object]) -> int:
        """Choose an existing key: usually a recent one, as in a real shop."""
        ordered = list(keys)
        return ordered[-1 - min(int(self._random.expovariate(1) * len(ordered) / 4), len(ordered) - 1)]

    def _next_id(self, of: str) -> int:
        number = self._next[of]
        self._next[of] += 1
        return number

    def _chance(self, share: float) -> bool:
        return self._random.random() < share

    def _now(self) -> datetime:
        """Return the time of the shop: a repeated history has the same times."""
        within = timedelta(microseconds=self._random.randrange(60_000_000))
        return _OPENED + timedelta(minutes=self._number) + within

    def _money(self, least: int, most: int) -> Decimal:
        return Decimal(self._random.randint(least, most)).scaleb(-2)

    def _tags(self) -> list[str]:
        return self._random.sample(_TAGS, self._random.randint(0, 3))

    def _profile(self) -> dict[str, object]:
        return {"language": self._random.choice(("pt", "de", "zh")), "visits": self._random.randint(0, 9), "left": None}

    def _text(self) -> str:
        return "".join(self._random.choices(_LETTERS, k=self._random.randint(*_LONG)))
