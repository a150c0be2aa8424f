"""Foreign clients of the schema registry, unchanged: every call that they have."""

from __future__ import annotations

import subprocess
from base64 import b64decode
from collections.abc import Callable
from json import loads
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, SchemaRegistryError
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from tests.broker.security.secured import PASSWORD, users_file
from tests.ports import free_port
from tests.security.certificates import keystore, truststore

from compat.conftest import missing
from compat.parts import PartMissing, registry_java
from compat.registry import CLIENTS, Link, RegistryClient, RegistryProblem, able
from compat.registry.samples import FORMATS, address, order, record
from compat.servers import PenstockProcess

Make = Callable[[str], RegistryClient]

METADATA = {
    "tags": {"shop.Point.x": ["PII", "GEO"]},
    "properties": {"owner": "maps", "major": "2"},
    "sensitive": ["owner"],
}
RULES = {
    "migrationRules": [
        {"name": "up", "kind": "TRANSFORM", "type": "JSONATA", "mode": "UPGRADE", "expr": "$"}
    ],
    "domainRules": [
        {
            "name": "positive",
            "doc": "x is positive",
            "kind": "CONDITION",
            "type": "CEL",
            "mode": "WRITE",
            "tags": ["GEO"],
            "params": {"limit": "0"},
            "expr": "message.x > 0",
            "onSuccess": "NONE",
            "onFailure": "ERROR",
            "disabled": True,
        }
    ],
}


def clients(*operations: str) -> pytest.MarkDecorator:
    """Run a test with each client that has what the test needs."""
    return pytest.mark.parametrize("client", able(*operations), indirect=True)


def point(*names: str) -> dict[str, Any]:
    """Return the schema of a record with these fields, which are nullable after the first."""
    first, *others = names
    fields = [(first, "long"), *((name, ["null", "long"]) for name in others)]
    return record("Point", *fields, defaults=dict.fromkeys(others))


def plain(found: Any) -> Any:
    """Return a response without empty fields, which clients add or leave out."""
    if isinstance(found, dict):
        items = {key: plain(item) for key, item in found.items()}
        return {key: item for key, item in items.items() if item not in (None, [], {}, "", False)}
    return [plain(item) for item in found] if isinstance(found, list) else found


def stored(found: Any) -> Any:
    """Return the schema in a response or a request, with its type, and JSON as a value."""
    kept = ("schema", "references", "metadata", "ruleSet")
    schema = {key: item for key, item in plain(found).items() if key in kept}
    kind = found.get("schemaType") or "AVRO"
    text = schema["schema"]
    return {**schema, "schemaType": kind, "schema": text if kind == "PROTOBUF" else loads(text)}


def place(found: Any) -> tuple[int, str, int]:
    """Return the id, GUID and version in a response."""
    return found["id"], found["guid"], found["version"]


@clients()
def test_registers_and_finds_schemas(client: RegistryClient, name: str) -> None:
    subject = f"{name}-value"
    first = client.call("register", subject=subject, schema=point("x"))
    again = client.call("register", subject=subject, schema=point("x"))
    second = client.call("register", subject=subject, schema=point("x", "y"))
    assert place(again) == place(first)
    assert (first["version"], second["version"]) == (1, 2)
    assert second["id"] > first["id"]
    assert second["guid"] != first["guid"]
    for found in (
        client.call("latest", subject=subject),
        client.call("version", subject=subject, version=2),
        client.call("lookup", subject=subject, schema=point("x", "y")),
    ):
        assert found["subject"] == subject
        assert place(found) == place(second)
        assert stored(found) == stored(point("x", "y"))
    assert stored(client.call("by_id", schema_id=first["id"])) == stored(point("x"))
    assert stored(client.call("by_id", schema_id=first["id"], subject=subject)) == stored(
        point("x")
    )
    assert stored(client.call("by_guid", guid=first["guid"])) == stored(point("x"))
    assert client.call("versions", subject=subject) == [1, 2]
    assert subject in client.call("subjects")


