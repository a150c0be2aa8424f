"""What the bytes of a record's value are, as a pipeline says it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

Kind = Literal["raw", "text", "json", "json-schema", "avro", "protobuf"]
Framing = Literal["none", "confluent"]
UnknownFields = Literal["ignore", "reject"]

KINDS: Final[tuple[Kind, ...]] = ("raw", "text", "json", "json-schema", "avro", "protobuf")
INFER: Final = "infer"


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueFormat:
    """How a value is decoded.

    `raw` passes the bytes on, `text` is UTF-8. `json` has a schema in Spark's DDL, or `infer`.
    `json-schema`, `avro` and `protobuf` have their schema in `schema_file` (`.json`, `.avsc`,
    `.proto` or a compiled descriptor set); `message` is the full name of a Protobuf message.
    `framing` `confluent` skips the five bytes (and message indexes) of a schema registry's
    serialisers. `unknown_fields` `reject` makes a field outside the schema an error (JSON only).
    """

    kind: Kind = "raw"
    schema: str | None = None
    schema_file: Path | None = None
    message: str | None = None
    framing: Framing = "none"
    unknown_fields: UnknownFields = "ignore"
