"""Rules and table policies that cannot be declared."""

from __future__ import annotations

import pickle

import pytest

from headrace import FlowError, Input, KafkaSource
from headrace.flow.rules import Rule
from headrace.sinks.delta.policy import TablePolicy


@pytest.mark.parametrize(
    ("name", "condition", "action", "phrase"),
    [
        ("Positive amount", "amount > 0", "warn", "is called 'Positive amount'"),
        ("positive", "amount > 0", "quarantin", "Did you mean 'quarantine'"),
        ("positive", "  ", "warn", "has no condition"),
    ],
)
def test_a_rule_that_cannot_be_is_refused(name: str, condition: str, action: str, phrase: str) -> None:
    with pytest.raises(FlowError, match=phrase) as refused:
        Rule(name, condition, action)  # type: ignore[arg-type]
    assert refused.value.code == "HR-570"


def test_two_rules_with_the_same_name_are_refused() -> None:
    with pytest.raises(FlowError) as refused:
        Input(KafkaSource("orders"), rules=(Rule("one", "a > 0"), Rule("one", "b > 0")))
    assert refused.value.code == "HR-570"


def test_a_property_that_delta_would_lose_is_refused() -> None:
    with pytest.raises(FlowError) as refused:
        TablePolicy({"retention": "30 days"})
    assert refused.value.code == "HR-573"


def test_files_that_a_reader_needs_are_never_declared_old() -> None:
    with pytest.raises(FlowError) as refused:
        TablePolicy(retention="10 minutes")
    assert refused.value.code == "HR-249"


def test_removed_files_are_recorded_while_they_are_retained_and_not_longer_than_the_log() -> None:
    remembered = "delta.deletedFileRetentionDuration"
    logs = {"delta.logRetentionDuration": "interval 90 days"}
    assert TablePolicy(retention="36 hours").table_properties == {remembered: "interval 129600 seconds"}
    assert TablePolicy(retention="60 days").table_properties == {remembered: "interval 30 days"}
    assert TablePolicy(logs, retention="60 days").table_properties == {remembered: "interval 60 days", **logs}
    assert TablePolicy(logs, retention=None).table_properties == logs
    own = {remembered: "interval 1 week"}
    assert TablePolicy(own, retention="60 days").table_properties == own


def test_a_policy_can_be_sent_to_a_worker() -> None:
    policy = TablePolicy({"delta.appendOnly": "true"}, retention=None)
    assert pickle.loads(pickle.dumps(policy)) == policy  # noqa: S301