@clients("types", "subjects_of_id", "versions_of_id")
def test_lists_types_and_users_of_an_id(client: RegistryClient, name: str) -> None:
    subjects = [f"{name}-{part}" for part in ("a", "b")]
    schema = record(f"P{name[2:]}", ("x", "long"))
    ids = {client.call("register", subject=subject, schema=schema)["id"] for subject in subjects}
    (schema_id,) = ids
    assert sorted(client.call("types")) == ["AVRO", "JSON", "PROTOBUF"]
    assert client.call("subjects_of_id", schema_id=schema_id) == subjects
    users = client.call("versions_of_id", schema_id=schema_id)
    assert sorted(users) == [[subject, 1] for subject in subjects]
    assert client.call("subjects", prefix=name) == subjects


@clients("all_schemas")
def test_lists_schemas_and_their_texts(client: RegistryClient, name: str) -> None:
    subject = f"{name}-value"
    made = client.call("register", subject=subject, schema=point("x"))
    fields = loads(point("x")["schema"])
    assert loads(client.call("text_by_id", schema_id=made["id"])) == fields
    assert loads(client.call("text_of_version", subject=subject, version=1)) == fields
    ids = client.call("ids_by_guid", guid=made["guid"])
    assert ids == [{"context": ".", "id": made["id"]}]
    (found,) = client.call("all_schemas", prefix=name)
    assert (place(found), stored(found)) == (place(made), stored(point("x")))
    assert [place(each) for each in client.call("schemas", subject=subject)] == [place(made)]
    usages = client.call("usages", schema_id=made["id"])
    assert (subject, 1) in [(each["subject"], each["version"]) for each in usages]


@clients()
def test_errors_have_confluents_codes(client: RegistryClient, name: str) -> None:
    subject = f"{name}-value"

    def code(operation: str, **arguments: Any) -> int:
        with pytest.raises(RegistryProblem) as caught:
            client.call(operation, **arguments)
        assert caught.value.message
        return caught.value.code

    assert code("latest", subject=subject) == 40401
    client.call("register", subject=subject, schema=point("x"))
    assert code("version", subject=subject, version=9) == 40402
    assert code("lookup", subject=subject, schema=point("other")) == 40403
    assert code("by_id", schema_id=2**31 - 1) == 40403
    assert code("by_guid", guid="00000000-0000-4000-8000-000000000000") == 40403
    assert code("config", subject=subject) == 40408
    assert code("register", subject=subject, schema={"schema": "{"}) == 42201
    assert code("register", subject=subject, schema=record("Point", ("x", "string"))) == 409


@clients()
def test_deletes_softly_then_permanently(client: RegistryClient, name: str) -> None:
    subject = f"{name}-value"
    for number in (1, 2, 3):
        client.call("register", subject=subject, schema=point(*"xyz"[:number]))
    assert client.call("delete_version", subject=subject, version=1) == 1
    assert client.call("versions", subject=subject) == [2, 3]
    deleted = client.call("version", subject=subject, version=1, deleted=True)
    assert stored(deleted) == stored(point("x"))
    found = client.call("lookup", subject=subject, schema=point("x"), deleted=True)
    assert found["version"] == 1
    with pytest.raises(RegistryProblem) as caught:
        client.call("delete_version", subject=subject, version=2, permanent=True)
    assert caught.value.code == 40407
    assert client.call("delete_version", subject=subject, version=1, permanent=True) == 1
    assert client.call("delete_subject", subject=subject) == [2, 3]
    assert subject not in client.call("subjects")
    assert client.call("delete_subject", subject=subject, permanent=True) == [2, 3]
    made = client.call("register", subject=subject, schema=point("a"))
    assert made["version"] == 1


@clients("metadata")
def test_metadata_and_rules_are_returned_as_stored(client: RegistryClient, name: str) -> None:
    subject = f"{name}-value"
    schema = {**point("x"), "metadata": METADATA, "ruleSet": RULES}
    made = client.call("register", subject=subject, schema=schema)
    assert made["id"] != client.call("register", subject=f"{name}-key", schema=point("x"))["id"]
    for found in (
        made if "schema" in made else client.call("latest", subject=subject),
        client.call("latest", subject=subject),
        client.call("by_id", schema_id=made["id"]),
        client.call("by_guid", guid=made["guid"]),
        client.call("lookup", subject=subject, schema=schema),
    ):
        assert stored(found) == stored(schema)


