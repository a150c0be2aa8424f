"""Pages of schemas, compared with what Confluent's client and `penstock schema` return."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, SchemaRegistryError
from confluent_kafka.schema_registry.schema_registry_client import SchemaReference

from penstock.apps.process.wiring import control_of
from penstock.registry.state import row
from penstock.registry.values import Schema as StoredSchema
from penstock.registry.values import Version
from penstock.testing import Broker
from tests.apps.conftest import Run
from tests.apps.console.example import HOSTILE
from tests.apps.console.visitor import Visitor, guarded_broker
from tests.security.access import allow

REGISTRY = {"registry.enable": True, "registry.listener": "127.0.0.1:0"}
SUBJECTS = 10_000
FIRST = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
SECOND = {**FIRST, "fields": [*FIRST["fields"], {"name": "note", "type": "string", "default": ""}]}
REFUSED = {**FIRST, "fields": [*FIRST["fields"], {"name": "must", "type": "string"}]}


class Registry:
    """Broker with a registry, Confluent's client of it, and a visitor of its console."""

    def __init__(self, broker: Broker, client: SchemaRegistryClient) -> None:
        self.broker = broker
        self.client = client
        self.visitor = Visitor(broker.admin_url)

    def register(self, subject: str, schema: object, *references: SchemaReference) -> int:
        text = Schema(json.dumps(schema), "AVRO", list(references))
        return int(self.client.register_schema(quote(subject, safe=""), text))


async def store_subjects(directory: Path) -> None:
    """Store `SUBJECTS` subjects with one schema in the database of a broker that does not run."""
    schema = StoredSchema(schema=json.dumps(FIRST))
    guid = schema.guid(schema.schema)
    rows = [row("schema", (str(guid),), schema), row("context", (".",), 1)]
    rows += [
        row("version", (".", f"many.{number:05}-value", 1), Version(id=1, guid=guid))
        for number in range(SUBJECTS)
    ]
    directory.mkdir()
    control = control_of("", directory)
    await control.start()
    await control.write_registry_rows(rows, expected=await control.registry_version())
    await control.close()


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    directory = tmp_path_factory.mktemp("schemas")
    asyncio.run(store_subjects(directory / "data"))
    with (
        guarded_broker(directory, REGISTRY, data=directory / "data") as broker,
        SchemaRegistryClient({"url": f"http://{broker.registry_address}"}) as client,
    ):
        yield Registry(broker, client)


def test_ten_thousand_subjects_are_searched_and_paged(registry: Registry) -> None:
    first = registry.visitor.get("/console/schemas?q=MANY.")
    assert f"1–50 of {SUBJECTS:,}" in first.words
    assert "many.00049-value" in first.words
    assert "many.00050-value" not in first.words
    last = registry.visitor.get("/console/schemas?q=many.&page=200")
    assert f"many.{SUBJECTS - 1:05}-value" in last.words
    found = registry.visitor.get("/console/schemas?q=many.01234")
    assert "many.01234-value AVRO 1 1 1 BACKWARD" in found.words
    assert "1–1 of 1 " in found.words


def form(subject: str, schema: object, **fields: str) -> dict[str, str]:
    return {"subject": subject, "type": "AVRO", "schema": json.dumps(schema), **fields}


def test_a_subject_with_its_versions_text_and_references(registry: Registry) -> None:
    registry.register("order-value", FIRST)
    schema_id = registry.register("order-value", SECOND)
    holder = {"type": "record", "name": "H", "fields": [{"name": "o", "type": "Order"}]}
    registry.register("holder-value", holder, SchemaReference("Order", "order-value", 2))
    page = registry.visitor.get("/console/schemas/order-value")
    shown = registry.client.get_latest_version("order-value")
    assert f"Schema id {shown.schema_id} " in page.words
    assert shown.schema_id == schema_id
    assert " ".join(json.dumps(SECOND, indent=2).split()) in page.words
    assert "holder-value:2" not in page.words
    assert "holder-value:1" in page.words
    first = registry.visitor.get("/console/schemas/order-value?version=1")
    assert '"note"' not in first.words
    assert "Referred to by no other schema" in first.words
    assert "order-value:2" in registry.visitor.get("/console/schemas/holder-value").words
    assert registry.visitor.get("/console/schemas/order-value?version=7").status == 404
    assert registry.visitor.get("/console/schemas/missing").status == 404


