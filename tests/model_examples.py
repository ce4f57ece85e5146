"""Models with the usual settings of their patterns, and results that need no batches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from headrace.patterns.iot.model import DeviceMetrics, Reading, device_metrics
from headrace.patterns.orders.model import ORDER, PAYMENT, Joined, JoinFlow, Order, Payment
from headrace.patterns.records import MINUTE_MS, ConsumedRecord, InvalidRecord
from headrace.patterns.rides.model import city_rides, surge
from headrace.patterns.window_model import WindowFlow

CITY_RIDES, SURGE = city_rides(), surge()
DEVICE_METRICS = device_metrics()
JOINS = {
    "inner": JoinFlow("inner", 10 * MINUTE_MS),
    "left": JoinFlow("left", 30 * MINUTE_MS),
    "right": JoinFlow("right", 30 * MINUTE_MS),
    "full": JoinFlow("full", 30 * MINUTE_MS),
}


def recompute(records: Iterable[ConsumedRecord], flow: WindowFlow[Reading, DeviceMetrics]) -> list[DeviceMetrics]:
    """Return the gold table as a batch makes it of all records: nothing is late. A repair has to produce it."""
    groups: dict[tuple[int, str], list[Reading]] = {}
    for record in records:
        reading = flow.parse(record)
        if not isinstance(reading, InvalidRecord):
            for start in flow.starts(reading):
                groups.setdefault((start, reading.device_id), []).append(reading)
    return [flow.row(start, start + flow.window_ms, device, groups[start, device]) for start, device in sorted(groups)]


def daily_rows(
    orders: Iterable[ConsumedRecord], payments: Iterable[ConsumedRecord], flow: JoinFlow, start: int, end: int
) -> list[Joined]:
    """Return the expected rows of a join for a time range: every record counts once, even if it was late."""
    all_orders = {row for record in orders if isinstance(row := ORDER.parse(record), Order)}
    all_payments = {paid for record in payments if isinstance(paid := PAYMENT.parse(record), Payment)}
    by_id: dict[str, list[Order]] = {}
    for order in all_orders:
        by_id.setdefault(order.order_id, []).append(order)
    pairs = [(o, p) for p in all_payments for o in by_id.get(p.order_id, ()) if flow.matches(o, p)]
    rows = [Joined(o.order_id, o.user_id, o.order_time, p.amount, p.pay_time) for o, p in pairs]
    if flow.emits_unmatched_orders:
        unpaid = all_orders - {order for order, _ in pairs}
        rows += [Joined(row.order_id, row.user_id, row.order_time, None, None) for row in unpaid]
    if flow.emits_unmatched_payments:
        unmatched = all_payments - {payment for _, payment in pairs}
        rows += [Joined(row.order_id, None, None, row.amount, row.pay_time) for row in unmatched]
    return [row for row in rows if start <= cast("int", row.order_time or row.pay_time) < end]
