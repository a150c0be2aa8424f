"""The admin interface answers JSON, with the status and the cause when it cannot."""

import asyncio
import http.client
import json
import re
from typing import Any
from uuid import UUID

import pytest

from penstock.base.errors import InvalidSetting
from penstock.base.http_listener import parse_address
from penstock.base.metrics import Metric, Sample
from penstock.broker.admin_app import build_app
from penstock.broker.admin_server import AdminServer
from penstock.broker.groups.runtime.saving import owner_of
from penstock.broker.server import BrokerServer
from tests.broker.handlers.test_topics import create, creation


def _request(
    address: tuple[str, int], path: str, method: str, headers: dict[str, str], body: bytes | None
) -> tuple[int, str, bytes]:
    connection = http.client.HTTPConnection(*address, timeout=60)
    try:
        connection.request(method, path, body=body, headers=headers)
        response = connection.getresponse()
        return response.status, response.headers["content-type"], response.read()
    finally:
        connection.close()


async def fetch(
    admin: AdminServer,
    path: str,
    method: str = "GET",
    headers: dict[str, str] | None = None,
    body: bytes | None = None,
) -> tuple[int, Any]:
    status, kind, data = await asyncio.to_thread(
        _request, admin.address, path, method, headers or {}, body
    )
    return status, json.loads(data) if kind == "application/json" else data.decode()


def failing(answer: dict[str, Any]) -> dict[str, str]:
    """Return the causes of failed checks by name."""
    return {check["name"]: check["cause"] for check in answer["checks"] if not check["ok"]}


async def test_healthy(admin: AdminServer) -> None:
    for path in ("/health", "/livez", "/readyz"):
        status, answer = await fetch(admin, path)
        assert (status, answer["status"]) == (200, "ok")
        assert all(check["ok"] for check in answer["checks"])


async def test_stopping_is_alive_but_not_ready(broker: BrokerServer, admin: AdminServer) -> None:
    broker.stopping.set()
    assert (await fetch(admin, "/livez"))[0] == 200
    status, answer = await fetch(admin, "/readyz")
    assert status == 503
    assert failing(answer) == {"serving": "the broker is stopping"}


async def test_a_partition_without_a_log_is_named(broker: BrokerServer, admin: AdminServer) -> None:
    await create(broker, creation("orders", 2))
    broker.partitions.topics["orders"].partitions[1] = None
    status, answer = await fetch(admin, "/health")
    assert status == 503
    assert "orders-1" in json.dumps(answer)


async def test_metrics(broker: BrokerServer, admin: AdminServer) -> None:
    metric = Metric(name="some_bytes", kind="gauge", doc="Some.", labels=("topic",))
    broker.registry.add(lambda: [Sample(metric, 3, ("a",))])
    status, text = await fetch(admin, "/metrics")
    assert status == 200
    assert 'some_bytes{topic="a"} 3.0' in text


async def test_cluster_and_topics(broker: BrokerServer, admin: AdminServer) -> None:
    await create(broker, creation("orders", 2, configs=({"name": "retention.ms", "value": "9"},)))
    status, cluster = await fetch(admin, "/v1/cluster")
    assert status == 200
    assert cluster["cluster_id"] == broker.cluster.image.cluster_id
    assert (cluster["topic_count"], cluster["partition_count"]) == (1, 2)
    status, topics = await fetch(admin, "/v1/topics")
    assert [topic["topic"] for topic in topics["topics"]] == ["orders"]
    status, topic = await fetch(admin, "/v1/topics/orders")
    assert topic["configs"] == {"retention.ms": "9"}
    assert [row["partition"] for row in topic["partitions"]] == [0, 1]
    assert topic["partitions"][0]["high_watermark"] == 0


async def test_extents_of_an_empty_partition(broker: BrokerServer, admin: AdminServer) -> None:
    await create(broker, creation("orders"))
    status, answer = await fetch(admin, "/v1/topics/orders/partitions/0/extents")
    assert status == 200
    assert answer["topic_id"] == str(broker.partitions.topics["orders"].topic.topic_id)
    assert answer["extents"] == []
    assert answer["machine_id"]


@pytest.mark.parametrize(
    ("path", "status", "error"),
    [
        ("/v1/topics/gone", 404, "unknown_topic_or_partition"),
        ("/v1/topics/gone/partitions/0/extents", 404, "unknown_topic_or_partition"),
        ("/v1/topics/orders/partitions/7/extents", 404, "unknown_topic_or_partition"),
        ("/v1/topics/orders/partitions/x/extents", 400, "invalid_request"),
        ("/v1/topics/orders/partitions/-1/extents", 400, "invalid_request"),
        (f"/v1/topics/orders/partitions/{2**31}/extents", 400, "invalid_request"),
        ("/v1/topics/orders/partitions/0/extents?start=x", 400, "invalid_request"),
        ("/v1/topics/orders/partitions/0/extents?start=" + "9" * 5000, 400, "invalid_request"),
        ("/v1/topics/orders/partitions/0/extents?start=2&end=1", 400, "invalid_request"),
        ("/v1/topics/orders/partitions/0/extents?start=5&end=9", 416, "offset_out_of_range"),
        ("/v1/groups/gone", 404, "group_id_not_found"),
        ("/nowhere", 404, "resource_not_found"),
    ],
)
async def test_errors_are_json(
    broker: BrokerServer, admin: AdminServer, path: str, status: int, error: str
) -> None:
    await create(broker, creation("orders"))
    found, answer = await fetch(admin, path)
    assert (found, answer["error"]) == (status, error)
    assert answer["message"]


