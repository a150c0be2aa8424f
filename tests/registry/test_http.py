"""The registry's HTTP interface: paths, parameters, responses and error codes.

Oracle: Confluent's Schema Registry API reference.
"""

from __future__ import annotations

import base64
import json
from typing import Any
from uuid import UUID

import pytest

from penstock.registry.http import accepted
from tests.registry.conftest import HOST, Served, association, record

INT = '"int"'


async def deleted(served: Served, path: str) -> Any:
    found = await served.ask("DELETE", path)
    assert found.status == 200, found.body
    return found.value


# Registration and reads


async def test_a_registered_schema_is_read_by_each_of_its_names(served: Served) -> None:
    made = await served.register("orders-value", record("a"))
    assert (made["id"], made["version"]) == (1, 1)
    guid = made["guid"]
    assert UUID(guid)
    text = json.dumps(record("a"), separators=(",", ":"))
    whole = {"subject": "orders-value", "id": 1, "version": 1, "guid": guid, "schema": text}
    for path in ("versions/1", "versions/latest", "versions/-1", "metadata"):
        assert await served.get(f"/subjects/orders-value/{path}") == whole
    assert await served.get("/schemas") == [whole]
    assert await served.get("/schemas/ids/1") == {"schema": text, "guid": guid}
    assert await served.get("/schemas/ids/1?subject=orders-value&fetchMaxId=true") == {
        **whole,
        "maxId": 1,
    }
    assert await served.get(f"/schemas/guids/{guid}") == {"schema": text, "guid": guid}
    assert await served.get(f"/schemas/guids/{guid}/ids") == [{"context": ".", "id": 1}]
    for path in ("/schemas/ids/1/schema", "/subjects/orders-value/versions/1/schema"):
        assert await served.get(path) == record("a")
    assert await served.get("/schemas/ids/1/subjects") == ["orders-value"]
    assert await served.get("/schemas/ids/1/versions") == [
        {"subject": "orders-value", "version": 1}
    ]


async def test_an_equal_schema_keeps_its_id_and_version(served: Served) -> None:
    first = await served.register("a", record("x"))
    spaced = json.dumps(record("x"), indent=2)
    assert await served.register("a", spaced) == first
    assert (await served.register("b", spaced))["id"] == first["id"]
    assert (await served.register("b", record("x", "y")))["id"] == 2
    assert await served.get("/subjects/b/versions") == [1, 2]
    assert await served.get("/schemas/ids/1/subjects") == ["a", "b"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"schema": '{"type": "recor"}'}, 42201),
        ({"schema": ""}, 42201),
        ({}, 42201),
        ({"schema": INT, "schemaType": "XML"}, 42201),
        ({"schema": INT, "references": [{"name": "a", "subject": "none", "version": 1}]}, 42201),
        ({"schema": INT, "id": 7}, 42205),
        ({"schema": INT, "version": 3}, 42201),
    ],
)
async def test_a_rejected_registration_names_its_reason(
    served: Served, body: Any, code: int
) -> None:
    found = await served.ask("POST", "/subjects/s/versions", body)
    assert found.refusal == (422, code)
    assert found.value["message"]
    assert await served.get("/subjects") == []


async def test_references_lead_to_both_sides(served: Served) -> None:
    await served.register("address", record("street", name="Address"))
    user = {"type": "record", "name": "User", "fields": [{"name": "a", "type": "Address"}]}
    reference = {"name": "Address", "subject": "address", "version": -1}
    made = await served.register("user", user, references=[reference])
    assert made["references"] == [{**reference, "version": 1}]
    assert await served.get("/subjects/address/versions/1/referencedby") == [made["id"]]
    resolved = await served.get(f"/schemas/ids/{made['id']}?format=resolved")
    assert json.loads(resolved["schema"])["fields"][0]["type"]["name"] == "Address"
    refused = await served.ask("GET", f"/schemas/ids/{made['id']}?format=unknown")
    assert refused.refusal == (422, 422)


