"""What the demos share whose source is generated records in Kafka."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import Any, Protocol

from pyspark.sql import SparkSession

from headrace.clients.positions import Partition
from headrace.clients.topics import create_topics
from headrace.demos.feeder import Generator, SendResult, generate
from headrace.demos.model_inputs import ModelVerdict, history_to_send
from headrace.demos.protocol import DemoContext, DemoSettings
from headrace.flow.flow import Flow

# One per core of a small machine.
PARTITIONS = 2


class PatternSettings(Protocol):
    """The settings of a pattern's flows."""

    @property
    def topics(self) -> Sequence[str]:
        """Every topic of the pattern; the first one is for generated records that name no topic."""


class PatternGenerator(Protocol):
    """The generator of a pattern's records."""

    def with_traffic(self, *, rate: float, late: float, duplicates: float, malformed: float, seed: int) -> Generator:
        """Return it with this traffic."""


@dataclass(frozen=True)
class RecordsDemo(ABC):
    """A demo of generated records. A demo adds its title, its pattern and `compare`.

    | field         | meaning                                                                                     |
    |---------------|---------------------------------------------------------------------------------------------|
    | settings      | the settings of the flows                                                                   |
    | pattern_flows | returns the flows for these settings                                                        |
    | generator     | returns the generator for these settings, with the topics of the flows                      |
    | late_share    | the share of late records                                                                   |
    """

    settings: PatternSettings
    pattern_flows: Callable[[Any], list[Flow]]
    generator: Callable[[Any], PatternGenerator]
    late_share: float = 0.02
    title: str = ""
    parts: tuple[str, ...] = ("kafka",)
    has_page: bool = False
    spark: Mapping[str, str] = field(default_factory=dict)

    def flows(self) -> Sequence[Flow]:
        """Return the flows of the pattern."""
        return self.pattern_flows(self.settings)

    def traffic(self, settings: DemoSettings) -> Generator:
        """Return the generator of live records."""
        shares = {"late": self.late_share, "duplicates": 0.01, "malformed": 0.005}
        return self.generator(self.settings).with_traffic(rate=settings.rate, seed=settings.seed, **shares)

    @abstractmethod
    def compare(self, context: DemoContext, spark: SparkSession) -> ModelVerdict:
        """Compare every row of every sink with the model."""

    def prepare(self, context: DemoContext) -> None:
        """Create the topics."""
        create_topics(context.target.kafka, dict.fromkeys(self.settings.topics, PARTITIONS))

    def feed(self, context: DemoContext, stop: Event) -> SendResult:
        """Send the recent past immediately, then live records, some of them late, repeated or malformed."""
        topic = self.settings.topics[0]
        backfill = history_to_send(context.target, topic, context.settings)
        return generate(self.traffic(context.settings), context.target, topic=topic, backfill=backfill, stop=stop)

    def status(self, context: DemoContext, spark: SparkSession) -> Sequence[str]:
        """Return nothing."""
        return ()

    def awaited_offsets(self, context: DemoContext) -> Mapping[str, Mapping[Partition, int]]:
        """Return each flow without offsets: once it has read something, the model can replay it."""
        return {flow.name: {} for flow in self.flows()}
