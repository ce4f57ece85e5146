"""Maps exceptions of Spark, Kafka and Delta into the error tree.

Spark reports a failed query as text: the classes and messages of the whole chain of causes. The first row of the table
below with a phrase that occurs in the text decides. An unknown error is terminal, because restarts would hide it.
"""

import re
from dataclasses import dataclass

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from headrace.errors import (
    ConfigError,
    DataError,
    FlowError,
    HeadraceError,
    KafkaDataLoss,
    RecoveryError,
    ServiceUnavailable,
    TopicNotFound,
)
from headrace.ingest.rules import VIOLATION_MARKER

_STATE = "The sinks contain every batch up to the last commit; the failed batch will be retried from the same offsets."
_ROOT_CAUSE = re.compile(r"^Caused by: (.+)$", re.MULTILINE)
# The exception of Python code on a worker: the line below the indented ones.
_PYTHON_CAUSE = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\S.*)")
# An error that Headrace raises on a worker: a value that custom state cannot store.
_WORKER_ERROR = re.compile(r"^headrace\.errors\.FlowError: \[(HR-2\d\d)\] (.+)$")
_MAX_CAUSE_LENGTH = 400


@dataclass(frozen=True)
class _ErrorMapping:
    phrases: tuple[str, ...]
    error_class: type[HeadraceError]
    code: str
    what: str
    remedy: str


_ERROR_MAPPINGS = (
    _ErrorMapping(
        (VIOLATION_MARKER,),
        DataError,
        "HR-571",
        "A row breaks a rule that stops the flow.",
        "Correct the row at its source, or give the rule another action, and start the flow again: it begins with the "
        "batch that has the row.",
    ),
    _ErrorMapping(
        ("KAFKA_DATA_LOSS", "Some data may have been lost", "OffsetOutOfRangeException"),
        KafkaDataLoss,
        "HR-502",
        "Kafka no longer has offsets that the flow has not read.",
        "Look at the topic's retention. To continue without the lost rows, start the flow under a new name.",
    ),
    _ErrorMapping(
        ("UnknownTopicOrPartitionException", "UnknownTopicIdException"),
        TopicNotFound,
        "HR-501",
        "A topic does not exist.",
        "Create it with `headrace topics create NAME`, or correct the name in the flow.",
    ),
    _ErrorMapping(
        (
            "SaslAuthenticationException",
            "SslAuthenticationException",
            "SSLHandshakeException",
            "javax.security.auth.login.LoginException",
            "org.apache.kafka.common.errors.InvalidConfigurationException",
            "org.apache.kafka.common.config.ConfigException",
        ),
        ConfigError,
        "HR-114",
        "Kafka rejected the login of the flow's client.",
        "Correct the sasl and ssl settings under `kafka:` of the target in headrace.yml, and start the flow again.",
    ),
    _ErrorMapping(
        ("DELTA_SOURCE_TABLE_IGNORE_CHANGES", "DELTA_SOURCE_IGNORE_DELETE"),
        DataError,
        "HR-512",
        "Rows of the Delta table that the flow reads were updated or deleted.",
        "Read the table with `DeltaChangesSource`, or start the flow under a new name to read the table as it is now.",
    ),
    _ErrorMapping(
        ("DELTA_MISSING_CHANGE_DATA",),
        DataError,
        "HR-513",
        "A version of the Delta table that the flow reads has no change feed.",
        "Set `delta.enableChangeDataFeed` on the table, and start at a version that was written after that.",
    ),
    _ErrorMapping(
        ("MALFORMED_RECORD_IN_PARSING", "MALFORMED_CSV_RECORD"),
        DataError,
        "HR-514",
        "A line of a file cannot be read as its schema says.",
        "Correct the file in place and start the flow again, or declare the schema as the files are.",
    ),
    _ErrorMapping(
        (
            "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE",
            "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE",
            "StateSchemaNotCompatible",
            # Custom state: a field of another type, more changes than Spark keeps track of, another clock or kind.
            "STATE_STORE_INVALID_VALUE_SCHEMA_EVOLUTION",
            "STATE_STORE_COLUMN_FAMILY_SCHEMA_INCOMPATIBLE",
            "STATE_STORE_VALUE_SCHEMA_EVOLUTION_THRESHOLD_EXCEEDED",
            "STATE_STORE_INVALID_CONFIG_AFTER_RESTART",
            "STATE_STORE_INVALID_VARIABLE_TYPE_CHANGE",
        ),
        RecoveryError,
        "HR-303",
        "The state in the checkpoint was written by another query.",
        "Restore the previous transform, or start the flow under a new name.",
    ),
    _ErrorMapping(
        ("CONCURRENT_STREAM_LOG_UPDATE", "ConcurrentTransactionException"),
        RecoveryError,
        "HR-304",
        "Another driver writes under the same checkpoint.",
        "Stop the other driver.",
    ),
    _ErrorMapping(
        ("Incomplete log file", "STREAMING_CHECKPOINT_MISSING_METADATA_FILE", "Error reading streaming state file"),
        RecoveryError,
        "HR-301",
        "The checkpoint is damaged.",
        "Restore the checkpoint from a backup, or start the flow under a new name.",
    ),
    _ErrorMapping(
        ("No space left on device", "Disk quota exceeded"),
        ServiceUnavailable,
        "HR-602",
        "The disk is full.",
        "Free space; the flow then continues automatically.",
    ),
    _ErrorMapping(
        (
            "org.apache.kafka.common.errors.TimeoutException",
            "org.apache.kafka.common.errors.DisconnectException",
            "NotLeaderOrFollowerException",
            "KafkaStorageException",
            "java.net.ConnectException",
            "java.net.SocketTimeoutException",
            "Connection refused",
            "Failed to construct kafka consumer",
            "Failed to create new KafkaAdminClient",
        ),
        ServiceUnavailable,
        "HR-601",
        "Kafka does not answer.",
        "Start the broker; the flow then continues automatically.",
    ),
    _ErrorMapping(
        (
            "ExecutorLostFailure",
            "FetchFailedException",
            "ConcurrentAppendException",
            "DELTA_CONCURRENT_",
            # A task of continuous processing is not retried by Spark: the query has to be restarted.
            "ContinuousTaskRetryException",
        ),
        ServiceUnavailable,
        "HR-603",
        "A part of the cluster was lost, or another writer was faster.",
        "Nothing: the flow then continues automatically.",
    ),
    _ErrorMapping(
        ("Python worker exited unexpectedly",),
        ServiceUnavailable,
        "HR-618",
        "A Python worker died.",
        "Nothing: the flow then continues automatically. If it repeats, give the machine more memory, or "
        "look for native code in the transform that crashes.",
    ),
    _ErrorMapping(
        ("PythonException", "PYTHON_EXCEPTION"),
        FlowError,
        "HR-206",
        "Python code of the flow raised an error.",
        "Correct the code and start the flow again; it resumes where it stopped.",
    ),
    _ErrorMapping(
        (
            "AnalysisException",
            "UNSUPPORTED_STREAMING",
            "STREAMING_OUTPUT_MODE",
            "STREAMING_REAL_TIME_MODE",
            "[UNRESOLVED_COLUMN",
        ),
        FlowError,
        "HR-205",
        "Spark refuses the query.",
        "Correct the transform or the output mode.",
    ),
)
# For an exception that neither Spark nor Py4J raised.
_PYTHON_ERROR = _ErrorMapping(
    (),
    FlowError,
    "HR-206",
    "Python code of the flow or its sink raised an error.",
    "Correct the code and start the flow again; it resumes where it stopped.",
)