async def test_each_type_of_schema_is_registered_and_returned(served: Served) -> None:
    proto = 'syntax = "proto3";\npackage shop;\n\nmessage Order {\n  int32 id = 1;\n}\n'
    made = await served.register("p", proto, schemaType="PROTOBUF")
    assert made["schemaType"] == "PROTOBUF"
    found = await served.get(f"/schemas/ids/{made['id']}?format=serialized")
    assert b"Order" in base64.b64decode(found["schema"])
    again = await served.register("p", found["schema"], schemaType="PROTOBUF")
    assert again["id"] == made["id"], "the serialized form is the same schema"
    described = {"type": "object", "properties": {"id": {"type": "integer"}}}
    made = await served.register("j", described, schemaType="JSON")
    assert (await served.get("/subjects/j/versions/1"))["schemaType"] == "JSON"
    changed = {"schema": '{"type": "string"}', "schemaType": "JSON"}
    assert (await served.ask("POST", "/subjects/j/versions", changed)).refusal == (409, 409)
    avro = await served.ask("POST", "/subjects/j/versions", {"schema": INT})
    assert "SCHEMA_TYPE_CHANGED" in avro.value["message"]


async def test_referenced_versions_outlive_those_that_refer_to_them(served: Served) -> None:
    await served.register("address", record("street", name="Address"))
    user = {"type": "record", "name": "User", "fields": [{"name": "a", "type": "Address"}]}
    reference = {"name": "Address", "subject": "address", "version": 1}
    made = await served.register("user", user, references=[reference])
    for path in ("/subjects/address", "/subjects/address/versions/1"):
        assert (await served.ask("DELETE", path)).refusal == (422, 42206)
    await deleted(served, "/subjects/user")
    assert await served.get("/subjects/address/versions/1/referencedby") == []
    await deleted(served, "/subjects/address")
    for path in ("/subjects/address", "/subjects/address/versions/1"):
        found = await served.ask("DELETE", f"{path}?permanent=true")
        assert found.refusal == (422, 42206), "the deleted schema can still be read by its id"
    assert await served.get(f"/schemas/ids/{made['id']}?format=resolved")
    await deleted(served, "/subjects/user?permanent=true")
    await deleted(served, "/subjects/address?permanent=true")
    assert await served.get("/subjects?deleted=true") == []


# Deletion


async def test_versions_are_deleted_and_then_removed(served: Served) -> None:
    for fields in (["a"], ["a", "b"], ["a", "b", "c"]):
        await served.register("s", record(*fields))
    assert (await served.ask("DELETE", "/subjects/s/versions/2?permanent=true")).refusal == (
        404,
        40407,
    )
    assert await deleted(served, "/subjects/s/versions/2") == 2
    assert (await served.ask("DELETE", "/subjects/s/versions/2")).refusal == (404, 40406)
    assert (await served.ask("GET", "/subjects/s/versions/2")).refusal == (404, 40402)
    assert (await served.get("/subjects/s/versions/2?deleted=true"))["deleted"] is True
    assert await served.get("/subjects/s/versions") == [1, 3]
    assert await served.get("/subjects/s/versions?deleted=true") == [1, 2, 3]
    assert await served.get("/subjects/s/versions?deletedOnly=true") == [2]
    assert await served.get("/subjects/s/versions?deletedAsNegative=true") == [1, -2, 3]
    assert await served.get("/schemas/ids/2")
    assert await served.get("/schemas/ids/2/subjects") == []
    assert await served.get("/schemas/ids/2/subjects?deleted=true") == ["s"]
    assert await deleted(served, "/subjects/s/versions/2?permanent=true") == 2
    assert (await served.ask("DELETE", "/subjects/s/versions/2?permanent=true")).refusal == (
        404,
        40402,
    )
    assert (await served.ask("GET", "/schemas/ids/2")).refusal == (404, 40403)
    assert await deleted(served, "/subjects/s/versions/latest") == 3


