"""Value format: the settings that define how record values are decoded."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

from penstock.base.errors import InvalidError


class InvalidFormat(InvalidError):
    """Value format that is incomplete, or whose schema is malformed or not supported.

    `name` is the setting (schema, schema_file, message, …), `value` its value.
    """

    code: ClassVar[str] = "invalid_config"

    def __init__(self, name: str, value: object, reason: str) -> None:
        super().__init__(f"{name} = {str(value)!r}: {reason}")
        self.name = name
        self.value = value
        self.reason = reason


Kind = Literal["raw", "text", "json", "json-schema", "avro", "protobuf", "registry", "debezium"]
Framing = Literal["none", "confluent"]
UnknownFields = Literal["ignore", "reject"]
Decimals = Literal["exact", "round"]
DecimalHandling = Literal["precise", "string"]

KINDS: Final[tuple[Kind, ...]] = (
    "raw", "text", "json", "json-schema", "avro", "protobuf", "registry", "debezium",
)  # fmt: skip
INFER: Final = "infer"
NEWEST: Final = "latest"
DEBEZIUM: Final = "debezium"
_UNFRAMED: Final = ("raw", "text", "registry", DEBEZIUM)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueFormat:
    """Format of record values.

        kind            `raw` returns the bytes, `text` is UTF-8; the others have a schema
        schema          for `json`: Spark's DDL, or `infer`; for `debezium`: the DDL of a row; for
                        `registry`: the pinned schema of the reader, a `ReaderSchema` as JSON
        schema_file     for `json-schema`, `avro`, `protobuf`: a `.json`, `.avsc` or `.proto` file,
                        or a compiled descriptor set
        message         for `protobuf` and `registry`: the full name of a Protobuf message
        framing         `confluent` skips the header of a schema registry (`framing.py`)
        ids             with `framing`: the accepted schema ids; all are accepted if it is empty
        registry        for `registry`: the URL of the schema registry
        registry_config for `registry`: a file with the security options of its client
        subject         for `registry`: the subject of the reader's schema
        reader          for `registry`: `latest`, a version, `id N`, or a schema file
        envelope        for `registry`: `debezium` reads change events into the columns of a row
        unknown_fields  for JSON: `reject` makes a field outside the schema an error
        zone            for JSON: the zone of times without one; None is the Spark session's
        decimals        `exact` rejects values with more digits than their column holds, after the
                        point of a decimal or after the microseconds of a time; `round` rounds
                        decimals half up, and cuts times
        decimal_handling  for `debezium`: `precise` reads a decimal's string as base64 of its
                        unscaled bytes, `string` as its digits
        milliseconds    for `debezium`: timestamp columns whose numbers are milliseconds; others are
                        microseconds

    `check` reports settings that are missing or contradict each other.
    """

    kind: Kind = "raw"
    schema: str | None = None
    schema_file: Path | None = None
    message: str | None = None
    framing: Framing = "none"
    ids: tuple[int, ...] = ()
    registry: str | None = None
    registry_config: Path | None = None
    subject: str | None = None
    reader: str = NEWEST
    envelope: str | None = None
    unknown_fields: UnknownFields = "ignore"
    zone: str | None = None
    decimals: Decimals = "exact"
    decimal_handling: DecimalHandling = "precise"
    milliseconds: tuple[str, ...] = ()

    @property
    def has_changes(self) -> bool:
        """Whether values are change events."""
        return DEBEZIUM in (self.kind, self.envelope)


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
    if value_format.framing != "none" and kind in _UNFRAMED:
        raise InvalidFormat("framing", value_format.framing, f"format {kind} has no framing")
    if value_format.ids and value_format.framing == "none":
        raise InvalidFormat("ids", list(value_format.ids), "needs framing confluent")
    if value_format.unknown_fields not in ("ignore", "reject"):
        raise InvalidFormat(
            "unknown_fields", value_format.unknown_fields, "must be ignore or reject"
        )
    closing = ("json", "json-schema", "registry", DEBEZIUM)
    if value_format.unknown_fields == "reject" and kind not in closing:
        raise InvalidFormat("unknown_fields", "reject", f"needs format json, not {kind}")
    if value_format.decimals not in ("exact", "round"):
        raise InvalidFormat("decimals", value_format.decimals, "must be exact or round")
    if value_format.decimals != "exact" and kind in ("raw", "text"):
        raise InvalidFormat("decimals", value_format.decimals, f"format {kind} has no decimals")


def _check_needs(value_format: ValueFormat) -> None:
    kind = value_format.kind
    if kind in ("json", DEBEZIUM):
        if not value_format.schema:
            raise InvalidFormat("schema", "", f"format {kind} needs a schema in Spark's DDL")
        if value_format.schema.strip().lower() == INFER:
            raise InvalidFormat(
                "schema",
                INFER,
                "has to be inferred from records (infer_json) before values can be decoded",
            )
    elif kind == "registry":
        _check_registry(value_format)
    elif value_format.schema is not None:
        raise InvalidFormat("schema", value_format.schema, f"needs format json, not {kind}")
    filed = kind in ("json-schema", "avro", "protobuf")
    if filed and value_format.schema_file is None:
        raise InvalidFormat("schema_file", "", f"format {kind} needs a schema file")
    if not filed and value_format.schema_file is not None:
        reason = f"format {kind} has no schema file"
        raise InvalidFormat("schema_file", value_format.schema_file, reason)
    if kind not in ("protobuf", "registry") and value_format.message is not None:
        raise InvalidFormat("message", value_format.message, f"needs format protobuf, not {kind}")


def _check_registry(value_format: ValueFormat) -> None:
    if not value_format.registry:
        raise InvalidFormat(
            "registry", "", "format registry needs the address of a schema registry"
        )
    if not value_format.schema:
        raise InvalidFormat(
            "schema", "", "the reader's schema has to be pinned before values can be decoded"
        )


DEPTH_MAX: Final = 32
"""Deepest nesting of a schema."""
BATCH_BYTES_MAX: Final = (1 << 31) - (1 << 16)
"""Largest size of a batch of values in bytes, because Arrow's offsets have 32 bits."""
JSON_DEPTH_MAX: Final = 500
"""Deepest nesting of objects and arrays of a JSON value."""
JSON_DIGITS_MAX: Final = 1_000
"""Most digits of a number in a JSON value."""


