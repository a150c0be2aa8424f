"""Interface of a parsed schema, the same for Avro, Protobuf and JSON Schema.

A parsed schema is immutable. It is compared with other schemas of the same format as a *reader* (it
decodes data of the other schema) or as a *writer* (the other schema decodes its data).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Final, Literal, TypeVar

from msgspec import Struct

from penstock.base.errors import InvalidError

SchemaType = Literal["AVRO", "PROTOBUF", "JSON"]
Policy = Literal["STRICT", "LENIENT"]
"""Compatibility policy of JSON Schema. LENIENT ignores how open the content models are."""

SCHEMA_BYTES_MAX: Final = 1 << 20
"""Size limit of a schema's text, in bytes of UTF-8. References count with their own text."""
DEPTH_MAX: Final = 64
"""Deepest nesting of types in a schema."""
TYPES_MAX: Final = 20_000
"""Most types, fields, symbols and branches in a schema together with its references."""
REFERENCES_MAX: Final = 500
"""Most schemas that a schema refers to, directly and indirectly."""
COMPARISONS_MAX: Final = 200_000
"""Most pairs of types that one compatibility check compares."""
PROBLEMS_MAX: Final = 100
"""Most incompatibilities that one check reports."""


class InvalidSchema(InvalidError):
    """Schema that is malformed, too large, or refers to something that does not exist."""

    code: ClassVar[str] = "invalid_request"


class Dependency(Struct, frozen=True, kw_only=True):
    """Schema that another schema refers to.

    `name` is how the text refers to it: a full name in Avro, an import path in Protobuf, a URI in
    JSON Schema.
    """

    name: str
    text: str


class Incompatibility(Struct, frozen=True, kw_only=True):
    """Reason why a reader's schema cannot decode data of a writer's schema.

    Attributes:
        rule: name of the violated rule in upper case, such as READER_FIELD_MISSING_DEFAULT_VALUE.
        path: location in the new schema's format: a JSON pointer such as `/fields/2/type` in Avro
            and JSON Schema, a full name such as `shop.Order.id` in Protobuf.
        message: sentence with the reader's and the writer's side.
    """

    rule: str
    path: str
    message: str


S = TypeVar("S", bound="ParsedSchema")


class ParsedSchema(ABC):
    """A valid schema.

    Attributes:
        text: the schema's text as it is stored and returned.
        identity: text that is equal for schemas that differ only in their formatting. Two schemas
            of one type with equal identity and equal references have the same id.
    """

    schema_type: ClassVar[SchemaType]
    text: str
    identity: str

    @abstractmethod
    def normalized(self: S) -> S:
        """Return an equivalent schema in normal form.

        Schemas that differ only in the order of elements whose order has no meaning have the same
        normal form.

        Raises:
            InvalidSchema: the text in normal form exceeds a limit.
        """

    @abstractmethod
    def check_reads(self: S, writer: S, policy: Policy = "STRICT") -> Sequence[Incompatibility]:
        """Return why data of `writer` cannot be decoded with this schema; empty if they can.

        At most `PROBLEMS_MAX` incompatibilities are returned.

        Raises:
            InvalidSchema: the check would compare more than `COMPARISONS_MAX` pairs of types.
        """

    @abstractmethod
    def edited(
        self: S,
        other: S,
        problems: Sequence[Incompatibility],
        *,
        reads: bool,
        policy: Policy = "STRICT",
    ) -> S | None:
        """Return a small edit of this schema that resolves `problems`, or some of them.

        The problems are those of `self.check_reads(other)` if `reads`, otherwise those of
        `other.check_reads(self)`. The edit changes only the places that the problems name: it adds
        a default, widens a type, restores a removed field, and so on. None means that no edit is
        known. The caller checks the edit again and calls `edited` again until no problem is left.
        """

    @abstractmethod
    def formatted(self, name: str) -> str:
        """Return the text in an output format; the empty name returns `text`.

        `resolved` (Avro, JSON Schema) has references inlined; `serialized` (Protobuf) is a base64
        FileDescriptorProto; `ignore_extensions` (Protobuf) has no extensions.

        Raises:
            InvalidSchema: the format does not exist for this type of schema.
        """