async def test_subjects_are_deleted_and_then_removed(served: Served) -> None:
    await served.register("s", record("a"))
    await served.register("s", record("a", "b"))
    await served.ask("PUT", "/config/s", {"compatibility": "NONE"})
    assert (await served.ask("DELETE", "/subjects/none")).refusal == (404, 40401)
    assert (await served.ask("DELETE", "/subjects/s?permanent=true")).refusal == (404, 40405)
    assert await deleted(served, "/subjects/s") == [1, 2]
    assert (await served.ask("DELETE", "/subjects/s")).refusal == (404, 40404)
    assert (await served.ask("DELETE", "/subjects/s/versions/latest")).refusal == (404, 40404)
    assert (await served.ask("GET", "/subjects/s/versions")).refusal == (404, 40401)
    assert (await served.ask("GET", "/config/s")).refusal == (404, 40408)
    assert await served.get("/subjects") == []
    assert await served.get("/subjects?deleted=true") == ["s"]
    assert await served.get("/subjects?deletedOnly=true") == ["s"]
    assert await deleted(served, "/subjects/s?permanent=true") == [1, 2]
    assert (await served.ask("DELETE", "/subjects/s?permanent=true")).refusal == (404, 40401)


async def test_a_deleted_version_comes_back_as_a_new_version_with_its_id(served: Served) -> None:
    await served.register("s", record("a"))
    await deleted(served, "/subjects/s")
    again = await served.register("s", record("a"))
    assert (again["id"], again["version"]) == (1, 2)


async def test_ids_are_not_used_again(served: Served) -> None:
    made = await served.register("s", record("a"))
    await deleted(served, "/subjects/s")
    await deleted(served, "/subjects/s?permanent=true")
    other = await served.register("s", record("b"))
    assert (other["id"], other["version"]) == (made["id"] + 1, 1)


# Lookups and lists


async def test_a_schema_is_looked_up_under_a_subject(served: Served) -> None:
    made = await served.register("s", record("b", "a"))
    found = await served.ask("POST", "/subjects/s", {"schema": json.dumps(record("b", "a"))})
    assert (found.status, found.value["id"], found.value["version"]) == (200, made["id"], 1)
    for subject, schema, code in (("s", INT, 40403), ("none", INT, 40401)):
        refused = await served.ask("POST", f"/subjects/{subject}", {"schema": schema})
        assert refused.refusal == (404, code)
    shuffled = {"fields": record("b", "a")["fields"], "name": "Order", "type": "record"}
    body = {"schema": json.dumps(shuffled)}
    found = await served.ask("POST", "/subjects/s?normalize=true", body)
    assert (found.status, found.value["version"]) == (200, 1)
    await deleted(served, "/subjects/s")
    assert (await served.ask("POST", "/subjects/s", body)).refusal == (404, 40401)
    found = await served.ask("POST", "/subjects/s?deleted=true&normalize=true", body)
    assert found.value["deleted"] is True


async def test_lists_are_filtered_and_paged(served: Served) -> None:
    for number in range(5):
        await served.register(f"orders-{number}", record("a"))
        await served.register(f"orders-{number}", record("a", f"f{number}"))
    await served.register("users", record("a"))
    names = [f"orders-{number}" for number in range(5)]
    assert await served.get("/subjects?subjectPrefix=orders") == names
    assert await served.get("/subjects?subjectPrefix=:.other:") == []
    assert await served.get("/subjects?offset=1&limit=2") == names[1:3]
    assert await served.get("/subjects?limit=-1") == [*names, "users"]
    latest = await served.get("/schemas?latestOnly=true&subjectPrefix=orders")
    assert [(version["subject"], version["version"]) for version in latest] == [
        (name, 2) for name in names
    ]
    assert len(await served.get("/schemas")) == 11
    assert [found["version"] for found in await served.get("/schemas?offset=9&limit=5")] == [2, 1]
    assert await served.get("/subjects/orders-1/versions?offset=1") == [2]
    assert (await served.ask("GET", "/subjects?limit=many")).refusal == (422, 422)
    assert await served.get("/schemas/types") == ["JSON", "PROTOBUF", "AVRO"]


