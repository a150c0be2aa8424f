"""Values that foreign clients of the schema registry exchange through the broker."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from compat.registry import CLIENTS, Link, RegistryClient, RegistryProblem, able
from compat.registry.samples import (
    FORMATS,
    LINE,
    ORDER,
    PING,
    VALUES,
    address,
    order,
    ping,
    with_source,
)

Make = Callable[[str], RegistryClient]
FROM_THE_REGISTRY = {"auto": False, "latest": True, "message": ORDER}
"""Options of a serializer that takes the newest version of its subject."""


def clients(*operations: str) -> pytest.MarkDecorator:
    """Run a test with each client that has what the test needs."""
    return pytest.mark.parametrize("client", able(*operations), indirect=True)


@pytest.fixture
def helper(registry_client: Make) -> RegistryClient:
    """The client that prepares and checks the registry."""
    return registry_client("confluent-python")


SMALL = {"AVRO": PING, "PROTOBUF": VALUES["PROTOBUF"][1], "JSON": {"street": "Main", "number": 7}}
"""Values of schemas that a serializer registers itself."""


def own(kind: str) -> dict[str, Any]:
    """Return the options of a serializer that registers its own schema."""
    if kind == "PROTOBUF":
        return {"message": ORDER}
    return {"schema": ping() if kind == "AVRO" else address("JSON")}


def id_of(framed: Any) -> int:
    """Return the schema's id in a serialized value."""
    payload = base64.b64decode(framed["payload"])
    assert payload[0] == 0
    return int.from_bytes(payload[1:5], "big")


def create(link: Link, topics: Sequence[str]) -> None:
    admin = AdminClient({"bootstrap.servers": link.bootstrap, "log_level": 0})
    for made in admin.create_topics([NewTopic(topic, 1) for topic in topics]).values():
        made.result(20)


def register_order(helper: RegistryClient, name: str, topics: Sequence[str], kind: str) -> int:
    """Register the schema of the topics' values and what it refers to; return its id."""
    helper.call("register", subject=f"{name}/address", schema=address(kind))
    schema = order(kind, f"{name}/address")
    ids = {
        helper.call("register", subject=f"{topic}-value", schema=schema)["id"] for topic in topics
    }
    (found,) = ids
    return int(found)


@pytest.mark.parametrize("kind", FORMATS)
def test_each_client_reads_what_each_client_wrote(
    registry_client: Make,
    helper: RegistryClient,
    registry_link: Link,
    name: str,
    kind: str,
) -> None:
    everyone = [registry_client(client) for client in CLIENTS]
    written = {
        f"{name}-{client.name}-{kind}": (client, kind == "header")
        for client in everyone
        for kind in ("prefix", "header")
        if kind == "prefix" or "headers" in client.able
    }
    create(registry_link, list(written))
    register_order(helper, name, list(written), kind)
    for topic, (client, header) in written.items():
        options = {**FROM_THE_REGISTRY, "header": header}
        client.call("write", topic=topic, kind=kind, values=VALUES[kind], options=options)
    for client in everyone:
        topics = [
            topic
            for topic, (_, header) in written.items()
            if not header or "headers" in client.able
        ]
        count = len(VALUES[kind])
        found = client.call("read", topics=topics, kind=kind, count=count, message=ORDER)
        for topic in topics:
            assert found[topic] == VALUES[kind], f"{client.name} read {topic}"


@clients()
@pytest.mark.parametrize("kind", FORMATS)
def test_frames_have_the_id_or_the_guid(
    client: RegistryClient, helper: RegistryClient, name: str, kind: str
) -> None:
    schema_id = register_order(helper, name, [name], kind)
    guid = helper.call("latest", subject=f"{name}-value")["guid"].replace("-", "")
    index = b"\x02\x02" if kind == "PROTOBUF" else b""  # an array of one index, 1
    given = {"topic": name, "kind": kind, "value": VALUES[kind][0]}
    framed = client.call("serialize", **given, options=FROM_THE_REGISTRY)
    payload = base64.b64decode(framed["payload"])
    assert payload.startswith(b"\0" + schema_id.to_bytes(4, "big") + index)
    assert framed["headers"] == []
    if "headers" in client.able:
        made = client.call("serialize", **given, options={**FROM_THE_REGISTRY, "header": True})
        ((key, value),) = made["headers"]
        assert (key, base64.b64decode(value)) == (
            "__value_schema_id",
            b"\1" + bytes.fromhex(guid) + index,
        )
        assert not base64.b64decode(made["payload"]).startswith(payload[:5])


@clients()
def test_nested_messages_are_found_by_their_indexes(
    registry_client: Make, client: RegistryClient, helper: RegistryClient, name: str
) -> None:
    register_order(helper, name, [name], "PROTOBUF")
    value = {"product": "p", "count": 3}
    auto = client.name == "confluent-python"  # it finds nested messages in its own schema only
    options = {"auto": auto, "latest": not auto, "message": LINE}
    given = {"topic": name, "kind": "PROTOBUF"}
    framed = client.call("serialize", **given, value=value, options=options)
    for reader in CLIENTS:
        found = registry_client(reader).call("deserialize", **given, **framed, message=LINE)
        assert found == value, reader


