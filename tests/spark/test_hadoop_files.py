"""Small files through Hadoop's filesystems: what checkpoints on other storage than a disk are read with."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headrace.clients.filesystem import HadoopFiles, LocalFiles, files_for

pytestmark = pytest.mark.spark


def test_what_is_written_is_read_again_and_replaced(spark: SparkSession, tmp_path: Path):
    files, path = HadoopFiles(spark), f"file:{tmp_path}/a/note.json"
    files.write(path, '{"city": "São Paulo"}')
    files.write(path, "{}")
    files.write(f"file:{tmp_path}/a/other", "Zürich\n")

    assert files.read(path) == "{}"
    assert files.read(f"file:{tmp_path}/a/other") == "Zürich\n"
    assert [name for name in files.names(f"file:{tmp_path}/a") if not name.startswith(".")] == ["note.json", "other"]


def test_what_is_not_there_is_none_and_empty(spark: SparkSession, tmp_path: Path):
    files = HadoopFiles(spark)

    assert files.read(f"file:{tmp_path}/nothing") is None
    assert files.names(f"file:{tmp_path}/nothing") == []


def test_storage_is_chosen_by_the_scheme_of_the_location(spark: SparkSession):
    assert isinstance(files_for("/data/checkpoints", spark), LocalFiles)
    assert isinstance(files_for("file:/data/checkpoints", spark), LocalFiles)
    assert isinstance(files_for("s3a://bucket/checkpoints", spark), HadoopFiles)