def test_two_versions_are_compared_as_by_the_command(registry: Registry, bare: Run) -> None:
    registry.register("diff-value", FIRST)
    registry.client.set_compatibility("diff-value", "NONE")
    registry.register("diff-value", REFUSED)
    url = f"http://{registry.broker.registry_address}"
    words = ("schema", "diff", "diff-value", "1", "2", "--registry", url, "--output", "json")
    printed = json.loads(bare(*words).out)
    page = registry.visitor.get("/console/schema-diff/diff-value?before=1&after=2")
    for line in printed["diff"].splitlines()[2:]:
        assert " ".join(line.split()) in page.words
    assert [problem["rule"] for problem in printed["backward"]] == [
        "READER_FIELD_MISSING_DEFAULT_VALUE"
    ]
    assert "Backward incompatible Forward compatible" in page.words
    assert printed["backward"][0]["message"] in page.words
    same = registry.visitor.get("/console/schema-diff/diff-value?before=2&after=2")
    assert "The texts are equal." in same.words


def test_a_refused_schema_is_shown_with_its_finding_and_an_edit(registry: Registry) -> None:
    registry.register("check-value", FIRST)
    good = registry.visitor.post(
        "/console/schema-check", form("check-value", SECOND), page="/console/schema-new"
    )
    assert good.message == "Compatible at level BACKWARD, compared with version 1."
    for path in ("/console/schema-check", "/console/schema-register"):
        bad = registry.visitor.post(
            path, form("check-value", REFUSED), page="/console/schema-new?subject=check-value"
        )
        assert "your schema cannot read data of version 1" in bad.words
        assert "READER_FIELD_MISSING_DEFAULT_VALUE /fields/1" in bad.words
        assert "Proposed edit, which is compatible" in bad.words
        assert '"must"' in bad.words
    assert registry.client.get_versions("check-value") == [1]
    malformed = registry.visitor.post(
        "/console/schema-check", form("check-value", {"type": "no"}), page="/console/schema-new"
    )
    assert malformed.status == 400
    assert "Invalid schema of type AVRO" in malformed.message


def test_a_schema_with_a_reference_is_registered(registry: Registry) -> None:
    registry.register("target", FIRST)
    holder = {"type": "record", "name": "K", "fields": [{"name": "o", "type": "Order"}]}
    fields = form("made-value", holder, references="Order=target:1")
    done = registry.visitor.post("/console/schema-register", fields, page="/console/schema-new")
    found = registry.client.get_latest_version("made-value")
    assert f"as version 1, with id {found.schema_id}." in done.message
    assert json.loads(found.schema.schema_str) == holder
    assert [item.subject for item in found.schema.references] == ["target"]
    wrong = registry.visitor.post(
        "/console/schema-register", {**fields, "references": "Order"}, page="/console/schema-new"
    )
    assert wrong.message == "References: 'Order' must read NAME=SUBJECT:VERSION"


def test_level_and_mode_are_set_and_reset(registry: Registry) -> None:
    registry.register("set-value", FIRST)
    path = "/console/schema-config/set-value"
    registry.visitor.post(path, {"level": "FULL_TRANSITIVE", "mode": "READONLY"})
    assert registry.client.get_compatibility("set-value") == "FULL_TRANSITIVE"
    registry.client.clear_caches()
    with pytest.raises(SchemaRegistryError, match="read-only mode"):
        registry.register("set-value", SECOND)
    registry.visitor.post(path, {"level": "", "mode": ""})
    with pytest.raises(SchemaRegistryError, match="40408"):
        registry.client.get_compatibility("set-value")
    registry.register("set-value", SECOND)
    unconfirmed = registry.visitor.post("/console/schema-config", {"level": "NONE", "mode": ""})
    assert "type 'all subjects' to confirm" in unconfirmed.message
    assert registry.client.get_compatibility() == "BACKWARD"


