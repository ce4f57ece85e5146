"""Failures of Spark, Kafka and Delta as errors of the tree."""

from __future__ import annotations

import pytest

from headrace.errors import (
    ConfigError,
    FlowError,
    HeadraceError,
    KafkaDataLoss,
    RecoveryError,
    ServiceUnavailable,
    StackError,
    Terminal,
    TopicNotFound,
    Transient,
)
from headrace.runtime.error_mapping import map_error

EXISTING = [
    ("[KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE] Some data may have been lost", KafkaDataLoss, "HR-502"),
    ("org.apache.kafka.clients.consumer.OffsetOutOfRangeException: out of range", KafkaDataLoss, "HR-502"),
    ("org.apache.kafka.common.errors.UnknownTopicOrPartitionException: no topic", TopicNotFound, "HR-501"),
    ("org.apache.kafka.common.errors.UnknownTopicIdException: gone", TopicNotFound, "HR-501"),
    ("org.apache.kafka.common.errors.SaslAuthenticationException: Authentication failed", ConfigError, "HR-114"),
    ("org.apache.kafka.common.errors.SslAuthenticationException: SSL handshake failed", ConfigError, "HR-114"),
    ("javax.net.ssl.SSLHandshakeException: PKIX path building failed", ConfigError, "HR-114"),
    ("[STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE] Provided key schema", RecoveryError, "HR-303"),
    ("[STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE] Provided value schema", RecoveryError, "HR-303"),
    ("[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log", RecoveryError, "HR-304"),
    ("io.delta.exceptions.ConcurrentTransactionException: same app id", RecoveryError, "HR-304"),
    ("java.lang.IllegalStateException: Incomplete log file", RecoveryError, "HR-301"),
    ("[STREAMING_CHECKPOINT_MISSING_METADATA_FILE] missing", RecoveryError, "HR-301"),
    ("java.io.IOException: No space left on device", ServiceUnavailable, "HR-602"),
    ("java.io.IOException: Disk quota exceeded", ServiceUnavailable, "HR-602"),
    ("org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node", ServiceUnavailable, "HR-601"),
    ("org.apache.kafka.common.errors.DisconnectException", ServiceUnavailable, "HR-601"),
    ("org.apache.kafka.common.errors.NotLeaderOrFollowerException", ServiceUnavailable, "HR-601"),
    ("java.net.ConnectException: Connection refused", ServiceUnavailable, "HR-601"),
    ("org.apache.kafka.common.KafkaException: Failed to create new KafkaAdminClient", ServiceUnavailable, "HR-601"),
    ("ExecutorLostFailure (executor 1 exited)", ServiceUnavailable, "HR-603"),
    ("org.apache.spark.shuffle.FetchFailedException: gone", ServiceUnavailable, "HR-603"),
    ("[DELTA_CONCURRENT_APPEND.WITHOUT_HINT] a file was added", ServiceUnavailable, "HR-603"),
    ("org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)", ServiceUnavailable, "HR-618"),
    ("org.apache.spark.api.python.PythonException: Traceback", FlowError, "HR-206"),
    ("AnalysisException: [UNRESOLVED_COLUMN.WITH_SUGGESTION] no column `citty`", FlowError, "HR-205"),
    ("[STREAMING_OUTPUT_MODE.UNSUPPORTED_OPERATION] not supported", FlowError, "HR-205"),
    ("[STREAMING_REAL_TIME_MODE.OPERATOR_OR_SINK_NOT_IN_ALLOWLIST] not in it", FlowError, "HR-205"),
    ("continuous.ContinuousTaskRetryException: Continuous execution does not", ServiceUnavailable, "HR-603"),
    ("java.lang.NullPointerException", FlowError, "HR-299"),
]


@pytest.mark.parametrize(("text", "kind", "code"), EXISTING)
def test_a_failure_becomes_the_error_that_it_is(text: str, kind: type[HeadraceError], code: str) -> None:
    error = map_error("rides", f"org.apache.spark.SparkException: Job aborted\nCaused by: {text}\n\tat Some.scala:1")
    assert (type(error), error.code) == (kind, code)
    assert "'rides'" in error.what
    assert text in error.why
    assert error.state
    assert error.remedy


def test_an_exception_is_known_by_its_class_too() -> None:
    class AnalysisException(Exception):
        pass

    assert map_error("rides", AnalysisException("no such column")).code == "HR-205"


def test_loss_is_not_taken_for_an_outage_that_is_named_in_the_same_chain() -> None:
    text = "Connection refused\nCaused by: [KAFKA_DATA_LOSS] Some data may have been lost"
    assert isinstance(map_error("rides", text), Terminal)


def test_a_full_disk_is_not_taken_for_a_fault_of_the_python_code_that_hit_it() -> None:
    text = "PythonException: foreachBatch\nCaused by: java.io.IOException: No space left on device"
    assert isinstance(map_error("rides", text), Transient)


@pytest.mark.parametrize("error", [StackError, ServiceUnavailable])
def test_an_error_of_the_tree_passes_through(error: type[HeadraceError]) -> None:
    mine = error("What.", why="Why.", state="State.", remedy="Remedy.", code="HR-499")
    assert map_error("rides", mine) is mine


def test_the_innermost_cause_is_the_reason() -> None:
    text = "Outer: failed\nCaused by: Middle: because\n\tat A.scala:1\nCaused by: Inner: the root.\n\tat B.scala:2"
    assert map_error("rides", text).why == "Inner: the root."


WORKER = """Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 3622, in main
    process()
{cause}
 SQLSTATE: 38000
	at org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner.scala:581)
"""


def test_what_python_code_on_a_worker_died_of_is_the_reason() -> None:
    error = map_error("rides", WORKER.format(cause="ZeroDivisionError: division by zero"))
    assert (error.code, error.why) == ("HR-206", "ZeroDivisionError: division by zero.")


def test_an_error_that_a_worker_raises_has_the_same_code_on_the_driver() -> None:
    error = map_error("rides", WORKER.format(cause="headrace.errors.FlowError: [HR-233] The state.fare is None."))
    assert (error.code, error.why) == ("HR-233", "The state.fare is None.")
    assert "from the same offsets" in error.state


def test_without_a_cause_the_first_line_is_the_reason() -> None:
    assert map_error("rides", "\n\nFirst line\nsecond line").why == "First line."
    assert map_error("rides", "").why == "no message."


def test_a_long_cause_is_capped() -> None:
    why = map_error("rides", "x" * 5_000).why
    assert why.startswith("x" * 400)
    assert len(why) < 410


def test_an_error_has_four_parts_and_a_code() -> None:
    error = ServiceUnavailable("What.", why="Why.", state="State.", remedy="Remedy.")
    assert str(error) == "[HR-600] What. Why. State. Remedy."
    assert error.as_dict() == {
        "code": "HR-600",
        "error": "ServiceUnavailable",
        "what": "What.",
        "why": "Why.",
        "state": "State.",
        "remedy": "Remedy.",
    }