COMPILED: Final = frozenset({".desc", ".binpb", ".pb"})
"""Endings of compiled descriptor sets."""
SCHEMA_SUFFIXES: Final = frozenset({".avsc", ".json", ".proto", *COMPILED})
"""Endings of schema files."""
SCHEMA_FILE_BYTES_MAX: Final = 16 << 20


def is_schema_file(name: str) -> bool:
    """Return whether a name ends as those of schema files do."""
    return Path(name).suffix in SCHEMA_SUFFIXES


def read_schema_file(path: Path) -> bytes:
    """Return the bytes of a schema file.

    Raises:
        InvalidFormat: the file cannot be read, or is larger than `SCHEMA_FILE_BYTES_MAX`.
    """
    try:
        with path.open("rb") as file:
            content = file.read(SCHEMA_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidFormat("schema_file", path, f"cannot be read: {error.strerror}") from error
    if len(content) > SCHEMA_FILE_BYTES_MAX:
        raise InvalidFormat(
            "schema_file", path, f"is larger than {SCHEMA_FILE_BYTES_MAX} bytes: not a schema"
        )
    return content


def read_json(path: Path) -> Any:
    """Return the parsed content of a JSON file.

    Raises:
        InvalidFormat: the file cannot be read or is not JSON.
    """
    content = read_schema_file(path)
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InvalidFormat("schema_file", path, f"is not JSON: {error}") from error
