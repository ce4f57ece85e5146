"""The defaults of every pattern, against the numbers that the mission of Headrace gives for them."""

from __future__ import annotations

import pkgutil
from functools import partial

import pytest

from headrace import patterns
from headrace.cdc.apply.mirror import Mirror
from headrace.cdc.capture.declaration import Capture
from headrace.cdc.flows import CdcSettings
from headrace.errors import FlowError
from headrace.flow.levers import Every
from headrace.patterns.enrichment.flows import EnrichmentSettings
from headrace.patterns.iot.flows import IotSettings
from headrace.patterns.medallion.flows import MedallionSettings
from headrace.patterns.orders.flows import OrderSettings
from headrace.patterns.rides import model
from headrace.patterns.rides.flows import RideSettings, SurgePricing, flows
from headrace.patterns.sales.flows import SalesSettings
from headrace.sinks.delta.dimension import EachBatch, EveryInterval, OnNewVersion

DEFAULTS = {
    "rides": (
        RideSettings(),
        {
            "topic": "ride-events",
            "city_window": "5 minutes",
            "city_watermark": "10 minutes",
            "city_trigger": Every("30 seconds"),
            "statuses": ("completed", "cancelled", "in_progress"),
            "surge_above": 2,
            "surge_multiplier": 1.5,
            "high_surge_above": 3,
            "high_surge_multiplier": 2.0,
            "driver_window": "15 minutes",
            "driver_watermark": "30 minutes",
            "driver_trigger": Every("5 minutes"),
            "city_topic": "city-ride-metrics",
        },
    ),
    "orders": (
        OrderSettings(),
        {
            "orders_topic": "orders",
            "payments_topic": "payments",
            "bound": "1 hour",
            "inner_watermark": "10 minutes",
            "outer_watermark": "30 minutes",
            "joins": ("inner", "left", "right", "full"),
        },
    ),
    "cdc": (
        CdcSettings(Capture("shop", r"public\..*")),
        {"stored_as": Mirror(deletes="hard"), "dropped_columns": "keep", "atomic_transactions": False},
    ),
    "iot": (
        IotSettings(),
        {
            "topic": "iot-telemetry",
            "max_offsets": 100_000,
            "watermark": "2 minutes",
            "window": "5 minutes",
            "high_temp": 80,
            "high_humidity": 90,
            "trigger": Every("30 seconds"),
        },
    ),
    "sales": (
        SalesSettings(),
        {
            "topic": "sales",
            "window": "5 minutes",
            "watermark": "1 minute",
            "roll_ups": ("1 hour", "1 day"),
            "rolling_window": "10 minutes",
            "rolling_every": "2 minutes",
            "rolling_watermark": "2 minutes",
        },
    ),
    "enrichment": (EnrichmentSettings(), {"refresh": OnNewVersion()}),
    "medallion": (
        MedallionSettings(),
        {
            "bronze_trigger": Every("30 seconds"),
            "silver_trigger": Every("1 minute"),
            "gold_trigger": Every("5 minutes"),
        },
    ),
}


@pytest.mark.parametrize("pattern", [module.name for module in pkgutil.iter_modules(patterns.__path__) if module.ispkg])
def test_every_pattern_has_the_defaults_of_the_mission(pattern: str) -> None:
    settings, expected = DEFAULTS[pattern]

    assert {name: getattr(settings, name) for name in expected} == expected


def test_an_enrichment_refreshes_by_batch_by_interval_or_by_version() -> None:
    policies = (EachBatch(), EveryInterval("5 minutes"), OnNewVersion())

    assert [EnrichmentSettings(refresh=policy).refresh for policy in policies] == list(policies)


def test_the_models_have_the_windows_and_delays_of_the_mission() -> None:
    minute = 60_000

    assert [(flow.window_ms, flow.delay_ms) for flow in (model.city_rides(), model.surge(), model.DRIVER_METRICS)] == [
        (5 * minute, 10 * minute),
        (5 * minute, 10 * minute),
        (15 * minute, 30 * minute),
    ]


@pytest.mark.parametrize(
    ("active", "available", "multiplier"),
    [
        (0, 0, 1.0),
        (1, 0, 2.0),
        (2, 1, 1.0),
        (3, 1, 1.5),
        (4, 1, 2.0),
        (6, 3, 1.0),
        (7, 3, 1.5),
        (9, 3, 1.5),
        (10, 3, 2.0),
    ],
)
def test_the_model_computes_the_surge_price_as_specified(active: int, available: int, multiplier: float) -> None:
    assert model.surge_multiplier(active, available) == multiplier


def test_the_flows_of_rides_get_the_statuses_and_the_surge_pricing_of_their_settings() -> None:
    statuses = ("completed", "in_progress")
    settings = RideSettings(
        statuses=statuses, surge_above=1, surge_multiplier=1.2, high_surge_above=2.5, high_surge_multiplier=3.0
    )

    by_name = {flow.name: flow.transform for flow in flows(settings)}

    arguments = {name: transform.keywords for name, transform in by_name.items() if isinstance(transform, partial)}
    assert {name: keywords["statuses"] for name, keywords in arguments.items()} == dict.fromkeys(by_name, statuses)
    assert arguments["surge"]["pricing"] == SurgePricing(1, 1.2, 2.5, 3.0)
    assert RideSettings().surge_pricing == SurgePricing()


@pytest.mark.parametrize(
    "wrong",
    [
        {"surge_above": 0},
        {"surge_above": 3},
        {"high_surge_above": 2},
        {"high_surge_above": float("nan")},
        {"high_surge_above": float("inf")},
        {"surge_multiplier": 1.0},
        {"surge_multiplier": 2.5},
        {"high_surge_multiplier": float("inf")},
        {"statuses": ()},
        {"statuses": ("completed", "cancelled")},
        {"statuses": ("completed", "in_progress", "completed")},
    ],
    ids=str,
)
def test_ride_settings_without_a_right_answer_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(FlowError) as error:
        RideSettings(**wrong)  # type: ignore[arg-type]

    assert error.value.code == "HR-261"
