"""Values of the schema registry: schemas, versions, configs, modes and associations.

JSON forms are those of Confluent's API. A subject's qualified name is `:.context:subject`; the
default context is `.`, and its subjects are written without it.

Source: Confluent's Schema Registry API reference.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, NamedTuple
from uuid import UUID

import msgspec
from msgspec import Struct

from penstock.registry.errors import InvalidSubject, RejectedSchema
from penstock.registry.formats.schema import SchemaType

Level = Literal[
    "NONE",
    "BACKWARD",
    "BACKWARD_TRANSITIVE",
    "FORWARD",
    "FORWARD_TRANSITIVE",
    "FULL",
    "FULL_TRANSITIVE",
]
Mode = Literal["READWRITE", "READONLY", "READONLY_OVERRIDE", "IMPORT"]

LEVELS: Final[tuple[Level, ...]] = Level.__args__  # type: ignore[attr-defined]
MODES: Final[tuple[Mode, ...]] = Mode.__args__  # type: ignore[attr-defined]
DEFAULT_CONTEXT: Final = "."
LATEST: Final = -1
"""Version number that means the newest version of a subject."""
ID_MAX: Final = (1 << 31) - 1
VERSION_MAX: Final = (1 << 31) - 1
SUBJECT_CHARS_MAX: Final = 1_024
NESTING_MAX: Final = 16
"""Most levels of a schema's metadata or rule set."""
_PRINTABLE_MIN: Final = 32
_DELETE: Final = 127


class Subject(NamedTuple):
    """A subject: its context, such as `.` or `.test`, and its name within the context.

    An empty name stands for the whole context.
    """

    context: str
    name: str

    @property
    def qualified(self) -> str:
        if self.context == DEFAULT_CONTEXT:
            return self.name
        return f":{self.context}:{self.name}"

    def sibling(self, text: str) -> Subject:
        """Return the subject that `text` names, in the context of this one if it names none."""
        return parse_subject(text, self.context)


GLOBAL: Final = Subject(DEFAULT_CONTEXT, "")
"""Subject of the configs and modes that apply to all contexts."""


def parse_subject(text: str, context: str = DEFAULT_CONTEXT) -> Subject:
    """Parse a subject's name, which may be qualified; `context` is that of unqualified names.

    Raises:
        InvalidSubject: the name is empty, too long or has control characters, or the context does
            not begin with a dot.
    """
    if len(text) > SUBJECT_CHARS_MAX:
        raise InvalidSubject(
            f"The subject {text[:64]!r}… has {len(text)} characters; the limit is"
            f" {SUBJECT_CHARS_MAX}"
        )
    if any(ord(letter) < _PRINTABLE_MIN or ord(letter) == _DELETE for letter in text):
        raise InvalidSubject(f"The subject {text[:64]!r} has control characters; remove them")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidSubject(f"The subject {text[:64]!r} is not valid Unicode") from None
    if not text.startswith(":"):
        return Subject(context, text)
    found, colon, name = text[1:].partition(":")
    if found == "" and colon:
        return Subject(DEFAULT_CONTEXT, name)
    if not colon or not found.startswith("."):
        raise InvalidSubject(
            f"The subject {text[:64]!r} must read :.context:subject, or begin without a colon"
        )
    return Subject(found, name)


def guid_of(content: object) -> UUID:
    """Return an identifier that is equal for equal contents."""
    text = msgspec.json.encode(content, order="sorted")
    return UUID(bytes=hashlib.sha256(text).digest()[:16], version=5)


class Reference(Struct, frozen=True, kw_only=True):
    """Reference to a registered schema. `name` is how the schema's text refers to it."""

    name: str
    subject: str
    version: int