# Contexts


async def test_contexts_have_subjects_and_ids_of_their_own(served: Served) -> None:
    await served.register("a", record("x"))
    await served.register("s", record("a"))
    made = await served.register(":.test:s", record("a"))
    assert made["id"] == 1, "each context counts its ids"
    assert await served.register("s", record("a"), path="/contexts/.test") == made
    assert await served.get("/contexts") == [".", ".test"]
    assert await served.get("/subjects") == [":.test:s", "a", "s"]
    assert await served.get("/contexts/.test/subjects") == [":.test:s"]
    assert await served.get("/subjects?subjectPrefix=:.test:") == [":.test:s"]
    assert (await served.get("/schemas/ids/1"))["schema"] != made["schema"]
    in_context = await served.get("/contexts/.test/schemas/ids/1")
    assert in_context["schema"] == (await served.get("/schemas/ids/1?subject=:.test:"))["schema"]
    assert await served.get(f"/schemas/guids/{made['guid']}/ids") == [
        {"context": ".", "id": 2},
        {"context": ".test", "id": 1},
    ]
    assert (await served.ask("DELETE", "/contexts/.test")).refusal == (422, 42205)
    await deleted(served, "/subjects/:.test:s")
    await deleted(served, "/contexts/.test/subjects/s?permanent=true")
    assert await deleted(served, "/contexts/.test") == {}
    assert await served.get("/contexts") == ["."]
    assert (await served.register(":.test:s", INT))["id"] == 2, "ids are not used again"


@pytest.mark.parametrize("subject", ["a/b", "ä ö", "a%2Fb", "?", "#", "a:b", "日本語"])
async def test_names_may_have_any_printable_character(served: Served, subject: str) -> None:
    await served.register(subject, INT)
    assert await served.get("/subjects") == [subject]


@pytest.mark.parametrize("name", ["%01", "a%7F", ":nodot:s", ":.c", "x" * 1_025, "%0A"])
async def test_malformed_names_are_rejected(served: Served, name: str) -> None:
    found = await served.ask("POST", f"/subjects/{name}/versions", {"schema": INT})
    assert found.refusal == (422, 42208)


# Modes


async def test_read_only_modes_reject_changes(served: Served) -> None:
    await served.register("s", INT)
    assert await served.get("/mode") == {"mode": "READWRITE"}
    assert (await served.ask("GET", "/mode/s")).refusal == (404, 40409)
    assert (await served.ask("PUT", "/mode/s", {"mode": "READONLY"})).value == {"mode": "READONLY"}
    assert await served.get("/mode/s") == {"mode": "READONLY"}
    assert await served.get("/mode/other?defaultToGlobal=true") == {"mode": "READWRITE"}
    for method, path, body in (
        ("POST", "/subjects/s/versions", {"schema": '"long"'}),
        ("DELETE", "/subjects/s", None),
        ("DELETE", "/subjects/s/versions/1", None),
        ("PUT", "/config/s", {"compatibility": "NONE"}),
    ):
        assert (await served.ask(method, path, body)).refusal == (422, 42205)
    assert (await served.register("other", INT))["id"] == 1
    assert await deleted(served, "/mode/s") == {"mode": "READONLY"}
    assert (await served.ask("DELETE", "/mode/s")).refusal == (404, 40409)
    await served.register("s", '"long"')
    assert (await served.ask("PUT", "/mode", {"mode": "SLOW"})).refusal == (422, 42204)
    assert (await served.ask("PUT", "/mode/s", {"mode": "READONLY_OVERRIDE"})).refusal == (
        422,
        42204,
    )


