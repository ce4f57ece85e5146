"""The demo of orders and payments, and the reconciliation of their join with the late rows."""

from headrace.demos.orders.demo import DEMO

__all__ = ["DEMO"]
