"""Plans of several brokers in one directory: derived settings and rejected ones."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import UUID

import pytest

from penstock.apps.process.configuration import Given, InvalidConfiguration, configure
from penstock.apps.serve.plan import BrokersMissing, Plan, check_held
from penstock.base.errors import InvalidSetting
from penstock.control import SqliteControlPlane


@contextmanager
def planned(processes: int, **settings: str) -> Iterator[Plan]:
    names = {name.replace("_", "."): text for name, text in settings.items()}
    flags = {name: Given(text, "flag -X") for name, text in names.items()}
    flags["processes"] = Given(str(processes), "flag --processes")
    with ExitStack() as keep:
        yield Plan(configure(file=None, environment={}, flags=flags), keep)


def test_ids_and_ports_are_counted_up_and_the_first_log_is_where_it_was() -> None:
    with planned(
        3,
        node_id="5",
        listeners="PLAINTEXT://[::1]:9092,PLAINTEXT://10.0.0.1:9192",
        advertised_listeners="PLAINTEXT://log.example:19092",
        replication_listener="127.0.0.1:9292",
        log_dirs="/srv/log",
    ) as plan:
        told = [entry.broker for entry in plan.brokers]
        assert [sentence.node_id for sentence in told] == [5, 6, 7]
        assert told[2].listeners == ("PLAINTEXT://[::1]:9094", "PLAINTEXT://10.0.0.1:9194")
        assert told[1].advertised_listeners == ("PLAINTEXT://log.example:19093",)
        assert [item.replication_listener[-4:] for item in told] == ["9292", "9293", "9294"]
        assert [element.log for element in plan.brokers] == ["log", "log-6", "log-7"]
        assert told[0].sink_staging_directory == "/srv/log/staging"
        assert told[2].sink_staging_directory == "/srv/log/staging-7"
        assert plan.admin == ("127.0.0.1", 9644)
        ports = {port for _, port in plan.admins.values()}
        assert len(ports) == 3
        assert 0 not in ports
        assert plan.ready_line() == (
            "penstock ready kafka=[::1]:9092,[::1]:9093,[::1]:9094 admin=127.0.0.1:9644"
        )


def test_a_free_port_stays_a_brokers_own() -> None:
    with planned(2, listeners="PLAINTEXT://127.0.0.1:0", admin_listener="") as plan:
        ports = [int(entry.broker.listeners[0].rpartition(":")[2]) for entry in plan.brokers]
        assert len({*ports}) == 2
        with socket.create_server(("127.0.0.1", ports[0])):
            pass
        with socket.create_server(("127.0.0.1", ports[0])):
            pass
        assert plan.admin is None
        assert {item.broker.admin_listener for item in plan.brokers} == {""}


def test_the_front_has_the_tls_of_the_admin_address() -> None:
    trusted = {"admin_security_protocol": "SSL", "admin_loopback_trusted": "true"}
    with planned(2, **trusted) as plan, planned(2) as other:
        assert {entry.broker.admin_security_protocol for entry in plan.brokers} == {"PLAINTEXT"}
        assert {item.front_secret for item in plan.brokers} == {plan.secret}
        assert plan.secret != other.secret
        assert plan.secret.hex() not in repr(plan.brokers[0])
        assert plan.ready_line().endswith(" admin=127.0.0.1:9644 admin.loopback.trusted=true")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"listeners": "A://h:9092,B://h:9093"}, r"h:9093': is the address of broker 1 and of"),
        ({"listeners": "A://127.0.0.1:9643"}, r"127\.0\.0\.1:9644'.*of admin\.listener and of"),
        ({"listeners": "A://h:65535"}, r"must leave room for port 65536 of a later process"),
        ({"node_id": "2147483647"}, r"node\.id.*must leave room for 2147483648"),
    ],
)
def test_what_cannot_be_counted_up(settings: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidSetting, match=said), planned(2, **settings):
        pass


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"processes": "0"}, r"processes.*0.*1"),
        ({"processes": "33"}, r"processes.*33.*32"),
        ({"processes": "two"}, r"processes.*two"),
    ],
)
def test_numbers_of_processes_that_there_cannot_be(flags: dict[str, str], said: str) -> None:
    given = {name: Given(text, "flag --processes") for name, text in flags.items()}
    with pytest.raises(InvalidConfiguration, match=said):
        configure(file=None, environment={}, flags=given)


def test_brokers_with_a_database_of_their_own_are_started_one_by_one() -> None:
    postgres = {"control_url": "postgresql://h/n", "diskless_storage_url": "s3://b"}
    said = r"processes = 2.*control\.url"
    with pytest.raises(InvalidConfiguration, match=said), planned(2, **postgres):
        pass


async def _with_topics(path: Path) -> None:
    plane = SqliteControlPlane(path)
    await plane.start()
    for broker in (1, 2, 3):
        await plane.register_broker(
            broker_id=broker, host="h", port=1, rack=None, incarnation=UUID(int=broker)
        )
    for name, replicas, configs in (
        ("first", [[1], [1]], {}),
        ("spread", [[1], [3]], {}),
        ("anywhere", [[2]], {"diskless.enable": "true"}),
    ):
        await plane.create_topic(
            name=name, topic_id=UUID(int=len(name)), partitions=replicas, configs=configs
        )
    await plane.close()


def test_partitions_whose_brokers_would_not_run_are_named(tmp_path: Path) -> None:
    asyncio.run(_with_topics(tmp_path / "control.sqlite"))
    check_held([1, 2, 3], tmp_path)
    check_held([1, 3], tmp_path)
    said = r"1 partitions, first spread-1, have replicas on brokers 3.*--processes 3"
    with pytest.raises(BrokersMissing, match=said):
        check_held([1, 2], tmp_path)
    with pytest.raises(BrokersMissing, match=r"3 partitions.*brokers 1,.*node\.id = 1"):
        check_held([2, 3], tmp_path)
