"""Every request is checked by the table of API keys, and rejected in the API's own shape."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator
from typing import Any
from uuid import UUID

import pytest

from penstock.broker.dispatch import HOT
from penstock.broker.fetch.operation import FETCH_WAIT_SECONDS_MAX
from penstock.broker.net.errors import element_answers, error_number
from penstock.broker.requests.access import FIELDS, NAMES
from penstock.broker.server import BrokerServer
from penstock.security import CLUSTER, AclAuthoriser, Principal
from penstock.security.acls import ALL
from penstock.wire.kafka.apis import APIS, Api, Check
from penstock.wire.kafka.schema import Field, Struct, load_struct
from tests.broker.coordination.streams.test_requests import (
    Member,
    describe,
    statuses,
    topology,
)
from tests.broker.wire_client import WireClient, batch, fetch_request
from tests.security.access import Noted, allow

FREE = {
    "ApiVersions", "SaslHandshake", "SaslAuthenticate", "GetTelemetrySubscriptions",
    "PushTelemetry", "RenewDelegationToken", "ExpireDelegationToken",
}  # fmt: skip
TOPIC, GROUP, CLUSTER_CODE, TRANSACTIONAL_ID = 29, 30, 31, 53
TOKEN_REQUEST_NOT_ALLOWED = 64
REFUSALS = {TOPIC, GROUP, CLUSTER_CODE, TRANSACTIONAL_ID, TOKEN_REQUEST_NOT_ALLOWED}
Connect = Callable[[BrokerServer], Awaitable[WireClient]]


class Recording:
    """Rights that note what they are asked, and allow all but what is refused."""

    def __init__(self, refused: Callable[[str, str, str], bool] = lambda *one: False) -> None:
        self.asked: list[tuple[str, str, str]] = []
        self.refused = refused

    @classmethod
    def on(cls, broker: BrokerServer) -> Recording:
        recording = cls()
        broker._dispatcher._rights = lambda principal, host: recording
        broker._dispatcher._asks = True
        return recording

    def refuse(self, refused: Collection[tuple[str | None, str]]) -> None:
        """Refuse these operations on resources of these types, and allow all else."""
        self.refused = lambda operation, kind, _: (operation, kind) in refused

    def allows(self, operation: str, resource_type: str, name: str) -> bool:
        self.asked.append((operation, resource_type, name))
        return not self.refused(operation, resource_type, name)

    def allows_some(self, operation: str, resource_type: str) -> bool:
        return self.allows(operation, resource_type, "*")

    def operations(self, resource_type: str, name: str) -> Collection[str]:
        return ()


@pytest.fixture
def recording(broker: BrokerServer, client: WireClient) -> Recording:
    return Recording.on(broker)


# -- the table ------------------------------------------------------------------------------


def checks() -> Iterator[tuple[Api, int, Check]]:
    for api in APIS.values():
        for version in range(api.served_from, api.maximum + 1):
            yield from ((api, version, check) for check in api.checks if check.asked_of(version))


def test_every_api_says_what_it_needs_in_every_version() -> None:
    named = {(api.name, version) for api, version, _ in checks()}
    for api in APIS.values():
        for version in range(api.served_from, api.maximum + 1):
            assert ((api.name, version) in named) == (api.name not in FREE), api.name


def test_what_the_dispatcher_asks_is_found_in_requests() -> None:
    for api, version, check in checks():
        if check.scope not in ("whole", "each") or check.resource == "cluster":
            continue
        assert api.key not in HOT
        fields = load_struct(api.name, version, "request").fields
        named = [field for field in fields if field.name in FIELDS[check.resource]]
        if check.scope == "whole":
            assert len(named) == 1, api.name
            assert named[0].kind == "string"
        else:
            assert len(named) == 1, api.name
            assert named[0].array, api.name
            assert check.resource == "config" or _names_resources(named[0])


def _names_resources(field: Field) -> bool:
    inner = () if field.struct is None else [item.name for item in field.struct.fields]
    return field.kind == "string" or any(name in inner for name in (*NAMES, "topic_id"))


def test_elements_that_are_refused_have_a_place_in_answers() -> None:
    for api, version, check in checks():
        if check.scope == "each":
            name, answers = element_answers(api, version, ["x"], 29, "no")
            assert len(answers) == 1
            assert name in {
                field.name for field in load_struct(api.name, version, "response").fields
            }


def test_what_is_listed_has_a_name_in_answers() -> None:
    listed = [(api, version) for api, version, check in checks() if check.scope == "listed"]
    assert {api.name for api, _ in listed} == {"ListGroups", "ListTransactions"}
    for api, version in listed:
        structs = [
            item.struct
            for item in load_struct(api.name, version, "response").fields
            if item.struct is not None
        ]
        for struct in structs:
            assert any(field.name in NAMES for field in struct.fields)


# -- every API ------------------------------------------------------------------------------


def transactional(value: bytes) -> bytes:
    """Return a batch with the transactional flag."""
    changed = bytearray(batch(value))
    changed[22] |= 0x10
    return bytes(changed)


def sample(schema: Struct, topic_id: UUID) -> dict[str, Any]:
    """A request that names topic t, and x wherever else something is named."""
    return {field.name: _sample(field, topic_id) for field in schema.fields}


def _sample(field: Field, topic_id: UUID) -> Any:
    if field.name == "cursor" or field.name == "subscribed_topic_regex":
        return None
    if field.name == "forgotten_topics_data":
        return []
    if field.array:
        return [_one(field, topic_id)]
    return _one(field, topic_id)


def _one(field: Field, topic_id: UUID) -> Any:
    if field.struct is not None:
        found = sample(field.struct, topic_id)
        if "topic_id" in found and found.get("name"):
            found["topic_id"] = None
        return found
    if field.kind == "string":
        return "t" if field.name in ("name", "topic", "topic_name", "topic_names") else "x"
    if field.kind == "uuid":
        return topic_id if field.name == "topic_id" else UUID(int=7)
    if field.kind == "records":
        return transactional(b"v")
    if field.kind == "bool":
        return field.name.startswith("include_")
    if field.kind == "bytes":
        return b""
    return {"resource_type": 2, "key_type": 0, "replica_id": -1, "acks": 1, "endpoint_type": 1}.get(
        field.name, 0
    )


def codes(value: Any) -> Iterator[int]:
    """Return all error codes of a response."""
    for name in getattr(value, "__slots__", ()):
        item = getattr(value, name)
        if name.endswith("error_code") and name != "acknowledge_error_code":
            yield int(item)
        elif isinstance(item, tuple):
            for element in item:
                yield from codes(element)


SHOWS_NOTHING: dict[str, Callable[[Any], bool]] = {
    "ListGroups": lambda answer: answer.groups == (),
    "ListTransactions": lambda answer: answer.transaction_states == (),
    "DescribeCluster": lambda answer: answer.cluster_authorized_operations == 0,
    "DescribeLogDirs": lambda answer: answer.results == (),
}
"""What a principal that may do nothing is answered without an error, in some versions."""

WITHOUT_QUESTIONS = {"ListTransactions", "CreateDelegationToken", "DescribeDelegationToken"}
"""APIs without a question here: nothing is listed, and anonymous clients get no tokens."""


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: str(api.name))
async def test_a_principal_without_rights_is_refused_by_every_api_and_version(
    api: Api, broker: BrokerServer, client: WireClient, recording: Recording
) -> None:
    await client.create("t")
    topic_id = broker.cluster.image.topics["t"].topic_id
    version_before = broker.cluster.image.version
    recording.refused = lambda *one: True
    for version in range(api.served_from, api.maximum + 1):
        recording.asked.clear()
        request = sample(load_struct(api.name, version, "request"), topic_id)
        answer = await client.call(api.name, version, request)
        if api.name in FREE:
            assert recording.asked == []
            continue
        assert recording.asked or api.name in WITHOUT_QUESTIONS, version
        found = set(codes(answer)) - {0}
        if api.name in SHOWS_NOTHING and not found:
            assert SHOWS_NOTHING[api.name](answer)
            continue
        assert found, version
        assert found <= REFUSALS, (version, answer)
    assert broker.cluster.image.version == version_before
    assert broker.partitions.partition("t", 0).log_end_offset == 0


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: str(api.name))
async def test_every_operation_of_the_table_is_asked(
    api: Api, broker: BrokerServer, client: WireClient, recording: Recording
) -> None:
    await client.create("t")
    topic_id = broker.cluster.image.topics["t"].topic_id
    for check in api.checks:
        if (api.name, check.operation, check.resource) in ASKED_OF_WHAT_IS_THERE:
            continue
        version = min(api.maximum, check.until)
        kind = "topic" if check.resource == "config" else check.resource
        refused = {(check.operation, kind), (check.unless, "cluster")}
        if api.name == "InitProducerId":
            refused |= {("idempotent_write", "cluster"), ("write", "topic")}
        recording.refuse(refused)
        recording.asked.clear()
        request = sample(load_struct(api.name, version, "request"), topic_id)
        request.update(SPECIAL.get((api.name, check.resource), {}))
        await client.call(api.name, version, request)
        assert (check.operation, kind) in {call[:2] for call in recording.asked}, check


ASKED_OF_WHAT_IS_THERE = {
    ("DescribeTransactions", "describe", "topic"),
    ("ConsumerGroupDescribe", "describe", "topic"),
    ("ShareGroupDescribe", "describe", "topic"),
    ("StreamsGroupDescribe", "describe", "topic"),
    ("ShareFetch", "read", "topic"),
    ("ShareAcknowledge", "read", "topic"),
    ("CreateTopics", "describe_configs", "topic"),
    ("OffsetFetch", "describe", "topic"),
    ("DescribeShareGroupOffsets", "describe", "topic"),
    ("ListGroups", "describe", "group"),
    ("ListTransactions", "describe", "transactional_id"),
    ("CreateDelegationToken", "create_tokens", "user"),
    ("DescribeDelegationToken", "describe", "delegation_token"),
    ("DescribeDelegationToken", "describe_tokens", "user"),
}
"""What needs something that is there; tests of its own have it."""
SPECIAL: dict[tuple[str, str], dict[str, Any]] = {
    ("FindCoordinator", "transactional_id"): {"key_type": 1},
    ("FindCoordinator", "cluster"): {"key_type": 2},
    ("InitProducerId", "cluster"): {"transactional_id": None},
    ("InitProducerId", "topic"): {"transactional_id": None},
}


# -- bindings -------------------------------------------------------------------------------


@pytest.fixture
def authoriser(broker: BrokerServer) -> AclAuthoriser:
    """Everybody is ANONYMOUS here, and may create topics."""
    authoriser = AclAuthoriser(super_users=["User:root"])
    broker.authoriser = broker.assembly.authoriser = authoriser
    broker._dispatcher._rights = authoriser.rights
    broker._dispatcher._asks = True
    return authoriser


@pytest.fixture
async def root(broker: BrokerServer, connect: Connect, authoriser: AclAuthoriser) -> WireClient:
    return await connect_as("root", broker, connect)


async def connect_as(user: str, broker: BrokerServer, connect: Connect) -> WireClient:
    """A client that has authenticated."""
    client = await connect(broker)
    await client.call("ApiVersions", 0, {})
    list(broker._connections)[-1].principal = Principal("User", user)
    return client


@pytest.fixture
async def a(broker: BrokerServer, connect: Connect, authoriser: AclAuthoriser) -> WireClient:
    return await connect_as("a", broker, connect)


async def test_elements_that_are_refused_stand_where_they_stood(
    root: WireClient, a: WireClient, authoriser: AclAuthoriser
) -> None:
    for name in ("t1", "t2", "t3"):
        await root.create(name)
    authoriser.replace([allow("describe", "topic", "t2")])
    partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
    names = ["t1", "t2", "t3"]
    request = {
        "replica_id": -1, "isolation_level": 0, "timeout": 0,
        "topics": [{"name": name, "partitions": [partition]} for name in names],
    }  # fmt: skip
    answer = await a.call("ListOffsets", 7, request)
    assert [topic.name for topic in answer.topics] == names
    assert [int(topic.partitions[0].error_code) for topic in answer.topics] == [TOPIC, 0, TOPIC]


async def test_a_missing_topic_looks_like_an_invisible_one(
    root: WireClient, a: WireClient, authoriser: AclAuthoriser
) -> None:
    await root.create("t1")
    authoriser.replace([allow("describe", "topic", "seen", pattern_type="prefixed")])
    wanted = [{"name": name} for name in ("t1", "t2", "seen-not")]
    request = {"topics": wanted, "allow_auto_topic_creation": False}
    answer = await a.call("Metadata", 12, {**request, "include_topic_authorized_operations": 1})
    assert [(topic.name, int(topic.error_code)) for topic in answer.topics] == [
        ("t1", TOPIC), ("t2", TOPIC), ("seen-not", 3),
    ]  # fmt: skip
    assert answer.topics[0].topic_id is None
    everything = await a.call("Metadata", 12, {**request, "topics": None})
    assert everything.topics == ()
    assert everything.brokers
    gone = await a.call("DeleteTopics", 5, {"topic_names": ["t1", "t2", "seen-not"], "timeout": 9})
    assert [int(response.error_code) for response in gone.responses] == [TOPIC, TOPIC, 3]


async def test_topics_are_created_with_permission_only(
    broker: BrokerServer, a: WireClient, authoriser: AclAuthoriser
) -> None:
    authoriser.replace([allow("describe", "topic", "*"), allow("create", "topic", "mine")])
    request = {"topics": [{"name": "mine"}, {"name": "yours"}], "allow_auto_topic_creation": True}
    answer = await a.call("Metadata", 9, request)
    assert [int(topic.error_code) for topic in answer.topics] == [0, TOPIC]
    assert list(broker.cluster.image.topics) == ["mine"]
    created = (await a.create("other")).topics[0]
    assert int(created.error_code) == TOPIC
    authoriser.replace([allow("create", "cluster", CLUSTER)])
    created = (await a.create("other")).topics[0]
    assert int(created.error_code) == 0
    assert int(created.topic_config_error_code) == TOPIC
    assert (created.num_partitions, created.configs) == (-1, ())


async def test_a_right_that_is_taken_holds_for_the_next_request_of_a_session(
    root: WireClient, a: WireClient, authoriser: AclAuthoriser
) -> None:
    for name in ("t1", "t2"):
        await root.create(name)
        await root.produce(name, batch(b"v"))
    authoriser.replace([allow("read", "topic", "t", pattern_type="prefixed")])
    wanted = fetch_request({("t1", 0): 0, ("t2", 0): 0}, session_id=0, session_epoch=0)
    first = await a.call("Fetch", 12, wanted)
    assert all(response.partitions[0].records for response in first.responses)
    authoriser.replace([allow("read", "topic", "t1")])
    follow = fetch_request({}, session_id=first.session_id, session_epoch=1)
    second = await a.call("Fetch", 12, follow)
    found = {response.topic: response.partitions[0] for response in second.responses}
    assert found["t1"].records
    assert int(found["t2"].error_code) == TOPIC
    assert not found["t2"].records


async def test_a_session_of_another_principal_is_unknown(
    root: WireClient, a: WireClient, authoriser: AclAuthoriser
) -> None:
    await root.create("t1")
    authoriser.replace([allow("read", "topic", "t1")])
    opening = fetch_request({("t1", 0): 0}, session_id=0, session_epoch=0)
    opened = await root.call("Fetch", 12, opening)
    for epoch, error in ((1, 70), (-1, 0), (0, 0)):
        other = fetch_request({("t1", 0): 0}, session_id=opened.session_id, session_epoch=epoch)
        answer = await a.call("Fetch", 12, other)
        assert int(answer.error_code) == error
        assert answer.session_id != opened.session_id
    follow = fetch_request({}, session_id=opened.session_id, session_epoch=1)
    assert int((await root.call("Fetch", 12, follow)).error_code) == 0


@pytest.mark.parametrize("awaited", [True, False], ids=["records", "the end of the wait"])
async def test_a_fetch_that_waits_loses_the_right_that_is_taken_meanwhile(
    broker: BrokerServer,
    root: WireClient,
    a: WireClient,
    authoriser: AclAuthoriser,
    awaited: bool,
) -> None:
    broker.assembly.audit = audit = Noted()
    await root.create("t1")
    authoriser.replace([allow("read", "topic", "t1")])
    wanted = fetch_request({("t1", 0): 0}, max_wait=60_000, min_bytes=1)
    waiting = asyncio.ensure_future(a.call("Fetch", 12, wanted))
    while not len(broker.fetch_hub):
        await asyncio.sleep(0)
    authoriser.replace([])
    if awaited:
        await root.produce("t1", batch(b"written later"))
    else:
        broker.fetch_hub.finish_all()
    (topic,) = (await waiting).responses
    assert int(topic.partitions[0].error_code) == TOPIC
    assert not topic.partitions[0].records
    assert [event.resources for event in audit.events if event.event == "denial"] == [["t1"]]


async def test_a_wait_ends_at_the_limit(broker: BrokerServer, client: WireClient) -> None:
    loop, waits = asyncio.get_running_loop(), list[float]()

    def call_later(seconds: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        waits.append(seconds)
        return loop.call_later(seconds, call)

    broker.fetch_hub.attach(loop.call_soon, call_later)
    await client.create("t")
    wanted = fetch_request({("t", 0): 0}, max_wait=2**31 - 1)
    waiting = asyncio.ensure_future(client.call("Fetch", 12, wanted))
    while not waits:
        await asyncio.sleep(0)
    broker.fetch_hub.finish_all()
    await waiting
    assert waits == [FETCH_WAIT_SECONDS_MAX]


async def test_authorised_operations_are_returned(
    root: WireClient, a: WireClient, authoriser: AclAuthoriser
) -> None:
    await root.create("t1")
    authoriser.replace([allow("write", "topic", "t1"), allow("describe", "cluster", CLUSTER)])
    request = {
        "topics": [{"name": "t1"}], "allow_auto_topic_creation": False,
        "include_cluster_authorized_operations": True,
        "include_topic_authorized_operations": True,
    }  # fmt: skip
    answer = await a.call("Metadata", 9, request)
    assert answer.topics[0].topic_authorized_operations == 1 << 4 | 1 << 8
    assert answer.cluster_authorized_operations == 1 << 8
    answer = await root.call("Metadata", 9, request)
    assert answer.topics[0].topic_authorized_operations == 0b1101_1111_1000 & ~(1 << 9)


async def test_an_idempotent_producer_needs_one_topic_that_it_may_write(
    a: WireClient, authoriser: AclAuthoriser
) -> None:
    request = {"transactional_id": None, "transaction_timeout": 1000, "producer_id": -1,
               "producer_epoch": -1}  # fmt: skip
    for bindings, expected in (
        ([], CLUSTER_CODE),
        ([allow("read", "topic", "t")], CLUSTER_CODE),
        ([allow("write", "topic", "t")], 0),
        ([allow(ALL, "topic", "t")], 0),
        ([allow("idempotent_write", "cluster", CLUSTER)], 0),
    ):
        authoriser.replace(bindings)
        answer = await a.call("InitProducerId", 4, request)
        assert int(answer.error_code) == expected


async def test_partitions_of_a_transaction_are_added_together_or_not(
    root: WireClient, a: WireClient, authoriser: AclAuthoriser
) -> None:
    for name in ("t1", "t2"):
        await root.create(name)
    authoriser.replace([allow("write", "transactional_id", "x"), allow("write", "topic", "t1")])
    answer = await a.call(
        "AddPartitionsToTxn",
        3,
        {
            "v3_and_below_transactional_id": "x",
            "v3_and_below_producer_id": 1,
            "v3_and_below_producer_epoch": 0,
            "v3_and_below_topics": [
                {"name": "t1", "partitions": [0]}, {"name": "t2", "partitions": [0]},
            ],
        },
    )  # fmt: skip
    found = {
        result.name: int(result.results_by_partition[0].partition_error_code)
        for result in answer.results_by_topic_v3_and_below
    }
    assert found == {"t1": error_number("operation_not_attempted"), "t2": TOPIC}


async def test_a_regular_expression_matches_what_the_member_may_describe(
    root: WireClient, a: WireClient, authoriser: AclAuthoriser, broker: BrokerServer
) -> None:
    for name in ("t1", "t2"):
        await root.create(name)
    authoriser.replace([allow("read", "group", "g"), allow("read", "topic", "t1")])
    beat = {
        "group_id": "g", "member_id": str(UUID(int=3)), "member_epoch": 0, "instance_id": None,
        "rack_id": None, "rebalance_timeout": 10_000, "subscribed_topic_names": [],
        "subscribed_topic_regex": "t.*", "server_assignor": None, "topic_partitions": [],
    }  # fmt: skip
    async with asyncio.timeout(60):
        while True:
            answer = await a.call("ConsumerGroupHeartbeat", 1, beat)
            if answer.assignment is not None and answer.assignment.topic_partitions:
                break
            beat |= {"member_epoch": max(answer.member_epoch, 0)}
            await asyncio.sleep(0.05)
    (assigned,) = answer.assignment.topic_partitions
    assert assigned.topic_id == broker.cluster.image.topics["t1"].topic_id


async def test_internal_topics_of_streams_need_the_right_to_create_them(
    root: WireClient, a: WireClient, authoriser: AclAuthoriser, broker: BrokerServer
) -> None:
    await root.create("lines")
    topics = [allow("describe", "topic", name) for name in ("lines", "app-words", "app-counts")]
    member = Member(a, "a")
    assert (await member.beat()).error_code == GROUP
    authoriser.replace([allow("read", "group", "app"), *topics[1:]])
    assert (await member.beat()).error_code == TOPIC
    authoriser.replace([allow("read", "group", "app"), *topics])
    answer = await member.beat()
    assert "Unauthorized to CREATE on topics app-counts, app-words" in str(statuses(answer))
    creates = [allow("create", "topic", name) for name in ("app-words", "app-counts")]
    authoriser.replace([allow("read", "group", "app"), *topics, *creates])
    await member.beat()
    assert broker.cluster.image.topics.keys() >= {"app-words", "app-counts"}


async def test_matches_of_a_streams_group_are_described_to_clients_that_may_describe_them(
    root: WireClient, a: WireClient, authoriser: AclAuthoriser
) -> None:
    await root.create("secret")
    lines, _ = topology()["subtopologies"]
    reader = {**lines, "source_topics": [], "source_topic_regex": ["sec.*"]}
    reads = {"epoch": 0, "subtopologies": [{**reader, "repartition_sink_topics": []}]}
    assert not (await Member(root, "a").beat(topology=reads)).error_code
    authoriser.replace([allow("describe", "group", "app")])
    refused = await describe(a)
    assert (refused.error_code, refused.topology) == (TOPIC, None)
    authoriser.replace([allow("describe", "group", "app"), allow("describe", "topic", "secret")])
    described = await describe(a)
    assert described.topology.subtopologies[0].source_topics == ("secret",)
