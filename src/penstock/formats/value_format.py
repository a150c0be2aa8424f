"""Value format: a reader's configuration of how to decode values."""

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
    """Format of a value.

    `raw` returns the bytes, `text` is UTF-8. `json` has a schema in Spark's DDL, or `infer`.
    `json-schema`, `avro` and `protobuf` have their schema in `schema_file` (`.json`, `.avsc`,
    `.proto` or a compiled descriptor set); `message` is the full name of a Protobuf message.
    `framing` `confluent` skips the five bytes (and message indexes) of a schema registry's
    serialisers. `unknown_fields` `reject` makes a field outside the schema an error (JSON only).
    `zone` is that of times in JSON without one, by default the Spark session's. `decimals` `exact`
    rejects a value with digits that its column cannot hold: behind the point of a decimal, or
    behind the microseconds of a time. `round` rounds decimals half up and cuts times.
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
    """Check for missing or contradictory settings; open no file.

    Raises:
        InvalidFormat: names the setting and the reason.
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
        raise InvalidFormat("unknown_fields", "reject", f"is for JSON, the format is {kind}")
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
                "schema", INFER, "must be replaced by what infer_json finds before decoding"
            )
    elif value_format.schema is not None:
        raise InvalidFormat("schema", value_format.schema, f"is for json, the format is {kind}")
    filed = kind in ("json-schema", "avro", "protobuf")
    if filed and value_format.schema_file is None:
        raise InvalidFormat("schema_file", "", f"format {kind} needs a schema file")
    if not filed and value_format.schema_file is not None:
        raise InvalidFormat("schema_file", value_format.schema_file, f"format {kind} has none")
    if kind != "protobuf" and value_format.message is not None:
        raise InvalidFormat(
            "message", value_format.message, f"is for protobuf, the format is {kind}"
        )