def test_a_subject_is_deleted_softly_then_permanently(registry: Registry) -> None:
    schema_id = registry.register("gone-value", FIRST)
    path = "/console/schema-delete/gone-value"
    preview = registry.visitor.get(path)
    assert f"version 1 with schema id {schema_id}" in preview.words
    wrong = registry.visitor.post(path, {"confirm": "other"})
    assert wrong.message == "type 'gone-value' to confirm; the field has 'other'"
    soft = registry.visitor.post(path, {"confirm": "gone-value"})
    assert soft.message == "Deleted softly, still to be read by id: 1 version of gone-value."
    assert "gone-value" not in registry.client.get_subjects()
    assert "gone-value" in registry.client.get_subjects(deleted=True)
    assert "gone-value" in registry.visitor.get("/console/schemas?show=deleted").words
    permanent = {"confirm": "gone-value", "permanent": "true"}
    done = registry.visitor.post(path, permanent, page=f"{path}?permanent=true")
    assert done.message == "Deleted permanently: 1 version of gone-value."
    assert "gone-value" not in registry.client.get_subjects(deleted=True)


def test_a_referenced_version_is_not_deleted(registry: Registry) -> None:
    registry.register("used", FIRST)
    holder = {"type": "record", "name": "U", "fields": [{"name": "o", "type": "Order"}]}
    registry.register("user-value", holder, SchemaReference("Order", "used", 1))
    path = "/console/schema-delete/used"
    assert "user-value:1 (version 1)" in registry.visitor.get(path).words
    refused = registry.visitor.post(path, {"confirm": "used"})
    assert "One or more references exist" in refused.message
    assert "used" in registry.client.get_subjects()


def test_hostile_names_and_texts_are_text(registry: Registry) -> None:
    schema = {**FIRST, "doc": HOSTILE}
    fields = form(HOSTILE, schema)
    done = registry.visitor.post("/console/schema-register", fields, page="/console/schema-new")
    assert done.status == 200
    path = quote(HOSTILE, safe="")
    for page in (
        f"/console/schemas/{path}",
        f"/console/schema-diff/{path}",
        f"/console/schema-delete/{path}",
        f"/console/schema-config/{path}",
        "/console/schemas?q=onerror",
    ):
        found = registry.visitor.get(page)
        assert found.status == 200
        assert HOSTILE in found.words
        assert "<img" not in found.text
    assert "<img" not in registry.visitor.get(f"/console/schema-new?subject={path}").text


def test_sensitive_metadata_is_hidden(registry: Registry) -> None:
    from confluent_kafka.schema_registry import Metadata, MetadataProperties

    properties = MetadataProperties({"owner": "sales", "token": "s3cret"})
    metadata = Metadata(tags=None, properties=properties, sensitive=["token"])
    schema = Schema(json.dumps(FIRST), "AVRO", [], metadata)
    registry.client.register_schema("meta-value", schema)
    page = registry.visitor.get("/console/schemas/meta-value")
    assert "owner sales token hidden" in page.words
    assert "s3cret" not in page.text


def test_a_subject_is_authorised_like_its_topic(registry: Registry, tmp_path: Path) -> None:
    registry.register("mine-value", FIRST)
    registry.register("theirs-value", FIRST)
    with registry.broker.client() as client:
        client.create_acls(
            [allow(operation, "topic", "mine", "alice") for operation in ("read", "write")]
        )
    alice = Visitor(registry.broker.admin_url, "alice")
    listed = alice.get("/console/schemas").words
    assert "mine-value" in listed
    assert "theirs-value" not in listed
    assert alice.get("/console/schemas/theirs-value").status == 403
    assert alice.get("/console/schema-delete/mine-value").status == 403
    assert alice.get("/console/schema-config/mine-value").status == 403
    page = alice.get("/console/schemas/mine-value")
    assert "New version" in page.words
    assert "Delete" not in page.words
    assert "Compatibility" not in page.words
    done = alice.post(
        "/console/schema-register", form("mine-value", SECOND), page="/console/schema-new"
    )
    assert "as version 2" in done.message
    refused = alice.post(
        "/console/schema-register", form("theirs-value", SECOND), page="/console/schema-new"
    )
    assert refused.status == 403
    assert registry.client.get_versions("theirs-value") == [1]


def test_a_broker_without_registry_and_authoriser_names_their_settings() -> None:
    with Broker() as broker:
        visitor = Visitor(broker.admin_url)
        assert "registry.enable true" in visitor.get("/console/schemas").words
        assert visitor.get("/console/schemas/orders-value").status == 404
        access = visitor.get("/console/access").words
        assert "This broker has no authoriser" in access
        assert "authorizer.class.name" in access
