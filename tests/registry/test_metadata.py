"""Metadata and rule sets in their stored form."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from penstock.registry import decisions
from penstock.registry.errors import OperationNotPermitted, RejectedSchema
from penstock.registry.state import RegistryState
from penstock.registry.values import NESTING_MAX, Config, Schema, Subject, compact


def nested(levels: int) -> Any:
    found: Any = "x"
    for _ in range(levels):
        found = {"a": found}
    return found


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, None),
        ({"tags": {}, "properties": {"a": ""}, "sensitive": []}, {"properties": {"a": ""}}),
        ({"domainRules": [{"name": "r", "disabled": False, "doc": None}], "migrationRules": []},
         {"domainRules": [{"name": "r"}]}),
        ({"domainRules": [{"name": "r", "disabled": True}]},
         {"domainRules": [{"name": "r", "disabled": True}]}),
        ({"properties": {"count": 0}}, {"properties": {"count": 0}}),
    ],
)  # fmt: skip
def test_empty_members_are_removed(given: Any, expected: Any) -> None:
    assert compact(given) == expected


def test_levels_are_bounded() -> None:
    assert compact(nested(NESTING_MAX)) == nested(NESTING_MAX)
    with pytest.raises(RejectedSchema):
        compact(nested(NESTING_MAX + 1))


def test_schemas_that_differ_in_empty_members_have_one_guid() -> None:
    def guid(metadata: Any) -> UUID:
        given = Schema(schema="x", metadata=metadata)
        kept = decisions.with_defaults(given, Config())
        return Schema(schema="x", **kept).guid("x")

    assert guid({"properties": {}, "sensitive": []}) == guid(None)
    assert guid({"properties": {"a": "b"}, "tags": None}) == guid({"properties": {"a": "b"}})
    assert guid({"properties": {"a": "b"}}) != guid(None)


def test_the_default_context_is_kept() -> None:
    with pytest.raises(OperationNotPermitted):
        decisions.delete_context(RegistryState(), Subject(".", ""))
    assert decisions.delete_context(RegistryState(), Subject(".unused", "")).rows == []
