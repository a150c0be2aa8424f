"""`penstock schema import` and `export`: between registries, files and topics, and after a kill."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.apps.schema.files import encode, read_export
from penstock.apps.schema.snapshot import Snapshot
from penstock.client import Client
from penstock.client.schemas import SchemaClient
from tests.apps.conftest import Ran
from tests.apps.schema.conftest import (
    BASKET,
    NAMED_ORDER,
    ORDER,
    content,
    shop,
    snapshot,
    version,
)
from tests.apps.schema.foreign import Habit, foreign
from tests.apps.schema.test_schemas_topic import deletion, record, stored, write

Schema = Callable[..., Ran]
TIMEOUT_SECONDS = 60.0


def write_source(path: Path, source: Snapshot) -> str:
    path.write_bytes(encode(source, "http://old:8081"))
    return str(path)


def counts(ran: Ran) -> tuple[int, int, int, int]:
    assert ran.status == 0, ran.err
    found = json.loads(ran.out)
    return found["registered"], found["deleted"], found["configs"], found["modes"]


def test_an_export_is_imported_and_exported_again(
    schema: Schema, registry: str, tmp_path: Path
) -> None:
    source = write_source(tmp_path / "source.jsonl", shop())
    dry = schema("import", source, "--dry-run")
    assert "6 registrations, 1 soft deletion, changes of 2 configs and 2 modes" in dry.out
    assert content(registry).versions == {}
    made = schema("import", source)
    assert made.status == 0, made.err
    assert "imported" in made.out
    assert "verified 6 versions, 4 ids and all configs and modes" in made.out
    found = content(registry)
    assert found == shop()
    again = schema("import", source)
    assert again.out.startswith("nothing to import:")
    assert counts(schema("import", source, "--output", "json")) == (0, 0, 0, 0)
    exported = schema("export", str(tmp_path), "--output", "json")
    assert json.loads(exported.out)["versions"] == 6
    assert read_export(tmp_path)[1] == shop()
    assert not list((tmp_path / "state").rglob("*.json"))


def test_a_registry_is_imported_from_another_one(
    schema: Schema, registry: str, new_registry: Callable[[], str], tmp_path: Path
) -> None:
    assert schema("import", write_source(tmp_path / "source.jsonl", shop())).status == 0
    other = new_registry()
    assert schema("import", registry, "--registry", other).status == 0
    assert content(other) == content(registry)
    itself = schema("import", registry)
    assert (itself.status, "is the registry to import into" in itself.err) == (2, True)
    with SchemaClient(other) as client:
        assert client.register("new", shop().versions["orders-value", 2].schema) == 8
        client.request("PUT", ("config", "new"), {"compatibility": "NONE"})
        assert client.register("new", version("a", 1, 1, '"string"').schema) == 10


def test_one_context_is_imported_alone(schema: Schema, registry: str, tmp_path: Path) -> None:
    source = write_source(tmp_path / "source.jsonl", shop())
    assert schema("import", source, "--context", "test").status == 0
    found = content(registry)
    assert list(found.versions) == [(":.test:orders-value", 1)]
    assert (found.configs, found.modes) == ({}, {":.test:": "READONLY"})
    assert schema("import", source, "--context", ".").status == 0
    assert content(registry) == shop()


def test_a_context_is_moved_into_another_one(schema: Schema, registry: str, tmp_path: Path) -> None:
    source = write_source(tmp_path / "source.jsonl", shop())
    several = schema("import", source, "--into", "team")
    assert (several.status, "Choose one with --context" in several.err) == (1, True)
    other = snapshot(version("things", 1, 7, '"string"'))
    assert schema("import", write_source(tmp_path / "other.jsonl", other)).status == 0
    words = ("import", source, "--context", ".", "--into", "team")
    assert schema(*words).status == 0
    found = content(registry)
    assert set(found.versions) == {
        ("things", 1),
        *((f":.team:{key[0]}", key[1]) for key in shop().of_context(".").versions),
    }
    (reference,) = found.versions[":.team:baskets-value", 1].schema.references
    assert (reference.subject, found.versions[":.team:baskets-value", 1].id) == ("orders-value", 9)
    assert found.configs[":.team:"] == {"compatibilityLevel": "FULL"}
    assert found.modes == {":.team:copies": "READONLY"}
    assert schema(*words).out.startswith("nothing to import:")


@pytest.mark.parametrize("habit", ["pages", "inverted", "no list"])
def test_registries_of_others(schema: Schema, registry: str, habit: Habit) -> None:
    source = shop()
    with foreign(source, habit) as url:
        assert counts(schema("import", url, "--output", "json")) == (
            6, 1, 2, 0 if habit == "inverted" else 2,
        )  # fmt: skip
        assert counts(schema("import", url, "--output", "json")) == (0, 0, 0, 0)
    if habit == "inverted":  # it has no modes of subjects
        source.modes = {}
    assert content(registry) == source


def test_a_topic_is_imported(schema: Schema, registry: str, bootstrap: str, tmp_path: Path) -> None:
    references = [{"name": "Order", "subject": "orders-value", "version": 1}]
    spaced = json.dumps(json.loads(ORDER), sort_keys=True)  # as Karapace writes it
    with Client(bootstrap) as client:
        client.create_topic("schemas-import", 1)
        write(
            client,
            "schemas-import",
            record(None, keytype="NOOP", magic=0),
            stored("orders-value", 1, 7, magic=0, schema=spaced),
            stored("orders-value", 2, 8, schema=NAMED_ORDER, deleted=True),
            stored("gone", 1, 12),
            deletion("gone", 1),
            stored("baskets-value", 1, 9, schema=BASKET, references=references),
            stored(":.test:orders-value", 1, 1, schema='{"type":"object"}', schemaType="JSON"),
            record({"compatibilityLevel": "FULL"}, keytype="CONFIG", subject=None, magic=0),
            record({"mode": "READONLY"}, keytype="MODE", subject=None, magic=0),
            record({}, keytype="ASSOC", magic=0),
        )
    # One connection registers in order, so Karapace's text is stored first, and in normal spacing.
    made = schema("import", "topic:schemas-import", "-b", bootstrap, "--connections", "1")
    assert made.status == 0, made.err
    assert "skipped 1 record of topic schemas-import: the key type ASSOC is unknown" in made.err
    assert "\n2 texts differ in formatting only\n" in made.out  # equal schemas share one text
    found = content(registry)
    assert {key: (v.id, v.deleted) for key, v in found.versions.items()} == {
        ("orders-value", 1): (7, False),
        ("orders-value", 2): (8, True),
        ("gone", 1): (12, True),
        ("baskets-value", 1): (9, False),
        (":.test:orders-value", 1): (1, False),
    }
    assert found.configs == {"": {"compatibilityLevel": "FULL"}}
    assert found.modes == {}  # that of the whole registry is its own
    (tmp_path / "kafka.properties").write_text("security.protocol=PLAINTEXT\n")
    own = ("--source-config", str(tmp_path / "kafka.properties"))
    again = schema("import", "topic:schemas-import", "-b", bootstrap, *own)
    assert again.out.startswith("nothing to import:")
    odd = schema("import", "topic:schemas-import", "-b", bootstrap, "--source-config", "none")
    assert (odd.status, "none" in odd.err) == (1, True)


def test_conflicts_change_nothing(schema: Schema, registry: str, tmp_path: Path) -> None:
    first = snapshot(version("orders-value", 1, 1), version("things", 1, 2, '"string"'))
    assert schema("import", write_source(tmp_path / "first.jsonl", first)).status == 0
    second = snapshot(
        version("new", 1, 3),
        version("users", 1, 1, '"int"'),
        version("things", 1, 2, '"bytes"'),
    )
    source = write_source(tmp_path / "second.jsonl", second)
    refused = schema("import", source)
    assert refused.status == 1
    assert "id 1 of users version 1 belongs to another schema" in refused.err
    assert "that of orders-value version 1" in refused.err
    assert "things version 1 has another schema in the registry" in refused.err
    assert content(registry) == first
    skipped = schema("import", source, "--skip-invalid")
    assert skipped.status == 0, skipped.err
    assert skipped.out.count("left out: ") == 2
    assert set(content(registry).versions) == {*first.versions, ("new", 1)}


@pytest.mark.parametrize("mode", [None, "READWRITE", "READONLY", "READONLY_OVERRIDE", "IMPORT"])
def test_modes_are_restored(
    schema: Schema, registry: str, tmp_path: Path, mode: str | None
) -> None:
    assert schema("import", write_source(tmp_path / "a.jsonl", shop())).status == 0
    if mode is not None:
        schema("mode", "--set", mode, "--force")
    more = shop()
    more.versions["copies", 4] = version("copies", 4, 30, '"string"')
    made = schema("import", write_source(tmp_path / "b.jsonl", more))
    assert made.status == 0, made.err
    found = content(registry)
    assert found.modes == {**({} if mode is None else {"": mode}), **shop().modes}
    assert ("copies", 4) in found.versions
    assert ("stays so" in made.out) == (mode == "IMPORT")


def test_modes_are_restored_after_an_error(schema: Schema, registry: str, tmp_path: Path) -> None:
    source = shop()
    source.configs["orders-value"] = {"compatibilityLevel": "ODD"}
    refused = schema("import", write_source(tmp_path / "source.jsonl", source))
    assert refused.status == 1
    assert "42203" in refused.err
    assert content(registry).modes == {}
    source.configs["orders-value"] = {"compatibilityLevel": "NONE"}
    again = schema("import", write_source(tmp_path / "source.jsonl", source), "--output", "json")
    assert counts(again)[:2] == (0, 0)
    assert content(registry) == source


def test_a_journal_that_cannot_be_written_changes_nothing(
    schema: Schema, registry: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    source = write_source(tmp_path / "source.jsonl", shop())
    refused = schema("import", source, "--journal", str(tmp_path / "file" / "journal"))
    assert (refused.status, "--journal" in refused.err) == (1, True)
    assert content(registry) == Snapshot()


def many(count: int) -> Snapshot:
    """Versions with texts of their own; every tenth refers to the one before it."""
    found = []
    for number in range(count):
        fields = f'{{"name":"f{number}","type":"long"}}'
        references: tuple[tuple[str, str, int], ...] = ()
        if number % 10 == 9:
            name = f"R{number - 1}"
            fields += f',{{"name":"parent","type":"{name}"}}'
            references = ((name, f"s{number - 1}", 1),)
        text = f'{{"type":"record","name":"R{number}","fields":[{fields}]}}'
        found.append(version(f"s{number}", 1, number + 1, text, references=references))
    return snapshot(*found)


def test_an_import_that_was_killed_is_completed(
    schema: Schema, registry: str, tmp_path: Path
) -> None:
    source = write_source(tmp_path / "source.jsonl", many(800))
    journal = tmp_path / "journal.json"
    words = ["import", source, "--connections", "2", "--journal", str(journal)]
    command = [sys.executable, "-m", "penstock", "schema", *words]
    with (
        subprocess.Popen(command, env={**os.environ, "PENSTOCK_REGISTRY": registry}) as process,
        SchemaClient(registry) as client,
    ):
        end = time.monotonic() + TIMEOUT_SECONDS
        while len(client.subjects()) < 60:
            assert process.poll() is None, "it ended before it could be killed"
            assert time.monotonic() < end, "it registers nothing"
            threading.Event().wait(0.01)
        process.kill()
    left = content(registry)
    assert 60 <= len(left.versions) < 800
    assert left.modes == {"": "IMPORT"}
    assert json.loads(journal.read_text()) == {"": None}
    done = json.loads(schema(*words, "--output", "json").out)
    assert done["registered"] + done["present"] == 800
    assert 0 <= done["present"] - len(left.versions) <= 2  # requests that were under way
    assert content(registry) == many(800)
    assert not journal.exists()
    assert schema(*words).out.startswith("nothing to import:")


def test_a_kill_before_the_modes_were_restored(
    schema: Schema, registry: str, tmp_path: Path
) -> None:
    source = write_source(tmp_path / "source.jsonl", shop())
    journal = tmp_path / "journal.json"
    assert schema("import", source, "--journal", str(journal)).status == 0
    schema("mode", "--set", "IMPORT", "--force")
    journal.write_text('{"":"READONLY"}')
    assert schema("import", source, "--journal", str(journal)).status == 0
    assert content(registry).modes[""] == "READONLY"
    journal.write_text("not JSON")
    odd = schema("import", source, "--journal", str(journal))
    assert (odd.status, "is damaged" in odd.err) == (1, True)


def test_sources_that_cannot_be_read(schema: Schema, bootstrap: str, tmp_path: Path) -> None:
    missing = schema("import", str(tmp_path / "none.jsonl"))
    assert (missing.status, "A source is a URL, topic:NAME" in missing.err) == (2, True)
    (tmp_path / "odd.jsonl").write_text("odd")
    odd = schema("import", str(tmp_path / "odd.jsonl"))
    assert (odd.status, "odd.jsonl, line 1: " in odd.err) == (1, True)
    unknown = schema("import", "topic:none", "-b", bootstrap)
    assert (unknown.status, "none" in unknown.err) == (1, True)
    assert schema("export", str(tmp_path / "none" / "file"), "--context", "test").status == 0
    (tmp_path / "file").write_text("")
    refused = schema("export", str(tmp_path / "file" / "file"))
    assert (refused.status, f"{tmp_path / 'file' / 'file'}: File exists" in refused.err) == (
        2,
        True,
    )