@clients("latest_with_metadata")
def test_finds_the_newest_version_with_metadata(client: RegistryClient, name: str) -> None:
    subject = f"{name}-value"
    for number, major in enumerate(("1", "1", "2"), 1):
        metadata = {"properties": {"major": major, "kind": "x"}}
        schema = {**point(*"xyz"[:number]), "metadata": metadata}
        client.call("register", subject=subject, schema=schema)
    wanted = {"major": "1", "kind": "x"}
    assert client.call("latest_with_metadata", subject=subject, metadata=wanted)["version"] == 2
    with pytest.raises(RegistryProblem) as caught:
        client.call("latest_with_metadata", subject=subject, metadata={"major": "3"})
    assert caught.value.code in (40401, 40402)


@clients("referenced_by")
@pytest.mark.parametrize("kind", FORMATS)
def test_references_keep_schemas(client: RegistryClient, name: str, kind: str) -> None:
    subject, other = f"{name}/address", f"{name}-order"
    client.call("register", subject=subject, schema=address(kind))
    assert client.call("referenced_by", subject=subject, version=1) == []
    made = client.call("register", subject=other, schema=order(kind, subject))
    assert client.call("referenced_by", subject=subject, version=1) == [made["id"]]
    assert stored(client.call("latest", subject=other)) == stored(order(kind, subject))
    with pytest.raises(RegistryProblem) as caught:
        client.call("delete_version", subject=subject, version=1)
    assert caught.value.code == 42206


@pytest.mark.parametrize("client", ["confluent-python", "franz-go-sr"], indirect=True)
def test_output_formats(client: RegistryClient, name: str) -> None:
    subject = f"{name}/address"
    client.call("register", subject=subject, schema=address("PROTOBUF"))
    client.call("register", subject=f"{name}-a", schema=address("AVRO"))
    made = client.call("register", subject=f"{name}-o", schema=order("AVRO", f"{name}-a"))
    resolved = stored(client.call("by_id", schema_id=made["id"], output="resolved"))
    inlined = resolved["schema"]["fields"][-1]["type"]
    assert inlined["fields"] == loads(address("AVRO")["schema"])["fields"]
    made = client.call("register", subject=f"{name}-p", schema=order("PROTOBUF", subject))
    text = client.call("by_id", schema_id=made["id"], output="serialized")["schema"]
    file = FileDescriptorProto.FromString(b64decode(text))
    assert (file.package, [kind.name for kind in file.message_type]) == ("shop", ["Label", "Order"])


@clients()
def test_checks_compatibility(client: RegistryClient, name: str) -> None:
    subject = f"{name}-value"
    client.call("register", subject=subject, schema=point("x"))
    client.call("register", subject=subject, schema=point("x", "y"))
    bad = record("Point", ("x", "long"), ("y", "string"))
    assert client.call("compatible", subject=subject, version="latest", schema=point("x", "z"))
    assert client.call("compatible", subject=subject, version=1, schema=point("x", "z"))
    assert not client.call("compatible", subject=subject, version="latest", schema=bad)
    assert client.call("set_compatibility", subject=subject, level="NONE") == "NONE"
    assert client.call("compatibility", subject=subject) == "NONE"
    client.call("register", subject=subject, schema=bad)
    level = client.call("compatibility")
    assert level == "BACKWARD"
    assert client.call("set_compatibility", level=level) == level


@clients("explain")
def test_explains_an_incompatible_schema(client: RegistryClient, name: str) -> None:
    subject = f"{name}-value"
    client.call("register", subject=subject, schema=point("x"))
    bad = record("Point", ("x", "string"))
    messages = client.call("explain", subject=subject, version=1, schema=bad)
    assert any("/fields/0/type" in message for message in messages)


