"""`penstock schema` against a registry: registration, verdicts, listings, deletion, settings."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.apps.schema.verdicts import split_version
from tests.apps.conftest import Ran, Run
from tests.apps.schema.conftest import BASKET, NAMED_ORDER, ORDER
from tests.ports import free_port

Schema = Callable[..., Ran]
REQUIRED_NAME = NAMED_ORDER.replace('["null","string"],"default":null', '"string"')


@pytest.fixture
def order(tmp_path: Path) -> str:
    path = tmp_path / "order.avsc"
    path.write_text(ORDER)
    return str(path)


@pytest.fixture
def required(tmp_path: Path) -> str:
    path = tmp_path / "required.avsc"
    path.write_text(REQUIRED_NAME)
    return str(path)


def test_registered_schemas_are_listed_and_printed(
    schema: Schema, order: str, tmp_path: Path
) -> None:
    assert schema("list").out == "no subjects\n"
    assert schema("register", "orders-value", order).out == "orders-value version 1 has id 1\n"
    assert schema("register", "orders-value", order).out == "orders-value version 1 has id 1\n"
    (tmp_path / "basket.json").write_text(BASKET)
    made = schema(
        "register", ":.shop:baskets", str(tmp_path / "basket.json"), "--type", "avro",
        "--reference", "Order=:.:orders-value:1", "--output", "json",
    )  # fmt: skip
    assert made.status == 0, made.err
    assert json.loads(made.out)["version"] == 1
    rows = json.loads(schema("list", "--output", "json").out)
    assert [(row["subject"], row["id"], row["type"]) for row in rows] == [
        (":.shop:baskets", 1, "AVRO"),
        ("orders-value", 1, "AVRO"),
    ]
    assert [
        row["subject"]
        for row in json.loads(schema("list", "--prefix", "or", "--output", "json").out)
    ] == ["orders-value"]
    assert ":.:orders-value:1" in schema("list", ":.shop:baskets").out
    assert schema("get", "orders-value").out == f"{ORDER}\n"
    assert (
        schema("get", "orders-value:1", "--pretty").out
        == json.dumps(json.loads(ORDER), indent=2) + "\n"
    )
    assert schema("get", "--id", "1").out == f"{ORDER}\n"
    assert schema("get", "--id", "1", "--context", "shop").out == f"{BASKET}\n"
    guid = json.loads(schema("get", "orders-value", "--output", "json").out)["guid"]
    assert schema("get", "--guid", guid).out == f"{ORDER}\n"
    resolved = json.loads(schema("get", ":.shop:baskets:latest", "--resolved").out)
    assert resolved["fields"][0]["type"]["name"] == "Order"


def test_an_incompatible_schema_is_refused_with_an_edit_that_is_accepted(
    schema: Schema, order: str, required: str, tmp_path: Path
) -> None:
    schema("register", "orders-value", order)
    proposal = tmp_path / "proposal.avsc"
    refused = schema("register", "orders-value", required, "--write-proposal", str(proposal))
    assert refused.status == 1
    assert "the new schema cannot read data of version 1:" in refused.out
    assert "READER_FIELD_MISSING_DEFAULT_VALUE at /fields/1: " in refused.out
    assert '+        "null",' in refused.out
    assert json.loads(proposal.read_text()) == json.loads(NAMED_ORDER)
    facts = json.loads(schema("register", "orders-value", required, "--output", "json").out)
    assert facts["compatible"] is False
    assert json.loads(facts["proposal"]) == json.loads(NAMED_ORDER)
    (problem,) = facts["incompatibilities"]
    assert (problem["version"], problem["direction"], problem["path"]) == (
        1, "backward", "/fields/1",
    )  # fmt: skip
    assert schema("register", "orders-value", str(proposal)).status == 0


def test_check_registers_nothing_and_may_use_another_level(
    schema: Schema, order: str, required: str
) -> None:
    assert schema("check", "orders-value", required).status == 0
    schema("register", "orders-value", order)
    assert schema("check", "orders-value", required).status == 1
    forward = schema("check", "orders-value", required, "--level", "forward")
    assert forward.status == 0
    assert "compatible with subject orders-value (FORWARD, compared versions: 1)" in forward.out
    assert schema("check", "orders-value", required, "--level", "NONE").status == 0
    schema("config", "orders-value", "--set", "FORWARD")
    assert schema("check", "orders-value", required).status == 0
    assert json.loads(schema("list", "--output", "json").out)[0]["versions"] == 1
    assert schema("check", "orders-value", "-", "--type", "AVRO", stdin=ORDER).status == 0


def test_diff_shows_the_texts_and_both_directions(
    schema: Schema, order: str, required: str
) -> None:
    schema("register", "orders-value", order)
    schema("config", "orders-value", "--set", "NONE")
    schema("register", "orders-value", required)
    found = schema("diff", "orders-value", "1", "latest")
    assert '+      "name": "name",' in found.out
    assert "backward: incompatible\nforward: compatible\n" in found.out
    assert "version 2 cannot read data of version 1:" in found.out
    facts = json.loads(schema("diff", "orders-value", "1", "2", "--output", "json").out)
    assert (facts["before"], facts["after"], facts["forward"]) == (1, 2, [])
    assert schema("diff", "orders-value", "2", "2").out.startswith("the texts are equal\n")


def test_deletion_is_soft_first(schema: Schema, order: str, required: str) -> None:
    schema("register", "orders-value", order)
    schema("config", "orders-value", "--set", "NONE")
    schema("register", "orders-value", required)
    assert schema("delete", "orders-value:1", stdin="n\n").status == 130
    assert schema("delete", "orders-value:1", "--yes").out == "deleted versions 1 of orders-value\n"
    rows = json.loads(schema("list", "orders-value", "--deleted", "--output", "json").out)
    assert [(row["version"], row["deleted"]) for row in rows] == [(1, True), (2, False)]
    assert schema("get", "orders-value:1").status == 1
    assert schema("get", "orders-value:1", "--deleted").out == f"{ORDER}\n"
    assert schema("get", "--id", "1").out == f"{ORDER}\n"
    gone = schema("delete", "orders-value", "--permanent", "--yes", "--output", "json")
    assert json.loads(gone.out)["versions"] == [1, 2]
    assert schema("list", "--deleted").out == "no subjects\n"
    assert schema("delete", "orders-value", "--yes").status == 1


def test_configs_and_modes(schema: Schema, order: str) -> None:
    schema("register", "orders-value", order)
    assert json.loads(schema("config", "--output", "json").out)["config"] == {
        "compatibilityLevel": "BACKWARD"
    }
    made = schema("config", "orders-value", "--set", "full", "--field", "normalize=true")
    assert made.status == 0, made.err
    facts = json.loads(schema("config", "orders-value", "--output", "json").out)
    assert facts["own"] == {"compatibilityLevel": "FULL", "normalize": True}
    assert schema("config", "orders-value", "--delete").status == 0
    assert "BACKWARD   wider scope" in schema("config", "orders-value").out
    assert schema("mode", "orders-value").out == (
        "subject orders-value has mode READWRITE (of the wider scope)\n"
    )
    assert schema("mode", "--set", "IMPORT").status == 1
    assert schema("mode", "--set", "IMPORT", "--force").out == "the registry has mode IMPORT\n"
    assert schema("mode", "orders-value", "--set", "READONLY").status == 0
    assert schema("mode", "--delete", "--recursive").status == 0
    assert json.loads(schema("mode", "orders-value", "--output", "json").out)["mode"] == "READWRITE"
    assert schema("mode", "--delete", "--set", "IMPORT").status == 2


def test_mistakes_are_explained(schema: Schema, order: str, tmp_path: Path) -> None:
    (tmp_path / "order.txt").write_text(ORDER)
    unknown = schema("register", "a", str(tmp_path / "order.txt"))
    assert (unknown.status, "give --type" in unknown.err) == (2, True)
    assert schema("register", "a", str(tmp_path / "missing.avsc")).status == 2
    odd = schema("register", "a", order, "--reference", "Order")
    assert "must read NAME=SUBJECT:VERSION" in odd.err
    (tmp_path / "bad.avsc").write_text('{"type": "record"}')
    bad = schema("register", "a", str(tmp_path / "bad.avsc"))
    assert (bad.status, bad.err.count("\n"), "42201" in bad.err) == (1, 1, True)
    assert schema("get").status == 2
    assert schema("get", "none").status == 1


def test_an_unreachable_registry(bare: Run) -> None:
    short = ("-X", "default.api.timeout.ms=100")
    ran = bare("schema", "get", "a", "--registry", f"127.0.0.1:{free_port()}", *short)
    assert ran.status == 3
    assert "penstock registry serve" in ran.err


def test_credentials_are_not_sent_over_plain_http(bare: Run, schema: Schema) -> None:
    user = (
        "-X", "security.protocol=SASL_PLAINTEXT", "-X", "sasl.mechanism=PLAIN",
        "-X", "sasl.username=alice", "-X", "sasl.password=secret",
    )  # fmt: skip
    ran = bare("schema", "get", "a", "--registry", "http://registry.invalid:8081", *user)
    assert ran.status == 1
    assert "credentials are only sent to https:// addresses" in ran.err
    assert "--anonymous" in ran.err
    refused = schema("list", *user)
    assert (refused.status, "--anonymous" in refused.err) == (1, True)
    assert schema("list", *user, "--anonymous").status == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("orders", ("orders", None)),
        ("orders:3", ("orders", 3)),
        ("orders:latest", ("orders", "latest")),
        (":.test:orders", (":.test:orders", None)),
        (":.test:orders:12", (":.test:orders", 12)),
        (":.test:5", (":.test:5", None)),
        ("a:b", ("a:b", None)),
        (":5", (":5", None)),
    ],
)
def test_names_with_versions(text: str, expected: tuple[str, object]) -> None:
    assert split_version(text) == expected
