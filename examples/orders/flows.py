"""Orders and payments with their usual numbers: the four joins."""

from headrace.patterns.orders.flows import flows

orders = flows()