@clients("compatible_with_all")
def test_checks_all_versions(client: RegistryClient, name: str) -> None:
    subject = f"{name}-value"
    client.call("set_compatibility", subject=subject, level="BACKWARD_TRANSITIVE")
    client.call("register", subject=subject, schema=record("Point", ("x", "int")))
    client.call("register", subject=subject, schema=record("Point", ("x", "long")))
    for kind, expected in (("double", True), ("string", False)):
        schema = record("Point", ("x", kind))
        assert client.call("compatible_with_all", subject=subject, schema=schema) is expected


@clients()
def test_configs_are_returned_as_set(client: RegistryClient, name: str) -> None:
    subject = f"{name}-value"
    rules = {"domainRules": RULES["domainRules"]}
    config = {
        "compatibility": "FULL",
        "compatibilityGroup": "major",
        "defaultMetadata": {"properties": {"team": "maps"}},
        "overrideMetadata": {"properties": {"tier": "gold"}},
        "defaultRuleSet": rules,
        "overrideRuleSet": {"migrationRules": RULES["migrationRules"]},
    }
    client.call("set_config", subject=subject, config=config)
    level = config.pop("compatibility")
    found = plain(client.call("config", subject=subject))
    assert found == {**config, "compatibilityLevel": level}
    schema = {**point("x"), "metadata": {"properties": {"team": "own", "major": "1"}}}
    client.call("register", subject=subject, schema=schema)
    stored_schema = stored(client.call("latest", subject=subject))
    properties = {"team": "own", "major": "1", "tier": "gold"}
    assert stored_schema["metadata"] == {"properties": properties}
    assert set(stored_schema["ruleSet"]) == {"domainRules", "migrationRules"}


@clients("delete_config", "mode", "set_mode", "delete_mode")
def test_modes_are_set_and_deleted(client: RegistryClient, name: str) -> None:
    subject = f"{name}-value"
    client.call("set_compatibility", subject=subject, level="FULL")
    client.call("delete_config", subject=subject)
    with pytest.raises(RegistryProblem) as caught:
        client.call("config", subject=subject)
    assert caught.value.code == 40408
    with pytest.raises(RegistryProblem) as caught:
        client.call("mode", subject=subject)
    assert caught.value.code == 40409
    assert client.call("set_mode", subject=subject, mode="READONLY") == "READONLY"
    assert client.call("mode", subject=subject) == "READONLY"
    with pytest.raises(RegistryProblem) as caught:
        client.call("register", subject=subject, schema=point("x"))
    assert caught.value.code == 42205
    client.call("delete_mode", subject=subject)
    client.call("register", subject=subject, schema=point("x"))
    assert client.call("mode", subject="") == "READWRITE"


@clients("contexts")
def test_contexts_have_ids_of_their_own(client: RegistryClient, name: str) -> None:
    context, subject = f".{name}", "a-value"
    qualified = f":{context}:{subject}"
    where = {"context": context} if "in_context" in client.able else {}
    named = subject if where else qualified
    made = client.call("register", subject=named, schema=point("x"), **where)
    assert (made["id"], made["version"]) == (1, 1)
    assert context in client.call("contexts")
    assert client.call("latest", subject=qualified)["subject"] == qualified
    assert stored(client.call("by_id", schema_id=1, subject=qualified)) == stored(point("x"))


@clients("in_context")
def test_a_path_has_the_context(client: RegistryClient, name: str) -> None:
    subject, where = "a-value", {"context": f".{name}"}
    qualified = f":.{name}:{subject}"
    client.call("set_mode", subject="", mode="IMPORT", **where)
    given = {"schema": point("x"), "schema_id": 1234, "version": 7}
    made = client.call("register", subject=subject, **given, **where)
    assert (made["id"], made["version"], made["subject"]) == (1234, 7, qualified)
    client.call("delete_mode", subject="", **where)
    following = client.call("register", subject=subject, schema=point("x", "y"), **where)
    assert (following["id"], following["version"]) == (1235, 8)
    assert client.call("subjects", **where) == [qualified]
    with pytest.raises(RegistryProblem) as caught:
        client.call("delete_context", context=f".{name}")
    assert caught.value.code == 42205
    for permanent in (False, True):
        assert client.call("delete_subject", subject=subject, permanent=permanent, **where) == [
            7,
            8,
        ]
    client.call("delete_context", context=f".{name}")
    assert f".{name}" not in client.call("contexts")