async def test_an_override_has_precedence_over_narrower_modes(served: Served) -> None:
    await served.ask("PUT", "/mode/s", {"mode": "READWRITE"})
    await served.ask("PUT", "/mode", {"mode": "READONLY"})
    await served.register("s", INT)
    await served.ask("PUT", "/mode", {"mode": "READONLY_OVERRIDE"})
    found = await served.ask("POST", "/subjects/s/versions", {"schema": '"long"'})
    assert found.refusal == (422, 42205)
    assert await deleted(served, "/mode?recursive=true") == {"mode": "READONLY_OVERRIDE"}
    assert (await served.ask("GET", "/mode/s")).refusal == (404, 40409), "recursive"


async def test_an_import_keeps_ids_and_versions(served: Served) -> None:
    await served.register("old", INT)
    assert (await served.ask("PUT", "/mode", {"mode": "IMPORT"})).refusal == (422, 42205)
    assert (await served.ask("PUT", "/mode/s", {"mode": "IMPORT"})).status == 200
    made = await served.register("s", record("a"), id=70, version=5)
    assert (made["id"], made["version"]) == (70, 5)
    assert await served.register("s", record("a"), id=70, version=5) == made
    for body, code in (
        ({"schema": '"long"'}, 42205),
        ({"schema": '"long"', "id": 70}, 42205),
        ({"schema": '"long"', "id": 71, "version": 5}, 42205),
        ({"schema": '"long"', "id": 1 << 31}, 42201),
        ({"schema": '"long"', "id": -5}, 42201),
        ({"schema": '"long"', "id": 71, "version": 1 << 31}, 42201),
        ({"schema": '"long"', "id": 71, "version": -5}, 42201),
    ):
        found = await served.ask("POST", "/subjects/s/versions", body)
        assert found.refusal == (422, code)
    incompatible = await served.register("s", '"bytes"', id=60, version=2)
    assert (incompatible["id"], incompatible["version"]) == (60, 2), "imports are not compared"
    assert (await served.ask("PUT", "/mode?force=true", {"mode": "IMPORT"})).status == 200
    await deleted(served, "/mode?recursive=true")
    assert (await served.register("new", '"float"'))["id"] == 71
    assert await served.get("/subjects/s/versions") == [2, 5]


async def test_an_import_keeps_schemas_that_are_malformed(served: Served) -> None:
    """Older registries accepted defaults and names that are invalid; their records exist."""
    field = {"name": "f", "type": ["null", "int"], "default": "null"}
    broken = json.dumps({"type": "record", "name": "R", "fields": [field]})
    found = await served.ask("POST", "/subjects/s/versions", {"schema": broken})
    assert found.refusal == (422, 42201)
    await served.ask("PUT", "/mode/s", {"mode": "IMPORT"})
    await served.register("s", broken, id=9, version=1)
    await deleted(served, "/mode/s")
    assert (await served.get("/schemas/ids/9"))["schema"] == broken
    assert (await served.register("s", broken))["id"] == 9
    looked = await served.ask("POST", "/subjects/s", {"schema": broken})
    assert (looked.status, looked.value["id"]) == (200, 9)
    refused = await served.ask("POST", "/subjects/s/versions", {"schema": INT})
    assert refused.refusal == (422, 42201)
    assert "version 1 was imported and is malformed: " in refused.value["message"]
    refused = await served.ask("POST", "/subjects/other/versions", {"schema": broken})
    assert refused.refusal == (422, 42201)
    await served.ask("PUT", "/config/s", {"compatibility": "NONE"})
    assert (await served.register("s", INT))["version"] == 2
    await deleted(served, "/subjects/s/versions/1")


# Configs


