"""Small files through Hadoop's filesystems: what checkpoints on other storage than a disk are read with."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headrace.clients.storage import HadoopFileStore, LocalFileStore, file_store
from headrace.errors import RecoveryError
from headrace.flow.target import Lease, Target
from headrace.runtime.checkpoint.checkpoint import Checkpoint
from headrace.runtime.checkpoint.lease import acquire_lease

pytestmark = pytest.mark.spark


def test_what_is_written_is_read_again_and_replaced(spark: SparkSession, tmp_path: Path):
    files, path = HadoopFileStore(spark), f"file:{tmp_path}/a/note.json"
    files.write(path, '{"city": "São Paulo"}')
    files.write(path, "{}")
    files.write(f"file:{tmp_path}/a/other", "Zürich\n")

    assert files.read(path) == "{}"
    assert files.read(f"file:{tmp_path}/a/other") == "Zürich\n"
    assert [name for name in files.names(f"file:{tmp_path}/a") if not name.startswith(".")] == ["note.json", "other"]


def test_files_are_read_as_they_are_measured_and_deleted(spark: SparkSession, tmp_path: Path):
    files = HadoopFileStore(spark)
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "bytes").write_bytes(b"\xff\x00\n")
    (tmp_path / "note").write_text("12")

    assert files.read_bytes(f"file:{tmp_path}/deep/er/bytes") == b"\xff\x00\n"
    assert files.sizes(f"file:{tmp_path}") == LocalFileStore().sizes(str(tmp_path)) == {"deep/er/bytes": 3, "note": 2}
    files.delete(f"file:{tmp_path}/note")
    files.delete(f"file:{tmp_path}/note")
    assert files.read_bytes(f"file:{tmp_path}/note") is None
    assert files.sizes(f"file:{tmp_path}/nothing") == {}


def test_what_is_not_there_is_none_and_empty(spark: SparkSession, tmp_path: Path):
    files = HadoopFileStore(spark)

    assert files.read(f"file:{tmp_path}/nothing") is None
    assert files.names(f"file:{tmp_path}/nothing") == []


def test_storage_is_chosen_by_the_scheme_of_the_location(spark: SparkSession):
    assert isinstance(file_store("/data/checkpoints", spark), LocalFileStore)
    assert isinstance(file_store("file:/data/checkpoints", spark), LocalFileStore)
    assert isinstance(file_store("s3a://bucket/checkpoints", spark), HadoopFileStore)


def test_a_file_is_made_once_and_can_be_deleted(spark: SparkSession, tmp_path: Path):
    files, path = HadoopFileStore(spark), f"file:{tmp_path}/a/00000001"

    assert files.create(path, "first")
    assert not files.create(path, "second")
    assert files.read(path) == "first"
    files.delete(path)
    files.delete(path)
    assert files.read(path) is None


def test_a_checkpoint_on_other_storage_is_leased_by_records(spark: SparkSession, tmp_path: Path):
    """`file:` through Hadoop represents any of its filesystems.

    The second driver reads the first one's next renewal, after two seconds. Twelve are for a machine that is busy.
    """
    target = Target("test", lake="unused", checkpoints=f"file:{tmp_path}")
    checkpoint, terms = Checkpoint("rides", target.flow_folder("rides"), HadoopFileStore(spark)), Lease("record", 12)
    with acquire_lease(checkpoint, terms) as holding:
        holding.check()
        with pytest.raises(RecoveryError) as refused, acquire_lease(checkpoint, terms):
            pytest.fail("two drivers hold one checkpoint")
        assert refused.value.code == "HR-302"
    with acquire_lease(checkpoint, terms) as holding:
        assert holding.token == 2
