"""Plans of imports: order, conflicts, invalid schemas; and the comparison that verifies."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from penstock.apps.schema.plan import (
    ImportConflict,
    ImportPlan,
    plan_import,
    verify,
    waves_of,
    with_numbers,
)
from penstock.apps.schema.snapshot import Snapshot
from tests.apps.schema.conftest import BASKET, NAMED_ORDER, ORDER, shop, snapshot, version

REFERS = (("Order", "orders-value", 1),)
SPACED = ORDER.replace(":", " : ")


def waves(plan: ImportPlan) -> list[list[str]]:
    return [sorted(found.shown for found in wave) for wave in plan.waves]


def unchanged(plan: ImportPlan) -> bool:
    return plan.problems == [] and not any(plan.changes.values())


def test_schemas_follow_those_to_which_they_refer() -> None:
    source = snapshot(
        version("c", 1, 3, '"string"', references=(("B", "b", 1),)),
        version("b", 1, 2, BASKET, references=(("Order", "a", 1),)),
        version("a", 1, 1),
        version("z", 1, 4, '"int"'),
    )
    plan = plan_import(source, Snapshot())
    assert plan.problems == []
    assert waves(plan) == [["a version 1", "z version 1"], ["b version 1"], ["c version 1"]]


def test_what_exists_is_not_imported_again() -> None:
    plan = plan_import(shop(), shop())
    assert unchanged(plan)
    assert plan.present == 6


def test_only_formatting_may_differ() -> None:
    source = snapshot(version("a", 1, 1, SPACED), version("b", 1, 1))
    assert unchanged(plan_import(source, snapshot(version("a", 1, 1), version("b", 1, 1))))
    verified = verify(source, snapshot(version("a", 1, 1), version("b", 1, 1)))
    assert (verified.differences, verified.reformatted) == ([], 1)
    sorted_keys = json.dumps(json.loads(ORDER), sort_keys=True)
    aliased = ORDER.replace('"Order"', '"Order","aliases":[]')
    source = snapshot(version("a", 1, 1, sorted_keys), version("b", 1, 2, aliased))
    assert verify(source, snapshot(version("a", 1, 1), version("b", 1, 2))).reformatted == 2
    plain, odd = version("a", 1, 1), version("a", 1, 1)
    empty = {"tags": {}, "properties": {"owner": "me"}, "sensitive": []}
    plain = replace(plain, schema=replace(plain.schema, metadata={"properties": {"owner": "me"}}))
    odd = replace(odd, schema=replace(odd.schema, metadata=empty, rule_set={"domainRules": []}))
    assert verify(snapshot(odd), snapshot(plain)).differences == []
    bound = '{"type":"record","name":"A","fields":[{"name":"a","type":"%s","default":%s}]}'
    for kind, given, other in (("int", "1", "true"), ("double", "1.0", "1.5")):
        source = snapshot(version("a", 1, 1, bound % (kind, given)))
        assert verify(source, snapshot(version("a", 1, 1, bound % (kind, other)))).differences
    protobuf = 'syntax = "proto3";\nmessage A { int32 a = 1; }'
    commented = protobuf.replace("{", "{ // a comment\n")
    source = snapshot(version("p", 1, 1, commented, kind="PROTOBUF"))
    assert unchanged(plan_import(source, snapshot(version("p", 1, 1, protobuf, kind="PROTOBUF"))))


def test_all_conflicts_are_named_at_once_and_with_both_sides() -> None:
    source = snapshot(
        version("a", 1, 1, '"int"'),
        version("b", 1, 2),
        version("c", 1, 3),
        version("d", 1, 4, NAMED_ORDER),
        version("e", 1, 5, '"int"'),
        version("f", 1, 5, '"long"'),
        version(":.x:a", 1, 1, '"int"'),
    )
    target = snapshot(
        version("other", 1, 1),
        version("b", 1, 20),
        version("c", 1, 3, deleted=True),
        version("d", 1, 4),
    )
    plan = plan_import(source, target)
    assert plan.problems == [
        "id 1 of a version 1 belongs to another schema in the registry, that of other version 1",
        "b version 1 has id 2 in the source, and id 20 in the registry",
        "c version 1 is deleted in the registry, but not in the source",
        "d version 1 has another schema in the registry, with the same id 4",
        "id 5 has two schemas in the source, those of e version 1 and of f version 1",
    ]
    with pytest.raises(ImportConflict) as error:
        plan.check()
    assert all(problem in str(error.value) for problem in plan.problems)


def test_invalid_schemas_and_their_referrers_can_be_left_out() -> None:
    source = snapshot(
        version("bad", 1, 1, '{"type":"record"}'),
        version("user", 1, 2, BASKET, references=(("Order", "bad", 1),)),
        version("user-of-user", 1, 3, '"string"', references=(("X", "user", 1),)),
        version("unknown", 1, 4, "x", kind="XML"),
        version("lost", 1, 5, BASKET, references=(("Order", "gone", 9),)),
        version("good", 1, 6),
    )
    plan = plan_import(source, Snapshot())
    assert len(plan.problems) == 5  # those that refer to an invalid schema are invalid, too
    assert any("the type XML is not one of" in problem for problem in plan.problems)
    assert any("subject 'gone' version 9, which does not exist" in text for text in plan.problems)
    skipping = plan_import(source, Snapshot(), skip_invalid=True)
    assert waves(skipping) == [["good version 1"]]
    assert len(skipping.skipped) == 5
    assert verify(source, snapshot(version("good", 1, 6)), skipping.skipped).differences == []


def test_referrers_of_conflicts_are_left_out_with_them() -> None:
    source = snapshot(
        version("a", 1, 1),
        version("b", 1, 2, BASKET, references=(("Order", "a", 1),)),
        version("c", 1, 3, '"string"', references=(("B", "b", 1),)),
        version("d", 1, 4),
    )
    plan = plan_import(source, snapshot(version("x", 1, 1, '"int"')), skip_invalid=True)
    assert waves(plan) == [["d version 1"]]
    assert plan.problems[1:] == [
        "b version 1 refers to a version 1, which is left out",
        "c version 1 refers to b version 1, which is left out",
    ]


def test_references_may_lead_to_schemas_of_the_registry() -> None:
    source = snapshot(version("baskets-value", 1, 9, BASKET, references=REFERS))
    plan = plan_import(source, snapshot(version("orders-value", 1, 7)))
    assert (plan.problems, waves(plan)) == ([], [["baskets-value version 1"]])


def test_circles_are_refused() -> None:
    source = snapshot(
        version("a", 1, 1, '"int"', references=(("B", "b", 1),)),
        version("b", 1, 2, '"string"', references=(("A", "a", 1),)),
        version("c", 1, 3),
    )
    plan = plan_import(source, Snapshot())
    assert sorted(plan.skipped) == [("a", 1), ("b", 1)]
    assert all("refers to itself" in problem for problem in plan.problems)


def test_references_to_the_latest_version_get_its_number() -> None:
    source = snapshot(
        version("a", 1, 1),
        version("a", 2, 2, NAMED_ORDER),
        version("a", 3, 2, NAMED_ORDER, deleted=True),
        version("b", 1, 3, BASKET, references=(("Order", "a", -1),)),
    )
    (reference,) = with_numbers(source).versions["b", 1].schema.references
    assert reference.version == 2


def test_deletions_come_in_reverse_order() -> None:
    source = snapshot(
        version("a", 1, 1, deleted=True),
        version("b", 1, 2, BASKET, references=(("Order", "a", 1),), deleted=True),
    )
    plan = plan_import(source, Snapshot())
    assert [[found.subject for found in wave] for wave in plan.deletions] == [["b"], ["a"]]
    alive = {key: replace(found, deleted=False) for key, found in source.versions.items()}
    again = plan_import(source, Snapshot(versions=alive))
    assert (again.waves, len(again.deletions)) == ([], 2)


def test_configs_and_modes_that_differ_are_set() -> None:
    plan = plan_import(shop(), snapshot())
    assert plan.configs == shop().configs
    assert plan.modes == {"copies": "READONLY", ":.test:": "READONLY"}
    whole = shop()
    whole.modes[""] = "READONLY"  # typical of a source that is being replaced
    assert "" not in plan_import(whole, shop()).modes


def test_every_difference_is_found() -> None:
    def differences(after: Snapshot) -> list[str]:
        return verify(shop(), after).differences

    assert differences(shop()) == []
    for key in shop().versions:
        lacking = shop()
        del lacking.versions[key]
        (found,) = differences(lacking)
        assert "is missing" in found
        for change in (
            {"id": 99},
            {"deleted": not shop().versions[key].deleted},
            {"schema": version("a", 1, 1, '"bytes"').schema},
        ):
            changed = shop()
            changed.versions[key] = replace(changed.versions[key], **change)
            assert len(differences(changed)) == 1, (key, change)
    for configs in ({}, {"": {"compatibilityLevel": "NONE"}}):
        changed = shop()
        changed.configs = dict(configs)
        assert len(differences(changed)) == 2
    changed = shop()
    changed.modes = {}
    assert len(differences(changed)) == 2


def test_waves_of_many_versions() -> None:
    chain = snapshot(
        *[
            version(f"s{n}", 1, n + 1, references=((f"r{n}", f"s{n - 1}", 1),) if n else ())
            for n in range(2_000)
        ]
    )
    assert [len(wave) for wave in waves_of(chain.versions)] == [1] * 2_000
