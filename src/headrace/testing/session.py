"""A Spark session for the tests of a project's transforms."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from headrace.flow.target import Target
from headrace.runtime.session import open_session
from headrace.stack.jars import JarCache


@contextmanager
def local_session(folder: Path, *, cores: int = 2) -> Iterator[SparkSession]:
    """Open a session with the settings that flows run under, tables below `folder`, and stop it afterwards.

    Starting one takes seconds: share it among all tests of a run. The jars are fetched if the machine has none yet.
    """
    jars = JarCache()
    jars.sync(("spark",))
    target = Target(
        "test", lake=str(folder / "lake"), checkpoints=str(folder / "checkpoints"), master=f"local[{cores}]"
    )
    spark = open_session(target, jars.verify("spark"), app_name="headrace-tests", log=folder / "spark.log")
    try:
        yield spark
    finally:
        spark.stop()
