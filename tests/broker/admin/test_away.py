"""A broker without its database or object store reports it, and returns no empty lists."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.base.errors import PenstockError
from penstock.client import Client
from penstock.diskless.identity import KEY
from penstock.testing import Broker
from tests.broker.admin.test_admin import failing
from tests.postgres import PostgresServer, postgres_server
from tests.s3 import S3Server, s3_server

SECONDS = 60.0
PACE = {"broker.session.timeout.ms": 1_500, "broker.heartbeat.interval.ms": 100}


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A PostgreSQL server of these tests' own, which they stop, freeze, and leave running."""
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="module")
def store() -> Iterator[S3Server]:
    """An S3 server of these tests' own."""
    with s3_server() as store:
        yield store


def ask(broker: Broker, path: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(broker.admin_url + path, timeout=SECONDS) as answer:
            status, body = answer.status, answer.read()
    except urllib.error.HTTPError as error:
        status, body = error.code, error.read()
    return status, body.decode() if path == "/metrics" else json.loads(body)


def until_ready(broker: Broker, expected: int) -> Any:
    """The answer of `/readyz`, once its status is this one."""
    deadline = time.monotonic() + SECONDS
    while True:
        status, answer = ask(broker, "/readyz")
        if status == expected:
            return answer
        assert time.monotonic() < deadline, answer
        time.sleep(0.05)


def until_raised(call: Callable[[], object], code: str) -> PenstockError:
    """The error of a call, once it has this code; until then the call may succeed."""
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            found = call()
        except PenstockError as error:
            if error.code == code:
                return error
            found = error
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def impatient(broker: Broker) -> Client:
    """A client that makes one attempt, and waits for it."""
    return broker.client(request_timeout_ms=60_000, api_timeout_ms=1)


def no_list_is_empty(broker: Broker, client: Client) -> None:
    """Ask for everything whose source is away, all at once: each waits for its time-out."""

    def refused(path: str) -> None:
        status, said = ask(broker, path)
        assert (status, said["error"]) == (503, "coordinator_not_available"), path
        assert said["message"]

    until_raised(client.list_groups, "coordinator_not_available")
    until_raised(lambda: client.describe_group("billing"), "coordinator_not_available")
    with ThreadPoolExecutor() as threads:
        asked: list[Future[Any]] = [
            threads.submit(refused, path)
            for path in ("/v1/groups", "/v1/groups/billing", "/v1/topics", "/v1/sinks")
        ]
        asked += [
            threads.submit(until_raised, call, code)
            for call, code in (
                (lambda: client.committed("billing"), "coordinator_not_available"),
                (lambda: client.describe_topic("unheard-of"), "leader_not_available"),
                (lambda: client.create_topic("new"), "coordinator_not_available"),
            )
        ]
        scrape = threads.submit(ask, broker, "/metrics")
        for request in asked:
            request.result()
        status, metrics = scrape.result()
    assert status == 200
    assert "penstock_group_metrics_missing 1.0" in metrics
    assert "kafka_consumergroup_lag{" not in metrics


@pytest.mark.parametrize(
    "frozen",
    [pytest.param(frozen, marks=pytest.mark.long) for frozen in (False, True)],
    ids=["stopped", "frozen"],
)
def test_a_database_that_is_away(server: PostgresServer, tmp_path: Path, frozen: bool) -> None:
    places = {"control.url": server.schema(), "diskless.storage.url": tmp_path.as_uri()}
    with Broker({**places, **PACE}) as broker, impatient(broker) as client:
        client.create_topic("orders")
        client.write_arrow("orders", pa.table({"value": ["a"]}))
        client.commit_offsets("billing", {("orders", 0): 1})
        until_ready(broker, 200)
        assert [group.group_id for group in client.list_groups()] == ["billing"]
        server.freeze() if frozen else server.stop()
        try:
            answer = until_ready(broker, 503)
            assert failing(answer)["database"]
            assert set(failing(answer)) == {"database"}
            assert ask(broker, "/health")[0] == 503
            assert ask(broker, "/livez")[0] == 200
            if not frozen:
                assert f"127.0.0.1:{server.port}" in failing(answer)["database"]

            # What clients have open goes on.
            client.write_arrow("orders", pa.table({"value": ["b"]}), idempotent=False)
            assert client.read_arrow("orders").num_rows == 2

            no_list_is_empty(broker, client)
        finally:
            server.freeze(thaw=True) if frozen else server.start()
        until_ready(broker, 200)
        deadline = time.monotonic() + SECONDS
        while ask(broker, "/v1/groups")[0] != 200:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert [group.group_id for group in client.list_groups()] == ["billing"]
        assert client.committed("billing")["orders", 0].offset == 1
        assert "penstock_group_metrics_missing 0.0" in ask(broker, "/metrics")[1]


@pytest.mark.parametrize(
    "used",
    [pytest.param(False, id="only named", marks=pytest.mark.long), pytest.param(True, id="in use")],
)
def test_an_object_store_that_is_frozen(store: S3Server, used: bool) -> None:
    options = ",".join(f"{name}={value}" for name, value in store.options().items())
    settings = {"diskless.storage.url": store.fresh_url(), "diskless.storage.options": options}
    with Broker(settings) as broker, impatient(broker) as client:
        if used:
            client.create_topic("orders", configs={"diskless.enable": "true"})
        until_ready(broker, 200)
        store.freeze()
        try:
            answer = until_ready(broker, 503)
            assert failing(answer) == {"object store": "no answer within 2 s"}
            assert ask(broker, "/livez")[0] == 200
        finally:
            store.freeze(thaw=True)
        until_ready(broker, 200)


def test_a_directory_of_objects_that_was_emptied() -> None:
    with Broker() as broker:
        broker.create_topic("orders", configs={"diskless.enable": "true"})
        until_ready(broker, 200)
        identity = broker.directory / "objects" / KEY
        away = broker.directory / "away"
        identity.rename(away)
        try:
            answer = until_ready(broker, 503)
        finally:
            away.rename(identity)
        assert "It was emptied, or this is another place" in failing(answer)["object store"]
        until_ready(broker, 200)
