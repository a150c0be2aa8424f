"""Value format: the settings that define how record values are decoded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from penstock.formats.errors import InvalidFormat

Kind = Literal["raw", "text", "json", "json-schema", "avro", "protobuf"]
Framing = Literal["none", "confluent"]
UnknownFields = Literal["ignore", "reject"]
Decimals = Literal["exact", "round"]

KINDS: Final[tuple[Kind, ...]] = ("raw", "text", "json", "json-schema", "avro", "protobuf")
INFER: Final = "infer"


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueFormat:
    """Format of record values.

        kind            `raw` returns the bytes, `text` is UTF-8; the others have a schema
        schema          for `json`: Spark's DDL, or `infer`
        schema_file     for `json-schema`, `avro`, `protobuf`: a `.json`, `.avsc` or `.proto` file,
                        or a compiled descriptor set
        message         for `protobuf`: the full name of the message
        framing         `confluent` skips the header of a schema registry (`framing.py`)
        unknown_fields  for JSON: `reject` makes a field outside the schema an error
        zone            for JSON: the zone of times without one; None is the Spark session's
        decimals        `exact` rejects values with more digits than their column holds, after the
                        point of a decimal or after the microseconds of a time; `round` rounds
                        decimals half up, and cuts times

    `check` reports settings that are missing or contradict each other.
    """

    kind: Kind = "raw"
    schema: str | None = None
    schema_file: Path | None = None
    message: str | None = None
    framing: Framing = "none"
    unknown_fields: UnknownFields = "ignore"
    zone: str | None = None
    decimals: Decimals = "exact"


def check(value_format: ValueFormat) -> None:
    """Check for missing or contradictory settings, without opening a file.

    Raises:
        InvalidFormat: a setting is wrong; the error names it with the reason.
    """
    kind = value_format.kind
    if kind not in KINDS:
        raise InvalidFormat("format", kind, f"must be one of {', '.join(KINDS)}")
    _check_needs(value_format)
    if value_format.framing not in ("none", "confluent"):
        raise InvalidFormat("framing", value_format.framing, "must be none or confluent")
    if value_format.framing != "none" and kind in ("raw", "text"):
        raise InvalidFormat("framing", value_format.framing, f"format {kind} has no framing")
    if value_format.unknown_fields not in ("ignore", "reject"):
        raise InvalidFormat(
            "unknown_fields", value_format.unknown_fields, "must be ignore or reject"
        )
    if value_format.unknown_fields == "reject" and kind not in ("json", "json-schema"):
        raise InvalidFormat("unknown_fields", "reject", f"is for JSON, but the format is {kind}")
    if value_format.decimals not in ("exact", "round"):
        raise InvalidFormat("decimals", value_format.decimals, "must be exact or round")
    if value_format.decimals != "exact" and kind in ("raw", "text"):
        raise InvalidFormat("decimals", value_format.decimals, f"format {kind} has no decimals")


def _check_needs(value_format: ValueFormat) -> None:
    kind = value_format.kind
    if kind == "json":
        if not value_format.schema:
            raise InvalidFormat("schema", "", "format json needs a schema in Spark's DDL")
        if value_format.schema.strip().lower() == INFER:
            raise InvalidFormat(
                "schema", INFER, "must be replaced by the result of infer_json before decoding"
            )
    elif value_format.schema is not None:
        raise InvalidFormat("schema", value_format.schema, f"is for json, but the format is {kind}")
    filed = kind in ("json-schema", "avro", "protobuf")
    if filed and value_format.schema_file is None:
        raise InvalidFormat("schema_file", "", f"format {kind} needs a schema file")
    if not filed and value_format.schema_file is not None:
        reason = f"format {kind} has no schema file"
        raise InvalidFormat("schema_file", value_format.schema_file, reason)
    if kind != "protobuf" and value_format.message is not None:
        raise InvalidFormat(
            "message", value_format.message, f"is for protobuf, but the format is {kind}"
        )
