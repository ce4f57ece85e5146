"""Streaming pipelines on PySpark whose trigger, state, watermark and sink are declared, checked and proven.

Projects import from here; all other modules are internal.
"""

from headrace.clients.file_sink_log import committed_files
from headrace.errors import (
    CaptureGap,
    ConfigError,
    DataError,
    FlowError,
    HeadraceError,
    KafkaDataLoss,
    ProducerFenced,
    RecoveryError,
    ServiceUnavailable,
    SourceNotReplayable,
    StackError,
    TableNotCreated,
    Terminal,
    TopicNotFound,
    Transient,
    UnreadableChange,
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
    StateBudget,
    Watermark,
)
from headrace.flow.source import AutoBatchSize
from headrace.flow.target import Database, HttpEndpoint, KafkaConnect, Lease, Target
from headrace.sinks.console import Console
from headrace.sinks.custom import CustomExactlyOnceSink, CustomSink, Transaction
from headrace.sinks.delta.upsert import DeltaUpsert
from headrace.sinks.delta.write import DeltaAppend, DeltaOverwrite
from headrace.sinks.fan_out import FanOut, Filtered
from headrace.sinks.files import FileSink
from headrace.sinks.jdbc.upsert import JdbcUpsert
from headrace.sinks.kafka.exactly_once import KafkaExactlyOnceSink
from headrace.sinks.kafka.topic import KafkaSink
from headrace.sinks.memory import Memory
from headrace.sinks.noop import Noop
from headrace.sinks.rest import Rest
from headrace.sources.delta.changes import DeltaChangesSource
from headrace.sources.delta.source import DeltaSource
from headrace.sources.files import FileSource
from headrace.sources.kafka.source import KafkaSource
from headrace.sources.kafka.start import StartOffsets, StartTime
from headrace.sources.kafka.topics import TopicPartitions, TopicPattern
from headrace.sources.rate import RateSource
from headrace.sources.socket import SocketSource
from headrace.transforms.dedup import deduplicate
from headrace.transforms.keyed.keyed_state import EventTime, KeyedState, ProcessingTime
from headrace.transforms.keyed.on_spark import per_key
from headrace.transforms.keyed.state import ListOf, MapOf, Timers, ValueState
from headrace.transforms.keyed.state_types import Precision
from headrace.transforms.windows import exact_distinct, sessions, sliding, tumbling, window_bounds

__all__ = [
    "AsFastAsPossible", "AutoBatchSize", "AvailableNow", "CaptureGap", "ConfigError", "Console", "Continuous",
    "CustomExactlyOnceSink", "CustomSink", "DataError", "Database", "DeltaAppend", "DeltaChangesSource",
    "DeltaOverwrite", "DeltaSource", "DeltaUpsert", "EventTime", "Every", "FanOut", "FileSink", "FileSource",
    "Filtered", "Finding", "Flow", "FlowError", "Guarantee", "HeadraceError", "HttpEndpoint", "InMemory", "Input",
    "JdbcUpsert", "KafkaConnect", "KafkaDataLoss", "KafkaExactlyOnceSink", "KafkaSink", "KafkaSource", "KeyedState",
    "Lease", "ListOf", "MapOf", "Memory", "Noop", "Once", "OutputMode", "Precision", "ProcessingTime", "ProducerFenced",
    "RateSource", "RealTime", "RecoveryError", "Rest", "RocksDB", "ServiceUnavailable", "Severity", "SocketSource",
    "SourceNotReplayable", "StackError", "StartOffsets", "StartTime", "StateBudget", "TableNotCreated", "Target",
    "Terminal", "Timers", "TopicNotFound", "TopicPartitions", "TopicPattern", "Transaction", "Transient",
    "UnreadableChange", "ValueState", "Watermark", "check", "committed_files", "deduplicate", "exact_distinct",
    "per_key", "sessions", "sliding", "tumbling", "window_bounds",
]  # fmt: skip