async def test_a_group_of_another_broker_is_not_reported_missing(
    broker: BrokerServer, admin: AdminServer
) -> None:
    await broker.control.register_broker(
        broker_id=2, host="127.0.0.1", port=9093, rack=None, incarnation=UUID(int=2)
    )
    await broker.cluster.refresh()
    groups = [f"g{number}" for number in range(100)]
    owners = {owner_of(broker.cluster.image, name).broker_id: name for name in groups}
    assert (await fetch(admin, f"/v1/groups/{owners[1]}"))[0] == 404
    status, answer = await fetch(admin, f"/v1/groups/{owners[2]}")
    assert (status, answer["error"]) == (421, "not_coordinator")
    assert "broker 2 coordinates" in answer["message"]


async def test_groups_that_may_be_anothers_now_are_no_empty_list(
    broker: BrokerServer, admin: AdminServer
) -> None:
    broker.coordinator.suspend()
    for path in ("/v1/groups", "/v1/groups/g"):
        status, answer = await fetch(admin, path)
        assert (status, answer["error"]) == (503, "coordinator_not_available")
        assert "cannot reach the control plane" in answer["message"]
    assert "penstock_group_metrics_missing 1.0" in (await fetch(admin, "/metrics"))[1]


async def test_sizes_of_other_brokers_are_null(broker: BrokerServer, admin: AdminServer) -> None:
    await broker.control.create_topic(
        name="far", topic_id=UUID(int=7), partitions=[[1]], configs={"diskless.enable": "true"}
    )
    _, answer = await fetch(admin, "/v1/topics")
    (far,) = answer["topics"]
    assert (far["diskless"], far["size_bytes"], far["offset_span"]) == (True, None, None)


async def test_every_route_refuses_parameters_that_it_does_not_know(
    broker: BrokerServer, admin: AdminServer
) -> None:
    app: Any = build_app(broker.assembly, admin.access)
    routes = app._app.routes
    assert len(routes) >= 18
    for route in routes:
        path = re.sub(r"\{[^}]*\}", "x", route.path)
        method = min(route.methods - {"HEAD"})
        status, answer = await fetch(admin, f"{path}?key=abc", method)
        assert (status, answer["error"]) == (400, "invalid_request"), route
        assert "unknown parameter 'key'; " in answer["message"]


@pytest.mark.parametrize(
    ("method", "path", "named"),
    [
        ("GET", "/v1/topics?limit=1", "this path takes no parameters"),
        ("GET", "/v1/topics/a/partitions/0/extents?from=1", "known: start, end"),
        ("GET", "/v1/topics/a/partitions/0/extents?start=1&start=2", "'start': given more than"),
        ("DELETE", "/v1/sinks/q?abandon=yes", "abandon = 'yes': must be true or false"),
    ],
)
async def test_says_which_parameters_there_are(
    broker: BrokerServer, admin: AdminServer, method: str, path: str, named: str
) -> None:
    await create(broker, creation("a"))
    status, answer = await fetch(admin, path, method)
    assert (status, answer["error"]) == (400, "invalid_request")
    assert named in answer["message"]


async def test_refuses_large_bodies_and_other_methods(admin: AdminServer) -> None:
    status, answer = await fetch(admin, "/v1/topics", "POST", {"content-length": "999999999"}, b"x")
    assert (status, answer["error"]) == (413, "invalid_request")
    status, answer = await fetch(admin, "/v1/topics", "DELETE")
    assert status == 405
    assert answer["message"]


async def test_a_failing_view_is_an_error_of_its_own(
    broker: BrokerServer, admin: AdminServer
) -> None:
    await create(broker, creation("orders"))
    broker.partitions.topics["orders"].partitions = None  # type: ignore[assignment]
    status, answer = await fetch(admin, "/v1/topics")
    assert (status, answer["error"]) == (500, "unknown_server_error")
    assert (await fetch(admin, "/v1/cluster"))[0] == 200


@pytest.mark.parametrize("text", ["", "9644", ":9644", "host:x", "host:70000", "host"])
def test_refuses_addresses(text: str) -> None:
    with pytest.raises(InvalidSetting, match=r"admin\.listener"):
        parse_address(text, setting="admin.listener")


def test_reads_addresses() -> None:
    assert parse_address("127.0.0.1:0", setting="admin.listener") == ("127.0.0.1", 0)
    assert parse_address("[::1]:9644", setting="admin.listener") == ("::1", 9644)