async def test_configs_are_merged_from_the_wider_scopes(served: Served) -> None:
    assert await served.get("/config") == {"compatibilityLevel": "BACKWARD"}
    put = await served.ask("PUT", "/config", {"compatibility": "full", "normalize": True})
    assert put.value == {"compatibility": "FULL", "normalize": True}
    assert (await served.ask("GET", "/config/s")).refusal == (404, 40408)
    assert await served.get("/config/s?defaultToGlobal=true") == {
        "compatibilityLevel": "FULL",
        "normalize": True,
    }
    await served.ask("PUT", "/config/s", {"compatibilityGroup": "major"})
    assert await served.get("/config/s") == {"compatibilityGroup": "major"}
    await served.ask("PUT", "/config/s", {"compatibility": "NONE"})
    assert await served.get("/config/s?defaultToGlobal=true") == {
        "compatibilityLevel": "NONE",
        "compatibilityGroup": "major",
        "normalize": True,
    }
    assert (await deleted(served, "/config/s"))["compatibilityLevel"] == "NONE"
    assert (await served.ask("DELETE", "/config/s")).refusal == (404, 40401)
    assert (await deleted(served, "/config"))["compatibilityLevel"] == "FULL"
    assert await served.get("/config") == {"compatibilityLevel": "BACKWARD"}
    bad = await served.ask("PUT", "/config", {"compatibility": "SIDEWAYS"})
    assert bad.refusal == (422, 42203)


async def test_an_alias_stands_for_another_subject(served: Served) -> None:
    await served.register("orders-value", INT)
    await served.ask("PUT", "/config/short", {"alias": "orders-value"})
    assert (await served.get("/subjects/short/versions/1"))["subject"] == "orders-value"
    assert (await served.register("short", '"long"'))["version"] == 2
    assert await served.get("/subjects") == ["orders-value"]


async def test_metadata_and_rules_are_kept_and_defaulted(served: Served) -> None:
    rule = {"name": "check", "kind": "CONDITION", "type": "CEL", "mode": "WRITE", "expr": "true"}
    await served.ask(
        "PUT",
        "/config/s",
        {
            "defaultMetadata": {"properties": {"owner": "team", "tier": "1"}},
            "overrideMetadata": {"properties": {"region": "eu"}},
            "defaultRuleSet": {"domainRules": [rule]},
        },
    )
    made = await served.register("s", INT, metadata={"properties": {"owner": "me"}})
    assert made["metadata"] == {"properties": {"owner": "me", "tier": "1", "region": "eu"}}
    assert made["ruleSet"] == {"domainRules": [rule]}
    other = await served.register("s", INT, metadata={"properties": {"owner": "you"}})
    assert other["id"] != made["id"], "metadata distinguishes schemas"
    found = await served.get("/subjects/s/metadata?key=owner&value=me")
    assert found["version"] == 1
    missing = await served.ask("GET", "/subjects/s/metadata?key=owner&value=none")
    assert missing.refusal == (404, 40402)


async def test_a_group_is_compared_within_itself(served: Served) -> None:
    await served.ask("PUT", "/config/s", {"compatibilityGroup": "major"})
    await served.register("s", INT, metadata={"properties": {"major": "1"}})
    await served.register("s", '"string"', metadata={"properties": {"major": "2"}})
    found = await served.ask(
        "POST",
        "/subjects/s/versions",
        {"schema": '"boolean"', "metadata": {"properties": {"major": "2"}}},
    )
    assert found.refusal == (409, 409)


# Compatibility


async def test_a_refusal_has_path_rule_and_an_edit_that_is_accepted(served: Served) -> None:
    await served.register("s", record("a"))
    new = {"type": "record", "name": "Order", "fields": [{"name": "b", "type": "int"}]}
    body = {"schema": json.dumps(new)}
    plain = await served.ask("POST", "/compatibility/subjects/s/versions/latest", body)
    assert plain.value == {"is_compatible": False}
    path = "/compatibility/subjects/s/versions?verbose=true"
    found = (await served.ask("POST", path, body)).value
    assert found["is_compatible"] is False
    assert "READER_FIELD_MISSING_DEFAULT_VALUE, path: '/fields/0'" in found["messages"][0]
    edited = {"schema": found["proposal"]}
    assert (await served.ask("POST", path, edited)).value == {
        "is_compatible": True,
        "messages": [],
    }
    refused = await served.ask("POST", "/subjects/s/versions", body)
    assert refused.refusal == (409, 409)
    assert (await served.register("s", found["proposal"]))["version"] == 2


