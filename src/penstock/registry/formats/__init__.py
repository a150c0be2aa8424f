"""Schema formats of the registry: Avro, Protobuf and JSON Schema."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.registry.formats.schema import Dependency, ParsedSchema, SchemaType


def parse(
    schema_type: SchemaType, text: str, dependencies: Sequence[Dependency] = ()
) -> ParsedSchema:
    """Parse a schema of any type. A dependency precedes those that refer to it.

    Raises:
        InvalidSchema: the schema is malformed, too large, or refers to an unknown type.
    """
    if schema_type == "AVRO":
        from penstock.registry.formats.avro import parse_avro

        return parse_avro(text, dependencies)
    if schema_type == "PROTOBUF":
        from penstock.registry.formats.protobuf import parse_protobuf

        return parse_protobuf(text, dependencies)
    from penstock.registry.formats.json_schema import parse_json_schema

    return parse_json_schema(text, dependencies)
