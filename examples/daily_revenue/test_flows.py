"""The stream and the batch against each other, and both against a sum in plain Python."""

from collections import defaultdict
from datetime import date, datetime
from decimal import Decimal

from flows import KEY, SALE, TABLE, revenue
from parity import differences
from sales import drop, sales

from headrace.testing import Arrive, Crash, Point, rehearse


def by_hand():
    """Return revenue, sales and customers per day and region."""
    days = defaultdict(list)
    for sale in sales():
        days[date.fromisoformat(sale["sold_at"][:10]), sale["region"]].append(sale)
    return {
        key: (sum(Decimal(sale["amount"]) for sale in of), len(of), len({sale["customer_id"] for sale in of}))
        for key, of in days.items()
    }


def typed(sale):
    """Return a sale as the files are read."""
    return {**sale, "amount": Decimal(sale["amount"]), "sold_at": datetime.fromisoformat(sale["sold_at"])}


def table(rows):
    return {tuple(row[name] for name in KEY): (row.revenue, row.sales, row.customers) for row in rows}


def test_the_stream_and_the_batch_give_the_same_answer_to_the_cent(spark, tmp_path):
    lines = list(sales())
    first, second = (Arrive(*(typed(sale) for sale in part)) for part in (lines[:250], lines[250:]))
    result = rehearse(
        revenue,
        [first, Crash(Point.AFTER_SINK), second],
        spark=spark,
        folder=tmp_path,
        sink=revenue.sink,
        columns={"rows": SALE},
    )
    assert table(result.table(TABLE)) == by_hand()
    drop(tmp_path / "lake" / "sales")
    assert differences(spark, tmp_path / "lake") == (9, [])