async def test_a_check_names_versions_that_do_not_exist(served: Served) -> None:
    body = {"schema": INT}
    versions = "/compatibility/subjects/s/versions"
    assert (await served.ask("POST", f"{versions}/1", body)).refusal == (404, 40402)
    for path in (versions, f"{versions}/latest"):
        assert (await served.ask("POST", path, body)).value == {"is_compatible": True}
    assert (await served.ask("POST", f"{versions}/0", body)).refusal == (422, 42202)
    assert (await served.ask("POST", f"{versions}/x", body)).refusal == (422, 42202)
    await served.register("s", INT)
    await deleted(served, "/subjects/s")
    assert (await served.ask("POST", f"{versions}/1", body)).refusal == (404, 40402)
    broken = {"schema": '{"type": "recor"}'}
    assert (await served.ask("POST", versions, broken)).refusal == (422, 42201)
    verbose = (await served.ask("POST", f"{versions}?verbose=true", broken)).value
    assert verbose["is_compatible"] is False
    assert "recor" in verbose["messages"][0]


@pytest.mark.parametrize(
    ("level", "reads_old", "old_reads"),
    [("BACKWARD", True, False), ("FORWARD", False, True), ("FULL", False, False),
     ("NONE", True, True)],
)  # fmt: skip
async def test_a_level_has_its_direction(
    served: Served, level: str, reads_old: bool, old_reads: bool
) -> None:
    await served.register("wide", '"long"')
    await served.register("narrow", INT)
    await served.ask("PUT", "/config", {"compatibility": level})
    for subject, schema, expected in (("narrow", '"long"', reads_old), ("wide", INT, old_reads)):
        found = await served.ask(
            "POST", f"/compatibility/subjects/{subject}/versions/latest", {"schema": schema}
        )
        assert found.value["is_compatible"] is expected


# Associations


async def test_associations_are_stored_and_deleted(served: Served) -> None:
    item = {"subject": "orders-value", "lifecycle": "STRONG", "schema": {"schema": INT}}
    body = {
        "resourceName": "orders",
        "resourceNamespace": "cluster",
        "resourceId": "id-1",
        "associations": [item],
    }
    made = await served.ask("POST", "/associations", body)
    assert made.status == 200
    assert await served.get("/subjects") == ["orders-value"]
    for path in ("resources/cluster/orders", "resources/-/orders", "resources/id-1",
                 "subjects/orders-value"):  # fmt: skip
        found = await served.get(f"/associations/{path}")
        assert [(item["subject"], item["lifecycle"]) for item in found] == [
            ("orders-value", "STRONG")
        ]
    assert await served.get("/associations/resources/id-1?lifecycle=WEAK") == []
    other = {**body, "resourceId": "id-2", "resourceName": "other"}
    assert (await served.ask("POST", "/associations", other)).refusal == (409, 40971)
    weak = {**body, "associations": [{**item, "subject": "else"}]}
    assert (await served.ask("POST", "/associations", weak)).refusal == (409, 40971)
    assert (await served.ask("PUT", "/associations", weak)).status == 200
    await served.ask("PUT", "/associations", body)
    await deleted(served, "/associations/resources/id-1?cascadeLifecycle=true")
    assert await served.get("/subjects") == ["else"]
    missing = await served.ask("DELETE", "/associations/resources/id-1")
    assert missing.refusal == (404, 40471)
    assert (await served.ask("POST", "/associations", {})).refusal == (422, 422)


# HTTP


