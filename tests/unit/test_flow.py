"""A flow as a value: frozen, made without Spark, wrong ones refused where they are written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError

import pytest

from headrace import (
    AsFastAsPossible,
    Console,
    Continuous,
    Every,
    Flow,
    FlowError,
    Input,
    KafkaSource,
    OutputMode,
    RealTime,
    RocksDB,
    Target,
    Watermark,
)
from headrace.flow.sink import Batch

RIDES = Input(KafkaSource("rides"))


def same(rows: object) -> object:
    return rows


def flow(**changes: object) -> Flow:
    return Flow(**{"name": "rides", "inputs": RIDES, "transform": same, "sink": Console(), **changes})  # type: ignore[arg-type]


def test_by_default_a_flow_appends_as_fast_as_possible_with_state_in_rocksdb() -> None:
    created = flow()
    assert (created.mode, created.trigger, created.state) == (OutputMode.APPEND, AsFastAsPossible(), RocksDB(None))


def test_one_input_is_handed_to_the_transform_by_position() -> None:
    assert flow(transform=lambda anything: ("seen", anything)).apply({"rows": "frame"}) == ("seen", "frame")  # type: ignore[dict-item]


def test_several_inputs_are_passed_to_the_transform_by_name_in_their_order() -> None:
    created = flow(inputs={"right": RIDES, "left": RIDES}, transform=lambda left, right: (left, right))
    assert list(created.named_inputs) == ["right", "left"]
    assert created.apply({"right": "R", "left": "L"}) == ("L", "R")  # type: ignore[dict-item]


def test_an_input_may_have_any_single_name() -> None:
    assert flow(inputs={"rides": RIDES}, transform=lambda rides: rides).apply({"rides": "R"}) == "R"  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("value", "field"),
    [(flow(), "name"), (RIDES, "schema"), (KafkaSource("rides"), "topics"), (Every("1 s"), "interval")],
)
def test_a_declaration_cannot_be_changed(value: object, field: str) -> None:
    with pytest.raises(FrozenInstanceError):
        setattr(value, field, "other")


def test_the_inputs_of_a_flow_cannot_be_changed_from_outside() -> None:
    mine = {"a": RIDES}
    created = flow(inputs=mine)
    mine["b"] = RIDES
    assert list(created.named_inputs) == ["a"]
    with pytest.raises(TypeError):
        created.named_inputs["b"] = RIDES  # type: ignore[index]


@pytest.mark.parametrize("mode", ["append", "update", "complete", OutputMode.UPDATE])
def test_an_output_mode_is_a_word_or_a_value(mode: str) -> None:
    assert flow(output_mode=mode).mode == mode


def test_a_misspelt_output_mode_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(FlowError) as refused:
        flow(output_mode="updated")
    assert refused.value.code == "HR-202"
    assert "'rides'" in refused.value.what
    assert "append, update, complete" in refused.value.why
    assert "Did you mean 'update'?" in refused.value.why


@pytest.mark.parametrize(
    "make",
    [
        lambda: Every("soon"),
        lambda: Continuous("soon"),
        lambda: RealTime("soon"),
        lambda: Watermark("at", "soon"),
        lambda: Watermark("at", "1 minute", max_future="soon"),
    ],
    ids=["Every", "Continuous", "RealTime", "Watermark.delay", "Watermark.ahead"],
)
def test_an_invalid_duration_fails_at_the_line_that_declares_it(make: Callable[[], object]) -> None:
    with pytest.raises(FlowError, match="'soon'"):
        make()


def test_a_table_is_below_the_lake_unless_its_path_is_absolute() -> None:
    target = Target("dev", lake="/data/lake/", checkpoints="s3a://bucket/checkpoints/")
    assert target.table("gold/rides") == "/data/lake/gold/rides"
    assert target.table("/elsewhere/rides") == "/elsewhere/rides"
    assert target.table("s3a://bucket/rides") == "s3a://bucket/rides"
    assert target.flow_folder("rides") == "s3a://bucket/checkpoints/rides"


def test_a_batch_is_known_by_its_checkpoint_its_flow_and_its_step_and_not_by_its_number() -> None:
    target = Target("dev", lake="lake", checkpoints="checkpoints")
    batch = Batch("rides", "q1", 7, target)
    others = [
        Batch("rides", "q2", 7, target),
        Batch("other", "q1", 7, target),
        Batch("rides", "q1", 7, target, step="0.1"),
    ]
    assert batch.app_id not in [other.app_id for other in others]
    assert batch.app_id == Batch("rides", "q1", 8, target).app_id
