"""The shop of the CDC demo: its history repeats itself, never contradicts itself, and holds what mirrors are bad at."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest

from headrace.patterns.cdc.generator import OPENING, RowChange, Shop, ShopTransaction
from headrace.patterns.cdc.model import Tables, differences, replay


def history(length: int, seed: int = 7) -> list[ShopTransaction]:
    return list(islice(Shop(seed).history(), length))


def orphans(tables: Tables) -> list[str]:
    """Return the orders without their customer and the items without their order."""
    customers, orders = tables["customers"], tables["orders"]
    lost = [f"order {key[0]}" for key, row in orders.items() if (row["customer_id"],) not in customers]
    return lost + [f"item {key}" for key in tables["items"] if key[:1] not in orders]


def test_the_same_seed_results_in_the_same_history_and_another_seed_in_another() -> None:
    assert history(400) == history(400)
    assert history(400) != history(400, seed=8)


def test_orders_belong_to_customers_and_items_to_orders_after_every_transaction() -> None:
    lived = history(1_200)
    for end in (OPENING, OPENING + 1, 400, 1_200):
        tables = replay(lived[:end])
        assert orphans(tables) == []
        for (order,), row in tables["orders"].items():
            items = [table for key, table in tables["items"].items() if key[0] == order]
            assert row["total"] == sum(item["quantity"] * item["price"] for item in items)  # type: ignore[operator, misc]


def test_a_history_contains_every_kind_of_change_that_is_hard_to_mirror() -> None:
    lived = [change for transaction in history(2_000)[OPENING:] for change in transaction.changes]

    assert set(Counter(change.kind for change in lived)) == {"insert", "update", "delete", "key change"}
    deleted, back = set(), 0
    for change in lived:
        if change.op == "delete":
            deleted.add((change.table, change.key))
        back += change.op == "insert" and (change.table, change.key) in deleted
    assert back > 10
    assert any(len(str(change.values.get("note") or "")) > 8_000 for change in lived)


@pytest.mark.parametrize(
    "changes",
    [
        [RowChange("update", "customers", (1,), {"name": "x"})],
        [RowChange("delete", "customers", (1,))],
        [RowChange("insert", "customers", (1,), {"id": 1}), RowChange("insert", "customers", (1,), {"id": 1})],
        [
            *(RowChange("insert", "customers", (key,), {"id": key}) for key in (1, 2)),
            RowChange("update", "customers", (1,), {"id": 2}),
        ],
    ],
)
def test_a_history_that_contradicts_itself_is_no_model(changes: list[RowChange]) -> None:
    with pytest.raises(ValueError, match="there"):
        replay([ShopTransaction(0, tuple(changes))])


def test_missing_extra_and_different_rows_are_reported() -> None:
    expected = replay(history(OPENING))
    stored = {table: {key: dict(row) for key, row in rows.items()} for table, rows in expected.items()}
    assert differences(expected, stored) == []  # type: ignore[arg-type]

    del stored["customers"][(1,)]
    stored["orders"][(0,)] = {}
    stored["items"][(1, 1)]["quantity"] = 0
    assert differences(expected, stored) == [  # type: ignore[arg-type]
        "customers (1,) is not there",
        "items (1, 1) differs in quantity",
        "orders (0,) should not be there",
    ]
