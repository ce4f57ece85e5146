"""Changes of real databases through a real Kafka Connect: killed, stopped, and cut off from their log."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.cdc.capture.health import check_capture, read_slot
from headrace.cdc.capture.lifecycle import ConnectWorker, count_logical_decoding_messages, delete_capture, start_capture
from headrace.clients.kafka import list_topics
from headrace.clients.kafka_connect import ConnectClient
from headrace.flow.levers import Every
from headrace.flow.target import Database
from headrace.runtime.events import FlowStarted
from headrace.stack.local import LocalStack
from systems.capture_shop import Running, Shop, drop_slot, ends_at_the_gap, kill, moved, refused, run, stalled
from systems.capture_topics import changes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from conftest import Broker

pytestmark = pytest.mark.stack


def test_mirror_and_history_equal_their_source_after_every_fault_of_the_capture(
    broker: Broker, stoppable_postgres: Database, capture_worker: ConnectWorker, spark: SparkSession, tmp_path: Path
) -> None:
    source, worker = stoppable_postgres, capture_worker
    shop = Shop(spark, broker, source, worker, tmp_path)
    capture, connect = shop.capture, ConnectClient(worker.url)

    # Kafka Connect is killed in the middle of the snapshot. Rows that it has sent are deleted before the next one.
    with stalled(source, capture, "sold.payments"), changes(broker.bootstrap, "sold.sold.orders") as until:
        assert {str(table) for table in start_capture(capture, source, worker)} == {"sold.orders", "sold.payments"}
        until(("r", 499))  # the connector sends the last row of a table only when it knows what follows
        kill(broker.home, "connect")
    assert "sold.sold.payments" not in list_topics(shop.target)
    assert {event.error.code for event in shop.apply()} == {"HR-613"}
    run(
        source,
        "DELETE FROM sold.orders WHERE id BETWEEN 400 AND 499",
        "UPDATE sold.orders SET total = 0 WHERE id = 399",
    )
    LocalStack(broker.home).up(("connect",))
    shop.change()
    shop.require_equal()

    # It is killed while it streams.
    shop.change()
    kill(broker.home, "connect")
    shop.change()
    LocalStack(broker.home).up(("connect",))
    shop.require_equal()

    # Postgres is stopped as by `pg_ctl -m immediate`, and comes back.
    kill(broker.home, "postgres", signal.SIGQUIT)
    LocalStack(broker.home).up(("postgres",))
    shop.change()
    shop.require_equal()
    assert count_logical_decoding_messages(capture, shop.target) >= 3

    # It comes back at another address, and somebody has removed the connector: it continues where it was.
    shop.source = moved(broker.home, source)
    connect.delete(capture.connector)
    start_capture(capture, shop.source, worker)
    shop.change()
    shop.send_again()
    shop.require_equal()

    # The slot is dropped. A flow that runs, and to which nothing comes, ends with it; so does one that is started.
    running = Running(spark, shop.target, shop.flows(Every("1 second"))[0])
    running.await_event(FlowStarted)
    drop_slot(shop.source, capture)
    shop.change()
    ends_at_the_gap(running)
    ends_at_the_gap(Running(spark, shop.target, running.flow))
    refused("HR-522", lambda: check_capture(capture, shop.source, connect))
    refused("HR-522", lambda: start_capture(capture, shop.source, worker))

    # A new start would hide what happened in the gap, unless the topics are new as well.
    delete_capture(capture, shop.source, worker)
    refused("HR-527", lambda: start_capture(capture, shop.source, worker))
    assert connect.settings(capture.connector) is None
    assert read_slot(capture, shop.source) is None
    deleted = shop.command("delete", "--topics", "--yes")["topics"]
    assert {"sold.sold.orders", "sold.sold.payments", "sold.transaction", "sold.message"} <= {*deleted}
    start_capture(capture, shop.source, worker)
    shop.stored = "second"
    shop.change()
    shop.require_equal()
    delete_capture(capture, shop.source, worker)
