"""Checkpoints that real queries wrote, then damaged: what is refused, what is named, what repairs it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession, functions as F
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from headrace.clients.storage import HadoopFileStore
from headrace.errors import RecoveryError
from headrace.flow.flow import Flow
from headrace.flow.inputs import Input
from headrace.flow.levers import AvailableNow
from headrace.flow.target import Target
from headrace.operate.checkpoint.backup import back_up
from headrace.operate.checkpoint.restore import plan_restore, require_sinks_not_ahead, restore
from headrace.operate.checkpoint.show import count_rows, show
from headrace.operate.checkpoint.verify import verify
from headrace.operate.run import Application, FlowMetrics
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.checkpoint.integrity import require_intact
from headrace.sinks.delta.upsert import DeltaUpsert
from headrace.sources.files import FileSource

pytestmark = pytest.mark.spark

ORDER = StructType([StructField("id", IntegerType()), StructField("city", StringType())])


def orders_per_city(orders: DataFrame) -> DataFrame:
    return orders.groupBy("city").agg(F.count("*").alias("orders"))


class Shop:
    """A flow with state that counts the orders of cities, one file a batch, into a Delta table."""

    def __init__(self, spark: SparkSession, folder: Path, name: str = "counts") -> None:
        self.spark = spark
        self.target = Target("test", lake=str(folder / "lake"), checkpoints=str(folder / "checkpoints"))
        self.folder = folder / "checkpoints" / name
        self.flow = Flow(
            name,
            # Without a watermark: one that moves adds batches without rows, and here each file is one batch.
            Input(FileSource("orders", "csv", ORDER, max_files_per_trigger=1)),
            orders_per_city,
            DeltaUpsert("counts", key=["city"]),
            output_mode="update",
            trigger=AvailableNow(),
        )
        (folder / "lake" / "orders").mkdir(parents=True)

    def order(self, *numbers: int) -> None:
        """Put down a file of one order each: odd ones from Oslo, even ones from Rome."""
        for number in numbers:
            city = "Oslo" if number % 2 else "Rome"
            file = Path(self.target.table("orders")) / f"{number}.csv"
            file.write_text(f"{number},{city}\n")
            # Spark takes files by their times, in milliseconds: two written within one come in any order.
            os.utime(file, (number, number))

    def run(self) -> FlowMetrics:
        return Application(self.spark, self.target, [self.flow]).run()[self.flow.name]

    def checkpoint(self) -> Checkpoint:
        return Checkpoint.of(self.flow.name, self.target)

    def restore(self, backup: Path) -> Path | None:
        """Restore as the command does."""
        plan = plan_restore(self.checkpoint(), backup, self.flow)
        require_sinks_not_ahead(plan, self.flow, self.target, self.spark)
        return restore(self.checkpoint(), plan)

    def counts(self) -> dict[str, Any]:
        rows = self.spark.read.format("delta").load(self.target.table("counts")).collect()
        return {row["city"]: row["orders"] for row in rows}


@pytest.fixture(scope="module")
def shop(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """Three batches, all committed. Tests put back what they damage."""
    created = Shop(spark, tmp_path_factory.mktemp("shop"))
    created.order(1, 2, 3)
    assert created.run().error is None
    return created


def test_a_flow_notes_the_sums_of_all_its_log_files(shop: Shop):
    noted = [line.split() for part in shop.folder.glob("headrace/manifest/*") for line in part.read_text().splitlines()]
    logs = [
        path
        for path in shop.folder.glob("spark/**/*")
        if path.is_file() and not path.name.startswith(".") and "state" not in path.parts
    ]
    assert {line[1] for line in noted if line[0] != "#"} == {
        str(path.relative_to(shop.folder / "spark")) for path in logs
    }


@pytest.mark.parametrize("path", ["metadata", "offsets/2", "commits/2", "offsets/1", "sources/0/0"])
@pytest.mark.parametrize("harm", ["truncated", "flipped", "deleted"])
def test_a_damaged_log_is_refused_before_spark_reads_it_until_it_is_put_back(shop: Shop, path: str, harm: str):
    file = shop.folder / "spark" / path
    complete = file.read_bytes()
    if harm == "deleted":
        file.unlink()
        file.with_name(f".{file.name}.crc").unlink()
    else:
        # The last byte of the version, of a digit or of a brace: whatever it is, it is another one now.
        file.write_bytes(
            complete[:-3] if harm == "truncated" else complete[:1] + bytes([complete[1] ^ 1]) + complete[2:]
        )

    figures = shop.run()

    if (path, harm) == ("commits/2", "deleted"):
        # As after a crash before the commit: the batch is run again, and the table has it already.
        assert (figures.error, figures.batches) == (None, 1)
    else:
        file.write_bytes(complete)
        assert figures.error is not None
        assert (figures.error.code, figures.batches) == ("HR-320", 0)
        assert f"{file} " in figures.error.what
        require_intact(shop.checkpoint())
    assert shop.counts() == {"Oslo": 2, "Rome": 1}


def test_the_real_checkpoint_has_no_flaws_and_shows_its_progress(shop: Shop):
    actual = shop.checkpoint()

    assert verify(actual).flaws == ()
    # Hadoop's filesystems show no checksums; the files are the same.
    through_hadoop = verify(Checkpoint("counts", f"file:{shop.folder}", HadoopFileStore(shop.spark)))
    assert (through_hadoop.flaws, through_hadoop.files) == ((), verify(actual).files)
    anatomy = show(actual, shop.target, shop.flow)
    assert (anatomy.planned, anatomy.committed, anatomy.unfinished) == ((0, 2), (0, 2), None)
    assert anatomy.watermark is None
    assert [(read.input, read.kind, read.ranges[0].start) for read in anatomy.reads] == [("rows", "files", "entry 2")]
    # One row per city, in two partitions.
    assert {store.name for store in anatomy.state} == {"stateStoreSave"}
    assert sum(store.rows or 0 for store in count_rows(shop.spark, actual, anatomy.state)) == 2


@pytest.mark.parametrize("harm", ["truncated", "flipped", "deleted", "emptied"])
@pytest.mark.parametrize("path", ["state/0/1/3.changelog", "state/0/0/1.changelog", "state/0/_metadata/metadata"])
def test_every_damaged_file_of_the_state_is_named(shop: Shop, path: str, harm: str):
    file = shop.folder / "spark" / path
    complete = file.read_bytes()
    middle = len(complete) // 2
    harmed = {
        "truncated": complete[:middle],
        "flipped": complete[:middle] + bytes([complete[middle] ^ 1]) + complete[middle + 1 :],
        "emptied": b"",
    }
    file.unlink() if harm == "deleted" else file.write_bytes(harmed[harm])
    try:
        assert [flaw.path for flaw in verify(shop.checkpoint()).damages] == [f"spark/{path}"]
    finally:
        file.write_bytes(complete)


def test_a_backup_replaces_a_damaged_or_lost_checkpoint_and_the_flow_continues(spark: SparkSession, tmp_path: Path):
    shop, table = Shop(spark, tmp_path), tmp_path / "lake" / "counts"
    shop.order(1, 2, 3)
    shop.run()
    folder, backup = back_up(shop.checkpoint(), tmp_path / "backups")
    shutil.copytree(table, tmp_path / "table")
    assert (backup.committed, backup.planned) == (2, 2)

    # Damaged: refused, restored, renamed; the next batch counts on from the state of the backup.
    (shop.folder / "spark/offsets/2").write_text("v1")
    assert getattr(shop.run().error, "code", None) == "HR-320"
    aside = shop.restore(folder)
    assert aside is not None
    assert (aside / "spark/offsets/2").read_text() == "v1"
    shop.order(4)
    assert (shop.run().rows_in, shop.counts()) == (1, {"Oslo": 2, "Rome": 2})

    # Older than the table now: batch 3 would be made of other rows, and the table would skip it.
    with pytest.raises(RecoveryError) as refused:
        shop.restore(folder)
    assert refused.value.code == "HR-327"
    assert "up to 2" in refused.value.why
    assert (shop.run().error, shop.counts()) == (None, {"Oslo": 2, "Rome": 2})

    # Lost altogether, table and checkpoint: both come back, and the order since is read again.
    shutil.rmtree(shop.folder)
    shutil.rmtree(table)
    shutil.copytree(tmp_path / "table", table)
    assert shop.restore(folder) is None
    assert (shop.run().rows_in, shop.counts()) == (1, {"Oslo": 2, "Rome": 2})
