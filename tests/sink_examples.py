"""A sink of every class that needs nothing but Spark, made for an output mode."""

from __future__ import annotations

from collections.abc import Callable

from headrace import Console, CustomSink, DeltaAppend, DeltaOverwrite, DeltaUpsert, FileSink, Memory, Noop, OutputMode
from headrace.flow.sink import Sink

LOCAL: dict[type, Callable[[OutputMode], Sink]] = {
    DeltaAppend: lambda mode: DeltaAppend(f"{mode}/appended"),
    DeltaUpsert: lambda mode: DeltaUpsert(f"{mode}/upserted", key=["id"]),
    DeltaOverwrite: lambda mode: DeltaOverwrite(f"{mode}/replaced"),
    FileSink: lambda mode: FileSink(f"{mode}/files"),
    CustomSink: lambda _mode: CustomSink("own", lambda rows, _batch: rows.collect()),
    Console: lambda _mode: Console(),
    Memory: lambda _mode: Memory(),
    Noop: lambda _mode: Noop(),
}
