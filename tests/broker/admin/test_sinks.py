"""The routes of the exactly-once sink, over a real broker's HTTP."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from penstock.broker.batch_commits.manifest import MANIFEST_BYTES_MAX
from penstock.records.columnar import decode_batches
from penstock.testing import Broker
from tests.broker.batch_commits.sink_client import Part, SinkClient, client_of, encode_blob, log_of
from tests.broker.wire_client import WireClient

BLOB_MAX = 3 << 20


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"sink.staging.blob.max.bytes": BLOB_MAX}) as broker:
        broker.create_topic("t", 2)
        yield broker


@pytest.fixture
def client(broker: Broker) -> SinkClient:
    return client_of(broker, "t")


def raw(broker: Broker, path: str) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(urlsplit(broker.admin_url).netloc, timeout=30)


def test_the_staging_directory_is_returned(broker: Broker, client: SinkClient) -> None:
    status, body = client.request("GET", "/v1/staging")
    assert status == 200
    assert Path(body["directory"]) == broker.directory / "staging"
    assert (broker.directory / "staging" / ".penstock-staging").read_text() == body["token"]
    assert body["blob_max_bytes"] == BLOB_MAX
    assert isinstance(body["machine_id"], str)


def test_a_commit_and_what_is_known_of_it(broker: Broker, client: SinkClient) -> None:
    before = [len(log_of(broker, "t", p)) for p in (0, 1)]
    blob = client.stage("one", [Part("t", 1, ["a", "b"]), Part("t", 0, ["c"])])
    status, body = client.post("team/app.q-1", 4, [blob])
    assert (status, body) == (
        200,
        {
            "query": "team/app.q-1",
            "batch": 4,
            "outcome": "appended",
            "records": 3,
            "offsets": [
                {
                    "topic": "t",
                    "partition": 1,
                    "base_offset": before[1],
                    "next_offset": before[1] + 2,
                },
                {
                    "topic": "t",
                    "partition": 0,
                    "base_offset": before[0],
                    "next_offset": before[0] + 1,
                },
            ],
        },
    )
    assert client.post("team/app.q-1", 4, [blob]).body["outcome"] == "replayed"
    assert client.post("team/app.q-1", 3, []).body == {
        "query": "team/app.q-1",
        "batch": 3,
        "outcome": "replayed",
        "records": 0,
        "offsets": [],
    }
    known = client.sink("team/app.q-1")
    assert (known["owner"], known["batch"], known["state"]) == ("one", 4, "done")
    assert [(p["partition"], p["next_sequence"]) for p in known["partitions"]] == [(1, 2), (0, 1)]
    assert known["partitions"][0]["topic_id"] == client.topic_ids["t"]
    assert known["updated_ms"] > 1_700_000_000_000
    assert known in client.request("GET", "/v1/sinks").body
    metrics = raw(broker, "")
    metrics.request("GET", "/metrics")
    text = metrics.getresponse().read().decode()
    metrics.close()
    assert 'penstock_sink_commits_total{outcome="appended"}' in text
    assert "penstock_sink_open_intents 0.0" in text


def test_a_check_says_what_a_commit_would_and_appends_nothing(
    broker: Broker, client: SinkClient
) -> None:
    before = [len(log_of(broker, "t", p)) for p in (0, 1)]
    blob = client.stage("checked", [Part("t", 1, ["a", "b"])])
    path = "/v1/sinks/checked/commits/0"

    def check(blobs: list[dict[str, Any]], owner: str = "one") -> Any:
        body = json.dumps({"owner": owner, "blobs": blobs}).encode()
        return client.request("POST", f"{path}?check=true", body)

    assert check([blob]).body == {"query": "checked", "batch": 0, "outcome": "checked"}
    assert client.request("GET", "/v1/sinks/checked").status == 404
    assert [len(log_of(broker, "t", p)) for p in (0, 1)] == before
    refused = check([{**blob, "size_bytes": blob["size_bytes"] + 1}])
    assert (refused.status, refused.body["error"]) == (400, "invalid_request")
    assert client.post("checked", 0, [blob]).body["outcome"] == "appended"
    assert check([blob]).body["outcome"] == "checked"
    assert check([blob], owner="two").body["error"] == "producer_fenced"


def test_a_query_is_forgotten(client: SinkClient) -> None:
    assert client.post("forgotten", 9, []).status == 200
    assert client.post("forgotten", 10, [], owner="two").status == 409
    assert client.request("DELETE", "/v1/sinks/forgotten").status == 200
    assert client.request("DELETE", "/v1/sinks/forgotten").status == 404
    assert client.request("GET", "/v1/sinks/forgotten").body["error"] == "resource_not_found"
    assert client.post("forgotten", 0, [], owner="two").body["outcome"] == "appended"


def test_errors_have_their_status(client: SinkClient) -> None:
    blob = client.stage("bad", [Part("t", 0, ["a"])])
    section = blob["sections"][0]

    def posted(**change: object) -> tuple[int, str]:
        answer = client.post("errors", 0, [{**blob, "sections": [{**section, **change}]}])
        assert answer.body["message"]
        return answer.status, answer.body["error"]

    assert posted(topic="nowhere") == (404, "unknown_topic_or_partition")
    assert posted(topic_id="00000000-0000-0000-0000-000000000001") == (
        409,
        "inconsistent_topic_id",
    )
    assert posted(partition=2) == (400, "invalid_request")
    assert posted(records=2) == (400, "invalid_request")
    assert posted(size_bytes=5) == (400, "invalid_request")
    missing = client.post("errors", 0, [{**blob, "name": "not-staged"}])
    assert (missing.status, missing.body["error"]) == (400, "invalid_request")
    for path in ("x%20y/commits/0", "x/commits/-1", "x/commits/9223372036854775808", "x/commits/z"):
        answer = client.request("POST", f"/v1/sinks/{path}", b'{"blobs": []}')
        assert (answer.status, answer.body["error"]) == (400, "invalid_request")
    assert client.request("POST", "/v1/sinks/x/commits/0", b"{").status == 400
    assert client.request("PATCH", "/v1/sinks/x").status == 405
    assert client.sink("errors") is None


def test_blobs_are_uploaded_once(broker: Broker, client: SinkClient) -> None:
    data, _ = encode_blob("up", [Part("t", 0, ["a"])], client.topic_ids, records_per_batch=1)
    first = client.put("up", data)
    assert (first.status, first.body["size_bytes"]) == (201, len(data))
    assert client.put("up", data).status == 409
    assert client.put("up", bytes(BLOB_MAX)).status == 409  # answered although much was sent
    for name in ("..", ".x", "a%2Fb", "../up", "x" * 201):
        assert client.put(name, data).status in (400, 404)
    assert client.put("large", bytes(BLOB_MAX + 1)).status == 413
    names = {path.name for path in (broker.directory / "staging").iterdir()}
    assert "up" in names
    assert "large" not in names


def test_an_upload_of_unknown_size_is_counted(broker: Broker, client: SinkClient) -> None:
    for name, size, status in (("chunked", 2 << 20, 201), ("chunked-2", BLOB_MAX + 1, 413)):
        connection = raw(broker, "")
        chunks = iter([b"x" * (1 << 18)] * (size >> 18) + [b"x" * (size % (1 << 18) or 1)])
        try:
            connection.request("PUT", f"/v1/staging/{name}", body=chunks, encode_chunked=True)
            response = connection.getresponse()
            answer = json.loads(response.read())
        finally:
            connection.close()
        assert response.status == status, answer


def test_an_upload_that_breaks_off_leaves_nothing(broker: Broker, client: SinkClient) -> None:
    connection = raw(broker, "")
    connection.putrequest("PUT", "/v1/staging/broken")
    connection.putheader("content-length", "2000000")
    connection.endheaders()
    connection.send(b"x" * 1_500_000)
    connection.close()
    staging = broker.directory / "staging"
    for _ in range(10_000):
        client.request("GET", "/livez")
        left = [path.name for path in staging.iterdir() if path.name.startswith(".upload-")]
        if not left:
            break
    assert not left
    assert not (staging / "broken").exists()


def test_a_manifest_has_a_limit_of_its_own(client: SinkClient) -> None:
    blob = client.stage("limit", [Part("t", 0, ["a"])])
    padding = b" " * 200_000  # more than admin.request.max.bytes
    body = json.dumps({"blobs": [blob]}).encode() + padding
    assert client.request("POST", "/v1/sinks/limit/commits/0", body).status == 200
    large = b" " * (MANIFEST_BYTES_MAX + 1)
    answer = client.request("POST", "/v1/sinks/limit/commits/1", large)
    assert answer.status == 413
    assert str(MANIFEST_BYTES_MAX) in answer.body["message"]


def test_two_drivers_at_once_over_http(broker: Broker, client: SinkClient) -> None:
    before = len(log_of(broker, "t", 0))
    outcomes: list[str] = []

    def drive(name: str) -> None:
        blob = client.stage(name, [Part("t", 0, [str(n) for n in range(500)])])
        outcomes.append(client.post("both", 0, [blob]).body["outcome"])

    threads = [threading.Thread(target=drive, args=(f"both-{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["appended"] + ["replayed"] * 3
    assert len(log_of(broker, "t", 0)) == before + 500


def test_without_a_staging_directory_there_is_no_sink(tmp_path: Path) -> None:
    """A broker that is embedded without the setting says so."""
    from penstock.broker.admin.sinks import SinkViews
    from penstock.broker.batch_commits.manifest import StagingUnavailable

    class Bare:
        sinks = None

    with pytest.raises(StagingUnavailable, match=r"sink\.staging\.directory is not set"):
        SinkViews._sinks(Bare())  # type: ignore[arg-type]


async def test_a_commit_to_a_diskless_topic_wakes_a_consumer(broker: Broker) -> None:
    broker.create_topic("d", 1, configs={"diskless.enable": "true"})
    client = client_of(broker, "d")
    host, _, port = broker.bootstrap.rpartition(":")
    consumer = await WireClient.connect((host, int(port)))
    waiting = asyncio.create_task(consumer.fetch("d", 0, max_wait=60_000))
    blob = await asyncio.to_thread(client.stage, "diskless", [Part("d", 0, ["a", "b"])])
    status, body = await asyncio.to_thread(client.post, "diskless", 0, [blob])
    assert (status, body["offsets"]) == (
        200,
        [{"topic": "d", "partition": 0, "base_offset": 0, "next_offset": 2}],
    )
    found = await waiting
    assert found.high_watermark == 2
    assert decode_batches(found.records).column("value").to_pylist() == [b"a", b"b"]
    again = await asyncio.to_thread(client.post, "diskless", 0, [blob])
    assert (again.body["outcome"], again.body["offsets"]) == ("replayed", body["offsets"])
    assert client.sink("diskless")["state"] == "done"
    await consumer.close()


@pytest.mark.parametrize(
    "path",
    [
        "/v1/staging/..%2f..%2fescaped",
        "/v1/staging/%2e%2e%2fescaped",
        "/v1/staging/%2e%2e",
        "/v1/staging/../escaped",
        "/v1/staging/a%00b",
        "/v1/staging/a%2fb",
        "/v1/staging/.penstock-staging",
        "/v1/staging/%2fetc%2fescaped",
        "//v1/staging/escaped",
    ],
)
def test_no_path_leads_out_of_the_staging_directory(broker: Broker, path: str) -> None:
    before = sorted(broker.directory.parent.glob("*escaped*"))
    connection = raw(broker, path)
    connection.request("PUT", path, body=b"x" * 100)
    answer = connection.getresponse()
    assert answer.status in (400, 404, 405), answer.read()
    connection.close()
    assert sorted(broker.directory.parent.glob("*escaped*")) == before
    assert not list(broker.directory.rglob("*escaped*"))
