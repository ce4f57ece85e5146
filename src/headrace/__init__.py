"""Streaming pipelines on PySpark whose trigger, state, watermark and sink are declared, checked and proven.

What a project imports stands here; everything else is how the house is built.
"""

from headrace.clients.file_folder import committed_files
from headrace.errors import (
    ConfigError,
    DataError,
    FlowError,
    HeadraceError,
    PartUnavailable,
    RecoveryError,
    StackError,
    Terminal,
    Transient,
)
from headrace.flow.checks.check import check
from headrace.flow.checks.finding import Finding, Severity
from headrace.flow.flow import Flow
from headrace.flow.guarantee import Guarantee
from headrace.flow.inputs import Input
from headrace.flow.levers import (
    AsFastAsPossible,
    AvailableNow,
    Continuous,
    Every,
    InMemory,
    Once,
    OutputMode,
    RealTime,
    RocksDB,
    Watermark,
)
from headrace.flow.source import Fit
from headrace.flow.state_budget import StateBudget
from headrace.flow.target import Database, KafkaConnect, Lease, Service, Target
from headrace.sinks.console import Console
from headrace.sinks.custom import CustomExactlyOnce, CustomSink, Transaction
from headrace.sinks.delta.append import DeltaAppend
from headrace.sinks.delta.overwrite import DeltaOverwrite
from headrace.sinks.delta.upsert import DeltaUpsert
from headrace.sinks.fan_out import FanOut, Only
from headrace.sinks.files import Files
from headrace.sinks.jdbc.upsert import JdbcUpsert
from headrace.sinks.kafka.exactly_once import KafkaExactlyOnce
from headrace.sinks.kafka.topic import KafkaTopic
from headrace.sinks.memory import Memory
from headrace.sinks.noop import Noop
from headrace.sinks.rest import Rest
from headrace.sources.delta.changes import DeltaChanges
from headrace.sources.delta.source import DeltaSource
from headrace.sources.files import FileSource
from headrace.sources.kafka.source import Kafka
from headrace.sources.kafka.start import StartOffsets, StartTime
from headrace.sources.kafka.topics import TopicPartitions, TopicPattern
from headrace.sources.rate import Rate
from headrace.sources.socket import Socket
from headrace.transforms.dedup import deduplicated
from headrace.transforms.keyed.keyed_state import EventTime, KeyedState, ProcessingTime
from headrace.transforms.keyed.on_spark import per_key
from headrace.transforms.keyed.state import Kept, ListOf, MapOf, Timers
from headrace.transforms.keyed.state_types import Digits
from headrace.transforms.windows import exact_distinct, sessions, sliding, tumbling, window_bounds

__all__ = [
    "AsFastAsPossible",
    "AvailableNow",
    "ConfigError",
    "Console",
    "Continuous",
    "CustomExactlyOnce",
    "CustomSink",
    "DataError",
    "Database",
    "DeltaAppend",
    "DeltaChanges",
    "DeltaOverwrite",
    "DeltaSource",
    "DeltaUpsert",
    "Digits",
    "EventTime",
    "Every",
    "FanOut",
    "FileSource",
    "Files",
    "Finding",
    "Fit",
    "Flow",
    "FlowError",
    "Guarantee",
    "HeadraceError",
    "InMemory",
    "Input",
    "JdbcUpsert",
    "Kafka",
    "KafkaConnect",
    "KafkaExactlyOnce",
    "KafkaTopic",
    "Kept",
    "KeyedState",
    "Lease",
    "ListOf",
    "MapOf",
    "Memory",
    "Noop",
    "Once",
    "Only",
    "OutputMode",
    "PartUnavailable",
    "ProcessingTime",
    "Rate",
    "RealTime",
    "RecoveryError",
    "Rest",
    "RocksDB",
    "Service",
    "Severity",
    "Socket",
    "StackError",
    "StartOffsets",
    "StartTime",
    "StateBudget",
    "Target",
    "Terminal",
    "Timers",
    "TopicPartitions",
    "TopicPattern",
    "Transaction",
    "Transient",
    "Watermark",
    "check",
    "committed_files",
    "deduplicated",
    "exact_distinct",
    "per_key",
    "sessions",
    "sliding",
    "tumbling",
    "window_bounds",
]
