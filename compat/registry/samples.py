"""Schemas and values that the clients exchange, in the three formats."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import grpc_tools
from grpc_tools import protoc

SCHEMAS: Final = Path(__file__).resolve().parent / "schemas"
ORDER: Final = "shop.Order"
LINE: Final = "shop.Label.Line"
FORMATS: Final = ("AVRO", "PROTOBUF", "JSON")

_FILES: Final = {
    "AVRO": ("address.avsc", "order.avsc", "shop.Address"),
    "PROTOBUF": ("shop/address.proto", "shop/order.proto", "shop/address.proto"),
    "JSON": ("address.json", "order.json", "address.json"),
}

_COMMON: Final[dict[str, Any]] = {
    "customer": "Ünï ☃",
    "amount": 0.1,
    "paid": True,
    "tags": ["a", "", "☃"],
    "address": {"street": "Main", "number": -7},
}
VALUES: Final[Mapping[str, list[Any]]] = {
    "AVRO": [
        {**_COMMON, "id": 2**53 - 2, "note": None, "status": "SENT", "counts": {"x": -5},
         "token": "AAH/", "placed": 1_700_000_000_123},
        {**_COMMON, "id": -1, "note": "n", "status": "OPEN", "counts": {}, "token": "",
         "placed": -1},
    ],
    "PROTOBUF": [
        {**_COMMON, "id": str(2**63 - 1), "note": "", "status": "STATUS_SENT",
         "counts": {"x": "-5"}, "token": "AAH/", "placed": "2023-11-14T22:13:20.123Z",
         "lines": [{"product": "p", "count": 3}], "card": "c"},
        {"id": "-1", "customer": "only"},
    ],
    "JSON": [
        {**_COMMON, "id": 2**53 - 1, "note": None, "status": "SENT", "counts": {"x": -5}},
        {"id": 1, "customer": "only"},
    ],
}  # fmt: skip
PING: Final = {"id": 7, "text": "ping"}


def address(kind: str) -> dict[str, Any]:
    """Return the schema to which that of an order refers."""
    return {"schema": _text(_FILES[kind][0]), "schemaType": kind}


def order(kind: str, subject: str, version: int = 1) -> dict[str, Any]:
    """Return the schema of an order; `subject` and `version` are those of the address."""
    _, file, name = _FILES[kind]
    reference = {"name": name, "subject": subject, "version": version}
    return {"schema": _text(file), "schemaType": kind, "references": [reference]}


def _text(file: str) -> str:
    return (SCHEMAS / file).read_text()


def record(
    name: str, *fields: tuple[str, Any], defaults: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the schema of an Avro record, with fields of the given names and types."""
    made = [{"name": field, "type": kind} for field, kind in fields]
    for field in made:
        if field["name"] in (defaults or {}):
            field["default"] = (defaults or {})[field["name"]]
    text = json.dumps({"type": "record", "name": name, "namespace": "shop", "fields": made})
    return {"schema": text, "schemaType": "AVRO"}


def with_source(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of an Avro record with a further field, whose default is `web`."""
    document = json.loads(schema["schema"])
    document["fields"].append({"name": "source", "type": "string", "default": "web"})
    return {**schema, "schema": json.dumps(document)}


def ping() -> dict[str, Any]:
    """Return a schema without references, for serializers that register it."""
    return record("Ping", ("id", "long"), ("text", "string"))


def descriptors() -> bytes:
    """Compile the Protobuf files; return them and their imports as a FileDescriptorSet."""
    included = Path(grpc_tools.__file__).parent / "_proto"
    with tempfile.TemporaryDirectory() as directory:
        made = Path(directory) / "descriptors"
        command = ["protoc", f"-I{SCHEMAS}", f"-I{included}", "--include_imports"]
        if protoc.main([*command, f"--descriptor_set_out={made}", "shop/order.proto"]) != 0:
            raise RuntimeError("protoc does not compile shop/order.proto")
        return made.read_bytes()
