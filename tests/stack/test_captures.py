"""Changes of real databases through a real Kafka Connect: killed in a snapshot, and cut off from their log.

`make certify` has every fault of a capture.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.cdc.capture.catalogue import position_now
from headrace.cdc.capture.declaration import Capture
from headrace.cdc.capture.health import check_capture
from headrace.cdc.capture.lifecycle import ConnectWorker, delete_capture, start_capture
from headrace.cdc.capture.topics import await_position
from headrace.clients import mysql
from headrace.clients.kafka import list_topics
from headrace.clients.kafka_connect import ConnectClient
from headrace.errors import DataError
from headrace.flow.levers import Every
from headrace.flow.target import Database
from headrace.runtime.events import FlowStarted
from headrace.stack.local import LocalStack
from systems.capture_shop import Running, Shop, drop_slot, ends_at_the_gap, kill, looked_at, refused, run, stalled
from systems.capture_topics import changes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from conftest import Broker

pytestmark = [pytest.mark.stack, pytest.mark.spark]


def test_mirror_and_history_equal_their_source_after_a_killed_snapshot_and_end_at_a_lost_slot(
    broker: Broker, stoppable_postgres: Database, capture_worker: ConnectWorker, spark: SparkSession, tmp_path: Path
) -> None:
    shop = Shop(spark, broker, stoppable_postgres, capture_worker, tmp_path)
    capture, connect = shop.capture, ConnectClient(capture_worker.url)

    # Kafka Connect is killed in the middle of the snapshot. Rows that it has sent are deleted before the next one.
    with stalled(shop.source, capture, "sold.payments"), changes(broker.bootstrap, "sold.sold.orders") as until:
        start_capture(capture, shop.source, capture_worker)
        until(("r", 499))  # the connector sends the last row of a table when it knows what follows
        kill(broker.home, "connect")
    assert "sold.sold.payments" not in list_topics(shop.target)
    run(
        shop.source,
        "DELETE FROM sold.orders WHERE id BETWEEN 400 AND 499",
        "UPDATE sold.orders SET total = 0 WHERE id = 399",
    )
    LocalStack(broker.home).up(("connect",))
    shop.change()
    shop.send_again()
    shop.require_equal()

    # The slot is dropped. A flow that runs, and to which nothing comes, ends with it.
    running = Running(spark, shop.target, shop.flows(Every("1 second"))[0])
    running.await_event(FlowStarted)
    drop_slot(shop.source, capture)
    shop.change()
    ends_at_the_gap(running)
    refused("HR-522", lambda: check_capture(capture, shop.source, connect))

    # A new snapshot would hide what happened in the gap, unless the topics are new as well.
    delete_capture(capture, shop.source, capture_worker)
    refused("HR-527", lambda: start_capture(capture, shop.source, capture_worker))
    assert connect.settings(capture.connector) is None


def test_a_table_without_a_key_is_refused_before_it_is_published(
    stoppable_postgres: Database, capture_worker: ConnectWorker
):
    run(
        stoppable_postgres,
        "CREATE SCHEMA bare",
        "CREATE TABLE bare.logs (line text)",
        "INSERT INTO bare.logs VALUES ('x')",
    )
    with pytest.raises(DataError, match="REPLICA IDENTITY FULL") as reported:
        start_capture(Capture("shop", r"bare\..*", prefix="bare"), stoppable_postgres, capture_worker)
    assert reported.value.code == "HR-524"
    run(stoppable_postgres, "UPDATE bare.logs SET line = 'y'")


def test_a_row_of_mariadb_goes_through(broker: Broker, mariadb: Database, capture_worker: ConnectWorker):
    capture = Capture("shop", ("headrace.carried",), prefix="carried", heartbeat="1 second")
    with mysql.session(mariadb) as cursor:
        cursor.execute("CREATE TABLE carried (id int PRIMARY KEY, note varchar(20))")
        cursor.execute("INSERT INTO carried VALUES (1, 'before')")
        start_capture(capture, mariadb, capture_worker)
        with changes(broker.bootstrap, "carried.headrace.carried") as until:
            until(("r", 1))
            cursor.execute("INSERT INTO carried VALUES (2, 'after')")
            cursor.execute("DELETE FROM carried WHERE id = 1")
            assert until(("c", 2), ("d", 1)) == [("r", 1), ("c", 2), ("d", 1)]
        # The position is saved a moment after the changes are there. Without one more it would move only when the
        # server reports that it is alive, once a minute.
        place = position_now(mariadb)
        cursor.execute("INSERT INTO carried VALUES (3, 'later')")
    await_position(capture, mariadb, ConnectClient(capture_worker.url), place)
    observed = looked_at(capture, mariadb, capture_worker)
    assert observed.position is not None
    assert observed.position <= position_now(mariadb)
    delete_capture(capture, mariadb, capture_worker)
