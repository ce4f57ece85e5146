"""One driver per checkpoint, with real processes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.clients.storage import LocalFileStore
from headrace.errors import ConfigError, DataError, HeadraceError, RecoveryError, ServiceUnavailable
from headrace.flow.target import Lease, Target
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.checkpoint.lease import acquire_lease
from headrace.runtime.guards.checkpoint import LeaseLossGuard

# Takes the lease, says so, and holds it until its standard input ends.
HOLDER = """
import sys
from headrace.flow.target import Lease, Target
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.checkpoint.lease import acquire_lease

target = Target("dev", lake="unused", checkpoints=sys.argv[1])
with acquire_lease(Checkpoint.of("rides", target), Lease(sys.argv[2], float(sys.argv[3]))):
    print("held", flush=True)
    sys.stdin.read()
"""

RECORD = Lease("record", 1.5)
# Of a holder that lives: it must not be taken for dead because the machine is too busy for its renewals.
PATIENT = Lease("record", 12)


def checkpoint(root: Path | str, flow: str = "rides") -> Checkpoint:
    return Checkpoint.of(flow, Target("dev", lake="unused", checkpoints=str(root)))


@pytest.fixture
def another_driver(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start(kind: str = "lock") -> subprocess.Popen[str]:
        command = [sys.executable, "-c", HOLDER, str(tmp_path), kind, "1.5"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("terms", [Lease(), PATIENT], ids=["lock", "record"])
def test_a_second_process_is_refused_with_the_holder_of_the_checkpoint(
    tmp_path: Path, another_driver: Callable[..., subprocess.Popen[str]], terms: Lease
) -> None:
    holder = another_driver(terms.kind or "lock")
    with pytest.raises(RecoveryError) as refused, acquire_lease(checkpoint(tmp_path), terms):
        pytest.fail("two drivers hold one checkpoint")
    assert refused.value.code == "HR-302"
    assert f"process {holder.pid} on" in refused.value.why
    assert str(tmp_path / "rides") in refused.value.why


def test_a_driver_that_was_killed_has_no_lease(
    tmp_path: Path, another_driver: Callable[..., subprocess.Popen[str]]
) -> None:
    holder = another_driver()
    holder.kill()
    holder.wait()
    with acquire_lease(checkpoint(tmp_path)):
        (record,) = (tmp_path / "rides" / "headrace" / "leases").iterdir()
        stored = json.loads(record.read_text())
    assert stored["pid"] != holder.pid


def test_a_process_that_was_refused_leaves_the_note_of_the_holder_alone(
    tmp_path: Path, another_driver: Callable[..., subprocess.Popen[str]]
) -> None:
    holder = another_driver()
    for _ in range(2):
        with pytest.raises(RecoveryError, match=str(holder.pid)), acquire_lease(checkpoint(tmp_path)):
            pytest.fail("two drivers hold one checkpoint")


def test_a_second_thread_of_the_same_process_is_refused_too(tmp_path: Path) -> None:
    with acquire_lease(checkpoint(tmp_path)), pytest.raises(RecoveryError), acquire_lease(checkpoint(tmp_path)):
        pytest.fail("one checkpoint is held twice")


def test_a_lease_ends_with_its_block_also_when_that_raises(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), acquire_lease(checkpoint(tmp_path)):
        _ = 1 / 0
    with acquire_lease(checkpoint(tmp_path)):
        pass


def test_two_flows_do_not_block_each_other(tmp_path: Path) -> None:
    with acquire_lease(checkpoint(tmp_path, "rides")), acquire_lease(checkpoint(tmp_path, "drivers")):
        pass


def test_a_root_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="Not a directory") as refused, acquire_lease(checkpoint(tmp_path / "file")):
        pytest.fail("the lease was given")
    assert refused.value.code == "HR-111"


# ---- tokens and records ----


def test_every_lease_of_either_kind_has_a_higher_token_than_the_one_before(tmp_path: Path) -> None:
    tokens = []
    for terms in (Lease(), RECORD, RECORD, Lease()):
        with acquire_lease(checkpoint(tmp_path), terms) as holding:
            tokens.append(holding.token)
            holding.check()
    assert tokens == [1, 2, 3, 4]
    assert [path.name for path in (tmp_path / "rides" / "headrace" / "leases").iterdir()] == ["00000004"]


def test_a_record_is_taken_over_when_its_holder_was_silent_for_its_time(
    tmp_path: Path, another_driver: Callable[..., subprocess.Popen[str]]
) -> None:
    holder = another_driver("record")
    holder.kill()
    holder.wait()
    began = time.monotonic()
    with acquire_lease(checkpoint(tmp_path), RECORD) as holding:
        assert time.monotonic() - began >= RECORD.seconds
        assert holding.token == 2


def test_a_released_lease_is_acquired_immediately(tmp_path: Path) -> None:
    long = Lease("record", 3600)
    for token in (1, 2):
        with acquire_lease(checkpoint(tmp_path), long) as holding:
            assert holding.token == token


def test_of_several_that_watch_a_dead_holder_one_takes_over(
    tmp_path: Path, another_driver: Callable[..., subprocess.Popen[str]]
) -> None:
    holder = another_driver("record")
    holder.kill()
    holder.wait()
    # Those that come later watch the one that took over.
    command = [sys.executable, "-c", HOLDER, str(tmp_path), "record", "6"]
    takers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    try:
        refused = [taker for taker in takers if taker.stdout is not None and taker.stdout.readline() != "held\n"]
        reported = [taker.communicate()[1] for taker in refused]
    finally:
        for taker in takers:
            taker.kill()
            taker.wait()
    assert len(refused) == 2
    assert all("HR-302" in item for item in reported)


@pytest.mark.parametrize("terms", [Lease(), RECORD], ids=["lock", "record"])
def test_a_driver_that_lost_its_lease_is_refused_when_it_checks(tmp_path: Path, terms: Lease) -> None:
    stopped = threading.Event()
    with acquire_lease(checkpoint(tmp_path), terms) as old:
        old.on_lost(lambda _lost: stopped.set())
        # Whoever takes the next number owns the checkpoint, by whatever right.
        LocalFileStore().create(
            f"{checkpoint(tmp_path).metadata_dir}/leases/00000002", '{"pid": 7, "host": "b", "since": "now"}'
        )
        with pytest.raises(RecoveryError, match=r"lease 1 of .* lease 2 was acquired by process 7 on b") as lost:
            old.check()
        assert lost.value.code == "HR-330"
        assert old.explain(ValueError("the sink said no")).code == "HR-330"
        assert terms.kind != "record" or stopped.wait(60)
    idle_ticks = [path.name for path in (tmp_path / "rides" / "headrace" / "leases").glob("00000002*")]
    assert idle_ticks == ["00000002"], "the one who lost gave back the lease of the other"


def test_a_lost_lease_stops_the_query_and_explains_its_end(tmp_path: Path) -> None:
    stops: list[tuple[str, bool]] = []
    stopped = threading.Event()

    def stop(error: HeadraceError | None, *, immediately: bool = False) -> None:
        stops.append((error.code if error else "", immediately))
        stopped.set()

    refused = DataError("The sink refused it.", why="w", state="s", remedy="r", code="HR-500")
    with acquire_lease(checkpoint(tmp_path), RECORD) as lease:
        guard = LeaseLossGuard(lease, stop)
        guard.before_start(None)
        with guard.around_batch(None):
            assert guard.on_end(None) is None
            assert guard.on_end(refused) is refused
        LocalFileStore().create(f"{checkpoint(tmp_path).metadata_dir}/leases/00000002", "{}")
        with pytest.raises(RecoveryError), guard.around_batch(None):
            pytest.fail("a batch is written without the lease")
        assert [guard.on_end(error).code for error in (None, refused)] == ["HR-330", "HR-330"]
        assert stopped.wait(60)
    assert stops == [("HR-330", True)]


def test_a_lease_whose_records_were_deleted_is_lost(tmp_path: Path) -> None:
    with acquire_lease(checkpoint(tmp_path)) as holding:
        shutil.rmtree(tmp_path / "rides")
        with pytest.raises(RecoveryError, match="record was deleted") as lost:
            holding.check()
    assert lost.value.code == "HR-330"


def test_storage_that_does_not_answer_is_no_lost_lease(tmp_path: Path) -> None:
    with acquire_lease(checkpoint(tmp_path)) as holding:
        folder = tmp_path / "rides" / "headrace" / "leases"
        (folder / "00000001").unlink()
        (folder / "00000001").mkdir()
        with pytest.raises(ServiceUnavailable) as unknown:
            holding.check()
        error = ValueError("the sink said no")
        assert holding.explain(error) is error
    assert unknown.value.code == "HR-608"


def test_other_storage_than_a_disk_cannot_be_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with (
        pytest.raises(ConfigError, match="s3a://bucket") as refused,
        acquire_lease(checkpoint("s3a://bucket/checkpoints"), Lease("lock")),
    ):
        pytest.fail("the lease was given")
    assert refused.value.code == "HR-109"
    assert list(tmp_path.iterdir()) == []


def test_of_many_that_make_one_file_exactly_one_does(tmp_path: Path) -> None:
    files, wins = LocalFileStore(), []
    barrier = threading.Barrier(8)

    def make(number: int) -> None:
        for item in range(50):
            barrier.wait()
            if files.create(str(tmp_path / str(item)), str(number)):
                wins.append((item, str(number)))

    threads = [threading.Thread(target=make, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(wins) == sorted((item, (tmp_path / str(item)).read_text()) for item in range(50))
