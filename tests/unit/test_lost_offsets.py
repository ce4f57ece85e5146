"""Which offsets are missing, by a table worked out by hand, and what is recorded of them."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.clients import topic_watch
from headrace.clients.topic_watch import TopicMonitor
from headrace.errors import DataError, RecoveryError
from headrace.flow.source import CanLoseRows, MissingOffsets, SourceMonitor
from headrace.flow.target import Target
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.checkpoint.lost_offsets import LossKind, LostOffsets, LostRange
from headrace.runtime.checkpoint.topic_identity import TopicIdentities


class Earliest(TopicMonitor):
    """A watch that knows the first offsets without asking a broker."""

    def __init__(self, earliest: dict[tuple[str, int], int]) -> None:
        self.recorded = earliest

    def _earliest(self, partitions):
        return {partition: self.recorded[partition] for partition in partitions if partition in self.recorded}


@pytest.mark.parametrize(
    ("start", "end", "earliest", "missing"),
    [
        pytest.param({"0": 5}, {"0": 9}, {0: 0}, [], id="all is there"),
        pytest.param({"0": 5}, {"0": 9}, {0: 5}, [], id="what went was read before"),
        pytest.param({"0": 5}, {"0": 9}, {0: 7}, [(0, 5, 7)], id="the first part is gone"),
        pytest.param({"0": 5}, {"0": 9}, {0: 30}, [(0, 5, 9)], id="all is gone"),
        pytest.param({"0": 9}, {"0": 9}, {0: 30}, [], id="nothing was to be read"),
        pytest.param({"0": 5}, {"0": 9}, {}, [(0, 5, 9)], id="the partition is gone since it was planned"),
        pytest.param({"0": 5, "1": 3}, {"0": 9}, {0: 0}, [(1, 3, None)], id="the partition was gone when planned"),
        pytest.param({"0": 5}, {"0": 2}, {0: 0}, [(0, 5, None)], id="the partition was set back"),
        pytest.param({"0": 5}, {"0": 9, "1": 8}, {0: 0, 1: 3}, [(1, 0, 3)], id="a new partition does not begin at 0"),
        pytest.param({"0": 5}, {"0": 9, "1": 8}, {0: 0, 1: 0}, [], id="a new partition"),
    ],
)
def test_missing_offsets_of_a_range(start: dict, end: dict, earliest: dict, missing: list[tuple]) -> None:
    watch = Earliest({("t", number): first for number, first in earliest.items()})
    assert list(watch.missing_offsets(json.dumps({"t": start}), json.dumps({"t": end}))) == [
        MissingOffsets("t", *item) for item in missing
    ]


def test_a_range_is_narrowed_to_what_is_there() -> None:
    watch = Earliest({("t", 0): 7, ("t", 1): 0, ("t", 2): 30})
    start, end = {"t": {"0": 5, "1": 2}, "gone": {"0": 1}}, {"t": {"0": 9, "1": 4, "2": 8}, "gone": {"0": 5}}
    assert watch.available_range(start, end) == ({"t": {"0": 7, "1": 2, "2": 30}}, {"t": {"0": 9, "1": 4, "2": 30}})


@dataclass(frozen=True)
class Orders(CanLoseRows):
    """Stands for a watched source."""

    name: str = "kafka:orders"
    data_loss_reason: str | None = None
    accepted_topic_ids: tuple[str, ...] = ()

    def watch(self, target: Target) -> SourceMonitor:
        raise AssertionError("nothing here asks a broker")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    target = Target("dev", lake=str(tmp_path / "lake"), checkpoints=str(tmp_path))
    created = Checkpoint.of("rides", target)
    created.files.write(f"{created.location}/metadata", '{"id":"q1"}')
    return created


def lost(first: int, end: int | None, kind: LossKind = LossKind.MAYBE, topic_id: str = "a") -> LostRange:
    return replace(LostRange.of(MissingOffsets("t", 0, first, end), "rows", Orders(), topic_id, kind), at="now")


@pytest.mark.parametrize(
    ("recorded", "actual", "added"),
    [
        ([], (0, 5), [(0, 5)]),
        ([(0, 5)], (0, 5), []),
        ([(0, 5)], (0, 9), [(5, 9)]),
        ([(2, 5)], (0, 9), [(0, 2), (5, 9)]),
        ([(2, 5), (7, 8)], (0, None), [(0, 2), (5, 7), (8, None)]),
        ([(3, None)], (0, 9), [(0, 3)]),
        ([(6, 9)], (0, 3), [(0, 3)]),
        ([(0, 2)], (4, 6), [(4, 6)]),
    ],
)
def test_only_what_no_earlier_attempt_found_is_added(
    checkpoint: Checkpoint, recorded: list[tuple], actual: tuple, added: list[tuple]
) -> None:
    record = LostOffsets(checkpoint)
    first = record.add(7, [lost(*item, LossKind.LOST) for item in recorded])

    new = LostOffsets(checkpoint).add(7, [lost(*actual)])

    assert [(item.first, item.end, item.kind) for item in new] == [(*item, LossKind.MAYBE) for item in added]
    assert record.of(7) == (*first, *new)
    assert record.of(6) == ()


def test_the_same_offsets_of_two_topics_are_two_losses_and_an_unknown_id_is_covered(checkpoint: Checkpoint) -> None:
    record = LostOffsets(checkpoint)
    record.add(0, [lost(0, 5, topic_id="a")])
    assert record.add(0, [lost(0, 5, topic_id="b")]) == (lost(0, 5, topic_id="b"),)
    assert record.add(0, [lost(0, 5, topic_id="")]) == ()


def test_what_another_checkpoint_of_the_name_lost_stays_in_the_file(checkpoint: Checkpoint) -> None:
    LostOffsets(checkpoint).add(0, [lost(0, 5)])
    checkpoint.files.write(f"{checkpoint.location}/metadata", '{"id":"q2"}')
    LostOffsets(checkpoint).add(0, [lost(0, 3)])
    text = json.loads(checkpoint.files.read(f"{checkpoint.metadata_dir}/lost/0.json") or "")
    assert [(item["query_id"], item["first"], item["end"]) for item in text["lost"]] == [("q1", 0, 5), ("q2", 0, 3)]


# ---- the ids of topics ----


def identities(checkpoint: Checkpoint, source: Orders | None = None) -> TopicIdentities:
    return TopicIdentities(checkpoint, {"rows": source or Orders()})


def test_new_topics_are_recorded_and_survive_a_restart(checkpoint: Checkpoint) -> None:
    identities(checkpoint).at_start({"rows": {"a": "1"}})
    running = identities(checkpoint)
    running.at_start({"rows": {"a": "1"}})
    running.before_batch({"rows": {"a": "1", "b": "2"}})
    with pytest.raises(RecoveryError, match=r"'b'.*id 2.*id 3") as refused:
        identities(checkpoint).at_start({"rows": {"a": "1", "b": "3"}})
    assert refused.value.code == "HR-311"


def test_a_missing_topic_stops_the_flow_unless_loss_is_accepted(checkpoint: Checkpoint) -> None:
    identities(checkpoint).at_start({"rows": {"a": "1", "b": "2"}})
    with pytest.raises(DataError, match="'b'") as refused:
        identities(checkpoint).at_start({"rows": {"a": "1"}})
    assert refused.value.code == "HR-506"
    going_on = identities(checkpoint, Orders(data_loss_reason="why"))
    going_on.at_start({"rows": {"a": "1"}})
    # Until a batch has continued without it, a topic of its name is not the one that the offsets are about.
    with pytest.raises(RecoveryError):
        going_on.before_batch({"rows": {"a": "1", "b": "3"}})
    going_on.remove_topics("rows", {"b"})
    going_on.before_batch({"rows": {"a": "1", "b": "3"}})


def test_before_the_first_batch_nothing_is_bound_to_an_id(checkpoint: Checkpoint) -> None:
    Path(f"{checkpoint.location}/metadata").unlink()
    identities(checkpoint).at_start({"rows": {"a": "1", "gone": "2"}})
    again = identities(checkpoint)
    again.at_start({"rows": {"a": "3"}})
    checkpoint.files.write(f"{checkpoint.location}/metadata", '{"id":"q1"}')
    again.before_batch({"rows": {"a": "3"}})
    with pytest.raises(RecoveryError):
        identities(checkpoint).at_start({"rows": {"a": "1"}})


def test_a_record_of_another_checkpoint_is_ignored(checkpoint: Checkpoint) -> None:
    identities(checkpoint).at_start({"rows": {"a": "1"}})
    checkpoint.files.write(f"{checkpoint.location}/metadata", '{"id":"q2"}')
    identities(checkpoint).at_start({"rows": {"a": "2"}})


def test_a_record_that_cannot_be_read_stops_the_flow(checkpoint: Checkpoint) -> None:
    checkpoint.files.write(f"{checkpoint.metadata_dir}/sources.json", '{"query_id": "q1", "topics": ')
    with pytest.raises(RecoveryError, match=r"sources\.json") as refused:
        identities(checkpoint)
    assert refused.value.code == "HR-312"


def test_a_topic_is_missing_only_when_it_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([{}, {}, {"orders": "1"}])

    class Late(TopicMonitor):
        def __init__(self) -> None:
            self._names = lambda: ["orders"]

        def _descriptions(self, names):
            return ((name, SimpleNamespace(topic_id=topic_id)) for name, topic_id in next(answers).items())

    monkeypatch.setattr(topic_watch, "_RETRY_SECONDS", 0)
    assert Late().topic_ids() == {"orders": "1"}