class Schema(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A schema as it is stored, with the data that Confluent's clients keep beside it."""

    schema: str
    schema_type: SchemaType = "AVRO"
    references: tuple[Reference, ...] = ()
    metadata: dict[str, Any] | None = None
    rule_set: dict[str, Any] | None = None

    def guid(self, identity: str) -> UUID:
        """Return the schema's identifier, which is the same in every context and cluster.

        `identity` is that of the parsed text: schemas that differ only in formatting are equal.
        """
        content = [
            self.schema_type,
            identity,
            sorted((item.name, item.subject, item.version) for item in self.references),
            self.metadata,
            self.rule_set,
        ]
        return guid_of(content)


class Version(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Version of a subject: its schema's id and GUID."""

    id: int
    guid: UUID
    deleted: bool = False


class Config(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Config of a subject, a context or the registry. None means that the wider scope decides."""

    compatibility_level: Level | None = None
    compatibility_policy: Literal["STRICT", "LENIENT"] | None = None
    compatibility_group: str | None = None
    normalize: bool | None = None
    alias: str | None = None
    validate_fields: bool | None = None
    validate_rules: bool | None = None
    default_metadata: dict[str, Any] | None = None
    override_metadata: dict[str, Any] | None = None
    default_rule_set: dict[str, Any] | None = None
    override_rule_set: dict[str, Any] | None = None

    def over(self, wider: Config) -> Config:
        """Return this config, with the fields that it lacks taken from `wider`.

        An alias applies to its own subject only.
        """
        merged = {
            name: getattr(wider, name) if getattr(self, name) is None else getattr(self, name)
            for name in self.__struct_fields__
        }
        return Config(**{**merged, "alias": self.alias})


DEFAULT_CONFIG: Final = Config(compatibility_level="BACKWARD")


class Association(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Association of a resource, such as a topic, with the subject of its keys or values."""

    subject: str
    guid: UUID
    resource_name: str
    resource_namespace: str
    resource_id: str
    resource_type: str = "topic"
    association_type: str = "value"
    lifecycle: Literal["STRONG", "WEAK"] = "WEAK"
    frozen: bool = False

    @property
    def key(self) -> tuple[str, str]:
        """Resource id and type, which identify the association."""
        return self.resource_id, self.association_type


def compact(value: Any, depth: int = NESTING_MAX) -> Any:
    """Return metadata or a rule set without members that are null, false or empty.

    Some clients omit them, so they must not distinguish two schemas.

    Raises:
        RejectedSchema: it has more than `depth` levels.
    """
    if not isinstance(value, (dict, list)):
        return value
    if depth == 0:
        raise RejectedSchema(
            f"The metadata or rule set has more than {NESTING_MAX} levels. Nest it less"
        )
    if isinstance(value, list):
        return [compact(item, depth - 1) for item in value]
    items = {name: compact(item, depth - 1) for name, item in value.items()}
    return {
        name: item
        for name, item in items.items()
        if not (item is None or item is False or item in ([], {}))  # 0 equals False
    }


def merged(
    own: Mapping[str, Any] | None,
    default: Mapping[str, Any] | None,
    override: Mapping[str, Any] | None,
    join: Callable[[list[Any], list[Any]], list[Any]],
) -> dict[str, Any]:
    """Return a schema's metadata or rule set with the defaults and overrides of a config.

    Members of objects are joined by name, and lists by `join`, whose second list has precedence.
    """
    found: dict[str, Any] = {}
    for layer in (default, own, override):
        for name, value in (layer or {}).items():
            known = found.get(name)
            if isinstance(known, dict) and isinstance(value, dict):
                found[name] = {**known, **value}
            elif isinstance(known, list) and isinstance(value, list):
                found[name] = join(known, value)
            else:
                found[name] = value
    return found


def joined_values(known: list[Any], more: list[Any]) -> list[Any]:
    return [*known, *(value for value in more if value not in known)]


def joined_rules(known: list[Any], more: list[Any]) -> list[Any]:
    """Return all rules; one of `more` replaces a known one of the same name."""
    names = {rule.get("name") for rule in more if isinstance(rule, dict)}
    return [*(rule for rule in known if rule.get("name") not in names), *more]
