"""Three flows to the end of a folder, as a process of its own that a test pauses in the middle of batch 1."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession, functions as F

from headrace.flow.flow import Flow
from headrace.flow.inputs import Input
from headrace.flow.levers import AvailableNow
from headrace.flow.sink import Sink
from headrace.flow.target import Lease, Target
from headrace.operate.run import open_application
from headrace.sinks.delta.write import DeltaAppend
from headrace.sinks.files import FileSink
from headrace.sinks.kafka.exactly_once import KafkaExactlyOnceSink

# One file a batch; the driver that is to be paused waits at a row of batch 1.
BATCHES = ([1, 2, 3], [4, 5, 6], [7, 8], [9])
WAITS_AT = 5


@dataclass(frozen=True)
class Lines:
    """A folder of text files as a stream: one file a batch."""

    path: str
    name: str = "lines"
    carries_payload: bool = False

    def preflight(self, target: Target) -> None: ...

    def stream(self, spark: SparkSession, target: Target) -> DataFrame:
        return spark.readStream.format("text").option("maxFilesPerTrigger", "1").load(self.path)

    def batch(self, spark: SparkSession, target: Target, start: str, end: str) -> DataFrame:
        raise AssertionError("nothing here is audited")


def sinks(name: str) -> dict[str, Sink]:
    return {"delta": DeltaAppend("delta"), "kafka": KafkaExactlyOnceSink(name), "files": FileSink("files")}


def flow(name: str, sink: Sink, folder: Path, waits: bool) -> Flow:
    def blocking(number: int) -> int:
        if number == WAITS_AT:
            (folder / f"entered-{name}").touch()
            while not (folder / "go").exists():
                time.sleep(0.05)
        return number

    def numbers(rows: DataFrame) -> DataFrame:
        number = F.col("value").cast("long")
        return rows.select((F.udf(blocking, "long")(number) if waits else number).alias("id"))

    return Flow(name, Input(Lines(str(folder / "lines"))), numbers, sink, trigger=AvailableNow())


def main() -> None:
    role, name, root, bootstrap = sys.argv[1:]
    folder = Path(root)
    target = Target(
        "test",
        lake=str(folder / "lake"),
        checkpoints=str(folder / "checkpoints"),
        master="local[4]",
        kafka={"bootstrap.servers": bootstrap},
        # The first one hardly ever checks its lease: only its batches, and its sinks, can find out.
        lease=Lease("record", 600 if role == "first" else 3),
    )
    flows = [flow(row, sink, folder, role == "first") for row, sink in sinks(name).items()]
    application, _spark = open_application(flows, target, log=folder / f"{role}.log")
    ended = application.run()
    for figures in ended.values():
        print(figures.error, file=sys.stderr)  # noqa: T201
    print(json.dumps({row: figures.error.code if figures.error else None for row, figures in ended.items()}))  # noqa: T201


if __name__ == "__main__":
    main()
