"""Errors of formats with contradictory settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.formats import InvalidFormat, ValueFormat
from penstock.formats.value_format import check


@pytest.mark.parametrize(
    ("settings", "name", "reason"),
    [
        ({"kind": "xml"}, "format", "must be one of"),
        ({"kind": "json"}, "schema", "needs a schema"),
        ({"kind": "json", "schema": "infer"}, "schema", "infer_json"),
        ({"kind": "text", "schema": "a int"}, "schema", "needs format json, not text"),
        ({"kind": "avro"}, "schema_file", "needs a schema file"),
        ({"kind": "raw", "schema_file": Path("x")}, "schema_file", "has no schema file"),
        ({"kind": "raw", "message": "A"}, "message", "needs format protobuf, not raw"),
        ({"kind": "raw", "framing": "confluent"}, "framing", "has no framing"),
        ({"kind": "text", "unknown_fields": "reject"}, "unknown_fields", "needs format json"),
        ({"kind": "text", "decimals": "round"}, "decimals", "format text has no decimals"),
        (
            {"kind": "json", "schema": "a int", "decimals": "floor"},
            "decimals",
            "must be exact or round",
        ),
    ],
)
def test_settings_that_cannot_be(settings: Any, name: str, reason: str) -> None:
    with pytest.raises(InvalidFormat) as raised:
        check(ValueFormat(**settings))
    assert raised.value.name == name
    assert reason in raised.value.reason


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"kind": "json", "schema": "a int", "unknown_fields": "reject", "framing": "confluent"},
        {"kind": "protobuf", "schema_file": Path("a.proto"), "message": "a.B"},
    ],
)
def test_settings_that_can_be(settings: Any) -> None:
    check(ValueFormat(**settings))
