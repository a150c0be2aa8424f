"""The broker for tests: side by side, restarted, killed, and gone without a trace."""

from __future__ import annotations

import gc
import socket
import urllib.request
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.base.errors import UnavailableError
from penstock.testing import Broker

pytest_plugins = ["penstock.testing.fixtures"]


def test_in_process() -> None:
    with Broker() as one, Broker({"num.partitions": 3}) as two:
        assert one.bootstrap != two.bootstrap
        directory = one.directory
        assert directory.is_dir()
        one.create_topic("orders", 2)
        with one.client() as client:
            client.write_arrow("orders", pa.table({"value": ["a", "b"]}))
            assert client.read_arrow("orders").num_rows == 2
        with two.client() as client:
            assert client.list_topics() == []
            assert len(client.create_topic("orders", -1).partitions) == 3
        with urllib.request.urlopen(f"{one.admin_url}/health") as answer:
            assert answer.status == 200
    assert not directory.exists()


def test_groups_do_not_wait_for_more_members_by_default() -> None:
    with Broker(admin=False) as broker:
        assert broker.server is not None
        assert broker.server.settings.group_initial_rebalance_delay_ms == 0
    with Broker({"group.initial.rebalance.delay.ms": 3_000}, admin=False) as broker:
        assert broker.server is not None
        assert broker.server.settings.group_initial_rebalance_delay_ms == 3_000


def test_restart_keeps_port_and_records() -> None:
    with Broker(admin=False) as broker:
        broker.create_topic("orders")
        before = broker.bootstrap
        with broker.client() as client:
            client.write_arrow("orders", pa.table({"value": ["a", "b"]}))
            broker.restart()
            assert broker.bootstrap == before
            assert client.read_arrow("orders")["value"].to_pylist() == [b"a", b"b"]


@pytest.mark.parametrize("process", [False, True])
def test_a_stopped_broker_keeps_its_ports_reserved(process: bool) -> None:
    with Broker(process=process) as broker:
        addresses = [broker.bootstrap, broker.admin_url.removeprefix("http://")]
        if process:
            broker.kill()
        else:
            broker.stop()
        for address in addresses:
            host, _, port = address.rpartition(":")
            with socket.socket() as one, pytest.raises(ConnectionRefusedError):
                one.connect((host, int(port)))
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind((host, int(port)))
        broker.start()
        assert [broker.bootstrap, broker.admin_url.removeprefix("http://")] == addresses
        broker.create_topic("orders")


def test_what_a_forgotten_broker_held_is_free(tmp_path: Path) -> None:
    """No warning about its sockets is issued; it would fail this test."""
    broker = Broker(directory=tmp_path).start()
    host, _, port = broker.bootstrap.rpartition(":")
    broker.stop()
    del broker
    gc.collect()
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind((host, int(port)))
        other.listen()


def test_a_process_that_is_killed_loses_nothing_acknowledged() -> None:
    with Broker(process=True, admin=False) as broker:
        assert broker.pid is not None
        broker.create_topic("orders")
        with broker.client() as client:
            client.write_arrow("orders", pa.table({"value": ["a", "b"]}))
            broker.kill()
            assert broker.pid is None
            broker.start()
            assert client.read_arrow("orders")["value"].to_pylist() == [b"a", b"b"]


def test_a_directory_that_is_given_stays(tmp_path: Path) -> None:
    with Broker(directory=tmp_path, admin=False) as broker:
        broker.create_topic("orders")
    with Broker(directory=tmp_path, admin=False) as broker, broker.client() as client:
        assert [item.name for item in client.list_topics()] == ["orders"]


def test_errors_of_the_start_reach_the_caller(tmp_path: Path) -> None:
    with Broker(directory=tmp_path, admin=False):
        for process in (False, True):
            with (
                pytest.raises(UnavailableError, match=str(tmp_path)),
                Broker(directory=tmp_path, admin=False, process=process),
            ):
                pass
    with (
        pytest.raises(UnavailableError, match="only a running"),
        Broker(admin=False) as broker,
    ):
        broker.kill()


def test_fixtures(penstock_broker: Broker, penstock_client: object) -> None:
    assert penstock_broker.bootstrap
    assert penstock_client is not None
