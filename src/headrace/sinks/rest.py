"""Send each batch to an HTTP service."""

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import ClassVar, Literal

from pyspark.sql import DataFrame, SparkSession, functions as F

from headrace.clients.http import HttpClient, HttpResponse, resolve_address, service_url
from headrace.clients.spark.delta_log import version
from headrace.clients.sql import string_literal
from headrace.errors import ConfigError, DataError, FlowError, did_you_mean
from headrace.flow.duration import Duration
from headrace.flow.guarantee import Guarantee
from headrace.flow.levers import OutputMode
from headrace.flow.sink import BaseSink, Batch, DeadLetters
from headrace.flow.target import HttpEndpoint, Target
from headrace.sinks.kafka.topic import as_records

# Errors of the configuration, not of the rows: every further request would fail too.
_CONFIGURATION_ERRORS = (401, 403, 404, 405, 407)

_DEAD_LETTERS = (
    "query_id string, batch_id long, step string, chunk int, idempotency_key string, "
    "status int, attempts int, answer string, value string"
)


@dataclass(frozen=True)
class Chunk:
    """The rows of one request. `key` is the idempotency key: a retry with the same rows has the same key."""

    number: int
    values: tuple[str, ...]
    body: bytes
    key: str


@dataclass(frozen=True)
class Rest(BaseSink):
    """Post each row as a JSON object to a service of the target, many rows in one request.

    | field        | default | meaning                                                                             |
    |--------------|---------|-------------------------------------------------------------------------------------|
    | service      |         | the name under `services:` of the target: URL and headers                            |
    | path         |         | appended to the service's URL                                                        |
    | body         | array   | `array`: one JSON array per request; `lines`: one object per line                    |
    | max_rows     | 500     | the maximum number of rows per request                                               |
    | max_bytes    | 1 MB    | the size limit of a request                                                          |
    | attempts     | 8       | how often a request is sent before its rows become dead letters                      |
    | timeout      | 30 s    | how long to wait for a response                                                      |
    | in_flight    | 4       | concurrent requests; with 1 they arrive in order                                     |

    At least once: a retried batch is sent again. Each request carries an `Idempotency-Key` of query id, step, batch,
    chunk number and a digest of its rows. Rows are sorted before they are cut into chunks, so a deterministic
    transform repeats the same requests with the same keys, and a service that honours the keys accepts each row once.
    Rows that differ get another key: they are delivered twice rather than lost.

    How a response is handled:

    | response                                 | then                                                                |
    |------------------------------------------|---------------------------------------------------------------------|
    | 2xx                                      | delivered                                                           |
    | 408, 409, 425, 429, 500, 502-504, 507    | retried after `Retry-After` or exponential back-off with jitter;    |
    |                                          | after `attempts` its rows become dead letters                       |
    | 401, 403, 404, 405, 407, any redirect    | the flow stops (HR-515): every request would fail                   |
    | any other                                | its rows become dead letters                                        |
    | none                                     | the batch is retried later (HR-610)                                 |

    Dead letters are written to the Delta table `_headrace/FLOW/dead_letters` below the lake before the batch is
    committed.
    """

    service: str
    path: str = ""
    body: Literal["array", "lines"] = "array"
    max_rows: int = 500
    max_bytes: int = 1024 * 1024
    attempts: int = 8
    timeout: str = "30 seconds"
    in_flight: int = 4
    guarantee: ClassVar[Guarantee] = Guarantee.AT_LEAST_ONCE
    output_modes: ClassVar[frozenset[OutputMode]] = frozenset({OutputMode.APPEND, OutputMode.UPDATE})

    def __post_init__(self) -> None:
        numbers = {name: getattr(self, name) for name in ("max_rows", "max_bytes", "attempts", "in_flight")}
        problems = [f"{name} is {value}" for name, value in numbers.items() if value < 1]
        if self.body not in ("array", "lines"):
            problems.append(f"body is '{self.body}'")
        if problems:
            raise FlowError(
                f"The sink {self.name} is declared in a way that cannot be written.",
                why=f"{' and '.join(problems)}. Numbers have to be at least 1, and a body is an array or lines.",
                remedy="Correct the declaration.",
                code="HR-219",
            )
        Duration.parse(self.timeout)

    @property
    def name(self) -> str:
        """Return `rest:SERVICE/PATH`."""
        return f"rest:{self.service}{self.path}"

    def preflight(self, target: Target) -> None:
        """Check that the service is declared and that its address is allowed. Sends nothing."""
        service = self._service(target)
        resolve_address(service_url(service, self.service, self.path), service, self.service)

    def write(self, rows: DataFrame, batch: Batch) -> None:
        """Send the rows; returns when every row is delivered or stored as a dead letter."""
        receiver = HttpClient(
            self._service(batch.target),
            self.service,
            self.path,
            attempts=self.attempts,
            seconds=Duration.parse(self.timeout).seconds,
            in_flight=self.in_flight,
        )
        try:
            refused = [
                result for result in self._send(receiver, self._chunks(rows, batch)) if not result[1].is_accepted
            ]
        finally:
            receiver.close()
        _replace_dead_letters(rows.sparkSession, refused, batch)
        if refused:
            count = sum(len(chunk.values) for chunk, _answer in refused)
            first = refused[0][1]
            why = f"the service answered {first.status} ({first.text.strip()[:200] or 'empty response'})"
            batch.on_dead_letters(DeadLetters(self.name, count, why, dead_letters(batch.target, batch.flow)))

    def _service(self, target: Target) -> HttpEndpoint:
        if self.service not in target.services:
            raise ConfigError(
                f"Target '{target.name}' has no service '{self.service}'.",
                why=f"Its services are: {', '.join(target.services) or 'none'}."
                f"{did_you_mean(self.service, target.services)}",
                remedy=f"Declare services.{self.service} of the target in headrace.yml.",
                code="HR-117",
            )
        return target.services[self.service]

    def _chunks(self, rows: DataFrame, batch: Batch) -> Iterator[Chunk]:
        """Cut the batch into requests deterministically, whatever the order of the rows."""
        # One partition, because a global sort would sample the rows first and so compute the batch twice.
        ordered = as_records(rows, None).select("value").repartition(1).sortWithinPartitions("value")
        pending: list[str] = []
        size = number = 0
        for (value,) in ordered.toLocalIterator():
            if pending and (len(pending) == self.max_rows or size + len(value) > self.max_bytes):
                yield self._chunk(number, pending, batch)
                pending, size, number = [], 0, number + 1
            pending.append(value)
            size += len(value)
        if pending:
            yield self._chunk(number, pending, batch)

    def _chunk(self, number: int, values: list[str], batch: Batch) -> Chunk:
        text = "\n".join(values) + "\n" if self.body == "lines" else f"[{','.join(values)}]"
        body = text.encode()
        key = f"{batch.app_id}:{batch.id}:{number}:{hashlib.sha256(body).hexdigest()[:16]}"
        return Chunk(number, tuple(values), body, key)

    def _send(self, receiver: HttpClient, chunks: Iterable[Chunk]) -> Iterator[tuple[Chunk, HttpResponse]]:
        """Send the chunks concurrently, and yield each with its response."""
        in_flight: deque[tuple[Chunk, Future[HttpResponse]]] = deque()
        with ThreadPoolExecutor(self.in_flight, thread_name_prefix="rest") as pool:
            for chunk in chunks:
                if len(in_flight) == self.in_flight:
                    yield self._check_response(*in_flight.popleft())
                in_flight.append((chunk, pool.submit(receiver.post, chunk.body, self._headers(chunk))))
            while in_flight:
                yield self._check_response(*in_flight.popleft())

    def _headers(self, chunk: Chunk) -> dict[str, str]:
        kind = "application/json" if self.body == "array" else "application/x-ndjson"
        return {"Content-Type": kind, "Idempotency-Key": chunk.key}

    def _check_response(self, chunk: Chunk, response: Future[HttpResponse]) -> tuple[Chunk, HttpResponse]:
        answer = response.result()
        if answer.status in _CONFIGURATION_ERRORS or 300 <= answer.status < 400:
            raise DataError(
                f"The service '{self.service}' does not accept requests of {self.name}.",
                why=f"It answered {answer.status}: {answer.text.strip()[:200] or 'empty response'}.",
                state="The batch is not committed. Some of its rows may have been accepted, and are sent again.",
                remedy=f"Correct services.{self.service} of the target in headrace.yml, or the sink's path.",
                code="HR-515",
            )
        return chunk, answer


def dead_letters(target: Target, flow: str) -> str:
    """Return the location of a flow's dead letters."""
    return target.table(f"_headrace/{flow}/dead_letters")


def _replace_dead_letters(session: SparkSession, refused: list[tuple[Chunk, HttpResponse]], batch: Batch) -> None:
    """Replace the dead letters of this batch: the rows of an earlier attempt were sent again."""
    location = dead_letters(batch.target, batch.flow)
    identity = f"query_id = {string_literal(batch.query_id)} AND step = {string_literal(batch.step)}"
    batch_condition = f"{identity} AND batch_id = {batch.id}"
    exists = version(session, location) >= 0
    if not refused and not (
        exists and session.read.format("delta").load(location).where(batch_condition).limit(1).count()
    ):
        return
    attempt = (batch.query_id, batch.id, batch.step)
    letters = [
        (*attempt, chunk.number, chunk.key, answer.status, answer.attempts, answer.text, value)
        for chunk, answer in refused
        for value in chunk.values
    ]
    rows = session.createDataFrame(letters, _DEAD_LETTERS).withColumn("at", F.current_timestamp())
    writer = rows.write.format("delta").mode("overwrite")
    (writer.option("replaceWhere", batch_condition) if exists else writer).save(location)