async def test_the_server_names_itself(served: Served) -> None:
    assert await served.get("/") == {}
    assert await served.get("/v1/metadata/version") == {"version": "1.2.3", "commitId": ""}
    assert (await served.get("/v1/metadata/id"))["scope"]["path"] == []


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("", "application/vnd.schemaregistry.v1+json"),
        ("*/*", "application/vnd.schemaregistry.v1+json"),
        ("*; q=.2", "application/vnd.schemaregistry.v1+json"),
        ("application/*", "application/vnd.schemaregistry.v1+json"),
        ("application/json", "application/json"),
        ("Application/JSON; charset=utf-8", "application/json"),
        ("text/html, application/json;q=0.5, */*;q=0.1", "application/json"),
        ("application/vnd.schemaregistry+json;q=0.9, application/json;q=0.8",
         "application/vnd.schemaregistry+json"),
        ("text/html", None),
        ("application/octet-stream", None),
        ("application/json;q=0", None),
        ("*/*;q=x", None),
        ("x" * 1_000, "application/vnd.schemaregistry.v1+json"),
    ],
)  # fmt: skip
async def test_the_client_chooses_the_content_type(header: str, expected: str | None) -> None:
    assert accepted(header.encode()) == (None if expected is None else expected.encode())


async def test_content_types_are_negotiated(served: Served) -> None:
    html, json_type = {"accept": "text/html"}, {"accept": "application/json"}
    for _ in range(2):  # the second response may come from the cache
        found = await served.ask("GET", "/subjects", headers=json_type)
        assert (found.status, found.headers["content-type"]) == (200, json_type["accept"])
        found = await served.ask("GET", "/subjects")
        assert found.headers["content-type"] == "application/vnd.schemaregistry.v1+json"
        refused = await served.ask("GET", "/subjects", headers=html)
        assert refused.refusal == (406, 406)
    assert (await served.ask("GET", "/", headers=html)).status == 200, "as probes send it"
    missing = await served.ask("GET", "/subjects/none/versions", headers=json_type)
    assert missing.headers["content-type"] == "application/json"
    for kind, status in (
        ("application/json; charset=utf-8", 200),
        ("application/octet-stream", 200),
        ("", 200),
        ("application/x-www-form-urlencoded", 415),
        ("text/plain", 415),
    ):
        body = {"compatibility": "NONE"}
        found = await served.ask("PUT", "/config", body, headers={"content-type": kind})
        assert found.status == status


async def test_pages_of_other_sites_change_nothing(served: Served) -> None:
    body = {"compatibility": "NONE"}
    evil = {"origin": "http://evil.test", "host": HOST}
    assert (await served.ask("PUT", "/config", body, headers=evil)).status in (400, 403, 421)
    own = {"origin": f"http://{HOST}", "host": HOST}
    assert (await served.ask("PUT", "/config", body, headers=own)).status == 200


# Associations


async def test_associations_have_ids_of_their_own(served: Served) -> None:
    for kind in ("key", "value"):
        assert (await served.ask("POST", "/associations", association(kind))).status == 200
    found = await served.get("/associations/resources/-/orders")
    assert [item["subject"] for item in found] == ["orders-key", "orders-value"]
    assert len({UUID(item["guid"]) for item in found}) == 2
    assert await served.get("/associations/resources/r1") == found
    assert await served.get("/associations/subjects/orders-key") == found[:1]


async def test_an_invalid_association_names_what_is_allowed(served: Served) -> None:
    refused = await served.ask("POST", "/associations", association("header"))
    assert refused.refusal == (422, 422)
    assert "must be key or value" in refused.value["message"]


async def test_a_strong_association_is_exclusive(served: Served) -> None:
    strong = association("value", lifecycle="STRONG", subject="shared")
    assert (await served.ask("POST", "/associations", strong)).status == 200
    other = {**association("value", subject="shared"), "resourceId": "r2", "resourceName": "other"}
    assert (await served.ask("POST", "/associations", other)).refusal == (409, 40971)
    assert (await served.ask("DELETE", "/associations/resources/r1")).status == 200
    assert (await served.ask("POST", "/associations", other)).status == 200
    assert (await served.ask("DELETE", "/associations/resources/r1")).refusal == (404, 40471)