def map_error(flow: str, error: BaseException | str) -> HeadraceError:
    """Convert a failure of a flow into an error of the tree. Called by the supervisor, once per failure."""
    if isinstance(error, HeadraceError):
        return error
    text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    in_python = _PYTHON_CAUSE.findall(text)
    worker_error = _WORKER_ERROR.match(in_python[-1]) if in_python else None
    if worker_error is not None:
        return FlowError(
            f"Flow '{flow}': Python code of the flow used state, timers or values in an unsupported way.",
            why=_truncate(worker_error[2]),
            state=_STATE,
            remedy="Correct the code and start the flow again; it resumes where it stopped.",
            code=worker_error[1],
        )
    mapping = next((row for row in _ERROR_MAPPINGS if any(phrase in text for phrase in row.phrases)), None)
    if mapping is None and isinstance(error, Exception) and not isinstance(error, PySparkException | Py4JError):
        mapping = _PYTHON_ERROR
    if mapping is not None:
        return mapping.error_class(
            f"Flow '{flow}': {mapping.what}", why=_cause(text), state=_STATE, remedy=mapping.remedy, code=mapping.code
        )
    return FlowError(
        f"Flow '{flow}' failed.",
        why=_cause(text),
        state=_STATE,
        remedy="Correct the cause and start the flow again. Spark's own log, spark.log, has the details.",
        code="HR-299",
    )


def _cause(text: str) -> str:
    """Return the innermost cause, truncated: it says more than a complete stack trace."""
    causes, in_python = _ROOT_CAUSE.findall(text), _PYTHON_CAUSE.findall(text)
    line = causes[-1] if causes else next((part for part in text.splitlines() if part.strip()), "no message")
    if line.endswith("Traceback (most recent call last):") and in_python:
        line = in_python[-1]
    return _truncate(line)


def _truncate(line: str) -> str:
    line = line.strip()
    return (line if len(line) <= _MAX_CAUSE_LENGTH else line[:_MAX_CAUSE_LENGTH] + "...") + (
        "" if line.endswith(".") else "."
    )