@clients("auto")
@pytest.mark.parametrize("normalize", [False, True])
def test_protobuf_schemas_and_imports_are_registered(
    client: RegistryClient, helper: RegistryClient, name: str, normalize: bool
) -> None:
    value = VALUES["PROTOBUF"][0]
    options = {"auto": True, "normalize": normalize, "message": ORDER}
    given = {"topic": name, "kind": "PROTOBUF"}
    client.call("serialize", **given, value=value, options=options)
    found = helper.call("latest", subject=f"{name}-value")
    imported = "shop/address.proto"
    reference = {"name": imported, "subject": imported, "version": 1}
    assert found["references"] == [reference]  # none to google/protobuf/timestamp.proto
    assert helper.call("versions", subject=imported) == [1]  # by whichever client it was
    expected = {"schema": order("PROTOBUF", imported), "normalize": normalize}
    looked_up = helper.call("lookup", subject=f"{name}-value", **expected)
    assert (looked_up["id"], looked_up["guid"]) == (found["id"], found["guid"])
    again = client.call("serialize", **given, value=value, options={**options, "auto": False})
    assert id_of(again) == found["id"]


@clients("auto")
def test_avro_schemas_are_registered(
    client: RegistryClient, helper: RegistryClient, name: str
) -> None:
    given = {"topic": name, "kind": "AVRO", "value": PING}
    client.call("serialize", **given, options=own("AVRO"))
    found = helper.call("latest", subject=f"{name}-value")
    if client.name == "confluent-javascript":  # it derives the schema from the value
        assert '"name":"Record1"' in found["schema"]
        return
    expected = helper.call("register", subject=f"{name}-other", schema=ping())
    assert (found["id"], found["guid"]) == (expected["id"], expected["guid"])


@clients("auto")
def test_json_schemas_are_registered(
    client: RegistryClient, helper: RegistryClient, name: str
) -> None:
    given = {"topic": name, "kind": "JSON"}
    framed = client.call("serialize", **given, value=SMALL["JSON"], options=own("JSON"))
    found = helper.call("latest", subject=f"{name}-value")
    assert (found["schemaType"], found["version"]) == ("JSON", 1)
    assert client.call("deserialize", **given, **framed) == SMALL["JSON"]


RECORDS = {
    "confluent-python": {"AVRO": "shop.Ping", "PROTOBUF": ORDER, "JSON": "Address"},
    "confluent-go": {"AVRO": "shop.Ping", "PROTOBUF": ORDER, "JSON": "Address"},
    # It derives the schema of Avro from the value, and takes the first message of a Protobuf file.
    "confluent-javascript": {"AVRO": "Record1", "PROTOBUF": "shop.Label"},
}
"""Names of the records that the clients' strategies use in a subject."""


@clients("strategies")
@pytest.mark.parametrize("kind", FORMATS)
def test_strategies_name_the_subject(
    client: RegistryClient, helper: RegistryClient, name: str, kind: str
) -> None:
    record = RECORDS[client.name].get(kind)
    subjects = {"TOPIC": f"{name}-value"}
    if record is not None:
        subjects |= {"RECORD": record, "TOPIC_RECORD": f"{name}-{record}"}
    for strategy, subject in subjects.items():
        options = {**own(kind), "strategy": strategy}
        if client.name == "confluent-go" and record is not None and kind != "PROTOBUF":
            options["message"] = record  # its strategies are functions of the application
        framed = client.call("serialize", topic=name, kind=kind, value=SMALL[kind], options=options)
        assert id_of(framed) == helper.call("latest", subject=subject)["id"], strategy


@clients("associations", "strategies")
@pytest.mark.parametrize("kind", FORMATS)
def test_associated_strategy_asks_the_registry(
    client: RegistryClient, helper: RegistryClient, name: str, kind: str
) -> None:
    subject = f"{name}-elsewhere"
    item = {"subject": subject, "associationType": "value", "lifecycle": "WEAK", "frozen": False}
    resource = {"resourceName": name, "resourceNamespace": "kafka", "resourceId": name}
    request = {**resource, "resourceType": "topic", "associations": [item]}
    helper.call("associate", request=request)
    options = {**own(kind), "strategy": "ASSOCIATED"}
    given = {"topic": name, "kind": kind, "value": SMALL[kind]}
    framed = client.call("serialize", **given, options=options)
    assert id_of(framed) == helper.call("latest", subject=subject)["id"]
    with pytest.raises(RegistryProblem) as caught:
        helper.call("latest", subject=f"{name}-value")
    assert caught.value.code == 40401


@clients("auto")
@pytest.mark.parametrize("kind", FORMATS)
def test_options_choose_the_version(
    client: RegistryClient, helper: RegistryClient, name: str, kind: str
) -> None:
    subject = f"{name}-value"
    helper.call("register", subject=f"{name}/address", schema=address(kind))
    ids = {}
    for major in ("1", "2"):
        metadata = {"properties": {"major": major}}
        schema = {**order(kind, f"{name}/address"), "metadata": metadata}
        ids[major] = helper.call("register", subject=subject, schema=schema)["id"]
    assert ids["1"] != ids["2"]
    for chosen, major in (
        ({"latest": True}, "2"),
        ({"use_id": ids["1"]}, "1"),
        ({"latest_with": {"major": "1"}}, "1"),
    ):
        options = {"auto": False, "message": ORDER, **chosen}
        given = {"topic": name, "kind": kind, "value": VALUES[kind][0]}
        framed = client.call("serialize", **given, options=options)
        assert id_of(framed) == ids[major], chosen


@clients("auto")
def test_readers_take_the_newest_version(
    client: RegistryClient, helper: RegistryClient, name: str
) -> None:
    register_order(helper, name, [name], "AVRO")
    given = {"topic": name, "kind": "AVRO"}
    value = VALUES["AVRO"][0]
    framed = client.call("serialize", **given, value=value, options=FROM_THE_REGISTRY)
    newer = with_source(order("AVRO", f"{name}/address"))
    helper.call("register", subject=f"{name}-value", schema=newer)
    assert client.call("deserialize", **given, **framed) == value
    found = client.call("deserialize", **given, **framed, latest=True)
    assert found == {**value, "source": "web"}
