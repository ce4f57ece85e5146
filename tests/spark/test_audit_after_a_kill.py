"""What the audit makes up for when a driver died between the commit of a batch and its audit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from headrace.flow.flow import Flow
from headrace.flow.inputs import Input
from headrace.flow.levers import AvailableNow
from headrace.flow.target import Target
from headrace.operate.run import Application
from headrace.sinks.delta.write import DeltaAppend
from headrace.sources.files import FileSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_batches_of_a_source_that_is_not_replayable_and_not_validated_need_no_audit(
    spark: SparkSession, tmp_path: Path
):
    target = Target("test", lake=str(tmp_path / "lake"), checkpoints=str(tmp_path / "checkpoints"))
    folder = Path(target.table("in"))
    folder.mkdir(parents=True)
    (folder / "1.json").write_text('{"id": 1}\n')
    source = FileSource("in", "json", StructType([StructField("id", LongType())]), max_files_per_trigger=1)
    flow = Flow("copied", Input(source), lambda rows: rows, DeltaAppend("out"), trigger=AvailableNow())
    Application(spark, target, [flow]).run()

    # As a kill leaves it that comes after the commit.
    (Path(target.flow_folder("copied")) / "headrace" / "audited.json").unlink()
    figures = Application(spark, target, [flow]).run()

    assert figures["copied"].error is None
