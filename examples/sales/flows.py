"""Real-time aggregates with their usual numbers."""

from headrace.patterns.sales.flows import SalesSettings, flows

SETTINGS = SalesSettings()

sales = flows(SETTINGS)
