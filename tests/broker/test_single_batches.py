"""Requests with one ordinary batch, which take a short path, beside all others."""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from penstock.base.errors import UnavailableError
from penstock.broker.handlers.produce import Produce
from penstock.broker.server import BrokerServer
from penstock.wire.kafka.produce import ProduceRequest
from tests.broker.conftest import StartBroker
from tests.broker.fake_store import FakeStore
from tests.broker.test_authorisation import Recording
from tests.broker.test_quotas import limit
from tests.broker.wire_client import WireClient, batch, produce_request

Connect = Callable[[BrokerServer], Awaitable[WireClient]]
VERSIONS = (3, 8, 9, 12)
SHORT = 9
GOOD = batch(b"one")
DAMAGED = GOOD[:-1] + b"\xff"
CONTROL = batch(b"one", attributes=0x20)
TRANSACTIONAL = batch(b"one", attributes=0x10)


async def _call(
    client: WireClient, version: int, request: Mapping[str, Any], *, general: bool = False
) -> Any:
    """Send a request; with `general`, a byte follows it, which the short path does not accept."""
    frame = client.frame("Produce", version, request)
    if general:
        frame = struct.pack(">i", len(frame) - 3) + frame[4:] + b"\0"
    client.writer.write(frame)
    return await client.response("Produce", version)


def _fields(answer: Any) -> tuple[Any, ...]:
    result = answer.responses[0].partition_responses[0]
    return (
        result.error_code.name,
        getattr(result, "error_message", None),
        result.base_offset,
        getattr(result, "log_start_offset", None),
        getattr(result, "record_errors", None),
    )


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("error", "request_of"),
    [
        ("none", lambda: produce_request("t", GOOD)),
        ("none", lambda: produce_request("t", GOOD, acks=1)),
        ("corrupt_message", lambda: produce_request("t", DAMAGED)),
        ("invalid_record", lambda: produce_request("t", CONTROL)),
        ("invalid_record", lambda: produce_request("t", GOOD, GOOD)),
        ("invalid_record", lambda: produce_request("t", b"")),
        ("invalid_required_acks", lambda: produce_request("t", GOOD, acks=2)),
        ("unknown_topic_or_partition", lambda: produce_request("t", GOOD, partition=1)),
        ("unknown_topic_or_partition", lambda: produce_request("t", GOOD, partition=-1)),
        ("unknown_topic_or_partition", lambda: produce_request("none", GOOD)),
    ],
)
async def test_the_response_is_that_of_the_general_path(
    broker: BrokerServer,
    client: WireClient,
    version: int,
    error: str,
    request_of: Callable[[], dict[str, Any]],
) -> None:
    await client.create("t")
    general = _fields(await _call(client, version, request_of(), general=True))
    short = _fields(await _call(client, version, request_of()))
    appended = 1 if error == "none" else 0
    assert general[0] == short[0] == error
    assert short[2] == general[2] + appended
    assert (*short[:2], *short[3:]) == (*general[:2], *general[3:])
    assert sum(broker.metrics.latency["Produce"].counts) == 2
    failures = sum(count for (api, _), count in broker.metrics.errors.items() if api == "Produce")
    assert failures == 2 * (1 - appended)
    assert (await client.fetch("t")).high_watermark == 2 * appended


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[ProduceRequest]:
    """Requests that took the general path."""
    append, requests = Produce._append, []

    def noted(self: Produce, context: Any, request: ProduceRequest, *rest: Any) -> Any:
        requests.append(request)
        return append(self, context, request, *rest)

    monkeypatch.setattr(Produce, "_append", noted)
    return requests


@pytest.mark.parametrize("version", VERSIONS)
async def test_only_one_ordinary_batch_takes_the_short_path(
    client: WireClient, taken: list[ProduceRequest], version: int
) -> None:
    await client.create("t", partitions=2)
    await client.produce("t", GOOD, version=version)
    assert not taken
    await _call(client, version, produce_request("t", GOOD), general=True)
    assert len(taken) == 1
    rows = [{"index": index, "records": GOOD} for index in range(2)]
    wide = {"acks": -1, "timeout": 1000, "topic_data": [{"name": "t", "partition_data": rows}]}
    await client.call("Produce", version, wide)
    assert len(taken) == 2


async def test_rights_and_quotas_apply_on_the_short_path(
    start_broker: StartBroker, connect: Connect, taken: list[ProduceRequest]
) -> None:
    broker = await start_broker({"quota.window.num": 2})
    client = await connect(broker)
    await client.create("t")
    await limit(client, "producer_byte_rate", 100)
    recording = Recording.on(broker)
    assert (await client.produce("t", GOOD)).error_code.name == "none"
    assert recording.asked == [("write", "topic", "t")]
    damaged = produce_request("t", batch(b"x" * 200)[:-1] + b"y")
    answer = await client.call("Produce", SHORT, damaged)
    assert _fields(answer)[0] == "corrupt_message"
    assert answer.throttle_time.total_seconds() > 0
    assert not taken


async def test_forbidden_requests_are_left_to_the_general_path(
    broker: BrokerServer, client: WireClient, taken: list[ProduceRequest]
) -> None:
    await client.create("t")
    recording = Recording.on(broker)
    recording.refuse([("write", "topic")])
    answer = await client.produce("t", GOOD)
    assert answer.error_code.name == "topic_authorization_failed"
    recording.refuse([("write", "transactional_id")])
    answer = await client.produce("t", TRANSACTIONAL)
    assert answer.error_code.name == "transactional_id_authorization_failed"
    assert len(taken) == 1
    recording.refuse([])
    assert (await client.fetch("t")).high_watermark == 0


@pytest.mark.parametrize("general", [True, False])
async def test_a_timed_out_request_is_answered_once(
    start_broker: StartBroker, connect: Connect, fake_store: FakeStore, general: bool
) -> None:
    broker = await start_broker(store=fake_store)
    client = await connect(broker)
    await client.create("t")
    fake_store.held = True
    request = {**produce_request("t", GOOD), "timeout": 1}
    name, message, offset, _, _ = _fields(await _call(client, 9, request, general=general))
    assert (name, offset) == ("request_timed_out", -1)
    assert message == "the sync took longer than the timeout"
    assert not broker.produce_waiting
    fake_store.held = False
    fake_store.commit_pending()
    await client.call("ApiVersions", 0, {})  # the next response is that of the next request
    assert (await client.fetch("t")).high_watermark == 1


@pytest.mark.parametrize("general", [True, False])
async def test_a_batch_whose_sync_failed_is_not_acknowledged(
    start_broker: StartBroker, connect: Connect, fake_store: FakeStore, general: bool
) -> None:
    broker = await start_broker(store=fake_store)
    client = await connect(broker)
    await client.create("t")
    fake_store.sync_error = UnavailableError("the journal cannot be synced")
    name, message, offset, _, _ = _fields(
        await _call(client, 9, produce_request("t", GOOD), general=general)
    )
    assert (name, offset) == ("kafka_storage_error", -1)
    assert message == "the journal cannot be synced"
    assert not broker.produce_waiting