@clients("associations")
def test_associations_name_the_subject_of_a_topic(client: RegistryClient, name: str) -> None:
    subject = f"{name}-any"
    request = {
        "resourceName": name,
        "resourceNamespace": "cluster",
        "resourceId": f"{name}-id",
        "resourceType": "topic",
        "associations": [
            {
                "subject": subject,
                "associationType": "value",
                "lifecycle": "STRONG",
                "frozen": False,
                "schema": point("x"),
            }
        ],
    }
    made = client.call("associate", request=request)
    assert plain(made)["associations"][0]["subject"] == subject
    assert stored(client.call("latest", subject=subject)) == stored(point("x"))
    (found,) = client.call("associations", name=name, namespace="-")
    expected = {"subject": subject, "resourceName": name, "associationType": "value"}
    assert {key: found[key] for key in expected} == expected
    client.call("dissociate", resource_id=f"{name}-id")
    assert client.call("associations", name=name, namespace="-") == []
    assert subject not in client.call("subjects")


def test_springs_client_registers_and_fetches(
    registry_client: Make, registry_link: Link, name: str
) -> None:
    try:
        program = registry_java()
    except PartMissing as error:
        missing(error)
    subject, schema = f"{name}-value", point("x")
    command = ["java", "-cp", program, "-XX:TieredStopAtLevel=1", "SpringRegistry"]
    ran = subprocess.run(
        [*command, registry_link.registry, subject, schema["schema"]],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    found = loads(ran.stdout)
    registered = registry_client("confluent-python").call("latest", subject=subject)
    assert (found["id"], found["version"]) == (registered["id"], 1)
    assert loads(found["by_id"]) == loads(found["by_reference"]) == loads(schema["schema"])
    assert found["missing"]  # it expects status 404 for an unknown id


@pytest.mark.parametrize("kind", FORMATS)
def test_ids_are_equal_in_all_clients(registry_client: Make, name: str, kind: str) -> None:
    everyone = [registry_client(client) for client in CLIENTS]
    for number, registrar in enumerate(everyone):
        subject, other = f"{name}-{number}/address", f"{name}-{number}-order"
        registrar.call("register", subject=subject, schema=address(kind))
        schema = order(kind, subject)
        made = registrar.call("register", subject=other, schema=schema)
        for client in everyone:
            found = client.call("lookup", subject=other, schema=schema)
            assert place(found) == place(made), client.name
            assert place(client.call("register", subject=other, schema=schema)) == place(made)
            assert stored(client.call("by_id", schema_id=made["id"])) == stored(schema)


def test_users_need_permissions_on_the_topic(tmp_path: Path) -> None:
    """Register over TLS as a super user, as another user, and with a wrong password."""
    address = f"127.0.0.1:{free_port()}"
    configs = {
        "registry.enable": "true",
        "registry.listener": address,
        "registry.security.protocol": "SSL",
        "listener.name.registry.ssl.keystore.location": keystore(tmp_path, "registry"),
        "authorizer.class.name": "acls",
        "super.users": "User:alice",
        "sasl.users.file": users_file(tmp_path, "alice", "bob"),
    }
    common = {"url": f"https://{address}", "ssl.ca.location": truststore(tmp_path)}

    def registered(user: str, password: str = PASSWORD) -> int:
        conf = {**common, "basic.auth.user.info": f"{user}:{password}"}
        with SchemaRegistryClient(conf) as client:
            try:
                client.register_schema("orders-value", Schema(point("x")["schema"]))
            except SchemaRegistryError as error:
                return int(error.error_code)
            assert client.get_subjects() == ["orders-value"]
            return 0

    with PenstockProcess(tmp_path / "broker", configs=configs):
        assert registered("alice") == 0
        assert registered("bob") == 40301
        assert registered("alice", "wrong") == 40101
