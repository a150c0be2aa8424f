"""Schemas of a registry as decoders need them: with all that they refer to.

A *writer's schema* is found by the id or GUID in a record. A *reader's schema* is chosen once, and
stays the same however many versions follow; it can be stored as JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final, Generic, Literal, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from penstock.base.system import SYSTEM_CLOCK
from penstock.client.admin_http import LOCAL_HOSTS
from penstock.client.schemas import RegistryRefused, SchemaClient, StoredSchema
from penstock.client.security import admin_security, environment_options, read_properties
from penstock.formats.framing import SchemaKey
from penstock.formats.value_format import NEWEST, InvalidFormat

SchemaKind = Literal["AVRO", "PROTOBUF", "JSON"]
ID_PREFIX: Final = "id "
"""Beginning of a choice of a reader's schema by its id."""
ID_MAX: Final = (1 << 31) - 1
WRITERS_MAX: Final = 1_000
"""Most writers' schemas that are kept for a reader's schema."""
UNKNOWN_SECONDS: Final = 10.0
"""Time in seconds after which the registry is asked again for an id that it did not know."""
T = TypeVar("T")
_KINDS: Final[dict[str, SchemaKind]] = {"AVRO": "AVRO", "PROTOBUF": "PROTOBUF", "JSON": "JSON"}
_OUTPUTS: Final = {"PROTOBUF": "serialized", "JSON": "resolved"}
"""Formats in which schemas are requested. Other tools than the registry need not parse them."""


class SchemaContent(Struct, frozen=True, kw_only=True):
    """Text of a schema, and those of the schemas to which it refers, by the names of references.

    Each referenced schema precedes those that refer to it. Texts of Protobuf are descriptors in
    base64. JSON Schemas refer to no others.
    """

    kind: SchemaKind
    text: str
    parts: tuple[tuple[str, str], ...] = ()


class ReaderSchema(Struct, frozen=True, kw_only=True):
    """Schema with which values are read; `message` selects a message of a Protobuf schema."""

    content: SchemaContent
    message: str | None = None
    subject: str | None = None
    version: int | None = None
    id: int | None = None

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()

    @property
    def origin(self) -> str:
        """Subject and version for error messages."""
        if self.subject is None:
            return "the reader's schema file" if self.id is None else f"schema id {self.id}"
        return f"version {self.version} of subject {self.subject}"


def reader_from_json(text: str) -> ReaderSchema:
    """Return the schema that `ReaderSchema.to_json` wrote.

    Raises:
        InvalidFormat: the text is not such a schema.
    """
    try:
        return msgspec.json.decode(text, type=ReaderSchema)
    except msgspec.DecodeError as error:
        raise InvalidFormat("schema", text[:100], f"is not a pinned schema: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryPlace:
    """Address of a registry, and the security options of its clients; can be pickled."""

    url: str
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    timeout_seconds: float = 30.0

    def open(self) -> SchemaClient:
        """Return a client.

        Raises:
            InvalidArgument: the URL is invalid, or credentials must not be sent to it.
            InvalidSetting, UnusableFile: a security option cannot be used.
        """
        security = admin_security(dict(self.options))
        return SchemaClient(self.url, security=security, timeout_seconds=self.timeout_seconds)


def registry_place(url: str, config: str | None = None) -> RegistryPlace:
    """Return the address of a registry with the security options of a file.

    Without a file, the options are those of PENSTOCK_CLIENT_CONFIG. Their credentials are for
    brokers, so they are only used where they may be sent: over TLS, or to this host.

    Raises:
        UnusableFile: the file cannot be read.
    """
    if config is not None:
        return RegistryPlace(url=url, options=tuple(read_properties(config).items()))
    options = environment_options()
    parts = urlsplit(url)
    if parts.scheme != "https" and parts.hostname not in LOCAL_HOSTS:
        options = {}
    return RegistryPlace(url=url, options=tuple(options.items()))


@contextmanager
def opened(registry: str | RegistryPlace | SchemaClient) -> Iterator[SchemaClient]:
    """Yield the client of a registry; a client that was created here is closed at the end.

    Raises:
        InvalidArgument: the URL is invalid, or credentials must not be sent to it.
        InvalidSetting, UnusableFile: a security option cannot be used.
    """
    if isinstance(registry, SchemaClient):
        yield registry
        return
    place = registry_place(registry) if isinstance(registry, str) else registry
    with place.open() as client:
        yield client


def writer_content(client: SchemaClient, key: SchemaKey, subject: str | None) -> SchemaContent:
    """Return the schema of an id or GUID.

    An id is searched in the context of the reader's subject.

    Raises:
        RegistryRefused: the registry rejects the request; the status is 404 for an unknown id.
        AdminUnavailable: the registry does not answer.
        InvalidFormat: the registry has no such type of schemas.
    """
    context = subject if subject is not None and subject.startswith(":") else ""
    if key.isdecimal():
        return _content(
            client, lambda output: client.schema(int(key), subject=context, output=output)
        )
    return _content(client, lambda output: client.schema_by_guid(key, output=output))


class WriterSchemas(Generic[T]):
    """Objects made of writers' schemas, each when its id or GUID first occurs; for one thread.

    Args:
        subject: subject of the reader, in whose context ids are searched.
        make: returns the object of a schema.
    """

    def __init__(
        self,
        client: SchemaClient,
        subject: str | None,
        make: Callable[[SchemaKey, SchemaContent], T],
    ) -> None:
        self._client = client
        self._subject = subject
        self._make = make
        self._known: dict[SchemaKey, T] = {}
        self._unknown: dict[SchemaKey, float] = {}

    def find(self, keys: Sequence[SchemaKey]) -> dict[SchemaKey, T | None]:
        """Return the object of each id or GUID; None if the registry does not know it.

        An id that the registry does not know may have been registered at another of its servers, so
        it is searched again after a pause.

        Raises:
            RegistryRefused: the registry rejects the request.
            AdminUnavailable: the registry does not answer.
            InvalidFormat: the registry has no such type of schemas.
        """
        now = SYSTEM_CLOCK.monotonic()
        self._unknown = {key: end for key, end in self._unknown.items() if end > now}
        wanted = [key for key in dict.fromkeys(keys) if key not in self._unknown]
        missing = [key for key in wanted if not self._fetch(key)]
        if missing:
            self._client.pause()
        until = SYSTEM_CLOCK.monotonic() + UNKNOWN_SECONDS
        for key in missing:
            if not self._fetch(key):
                self._unknown[key] = until
        found = {key: self._known.get(key) for key in keys}
        for key in list(self._known)[:-WRITERS_MAX]:
            del self._known[key]
        return found

    def _fetch(self, key: SchemaKey) -> bool:
        """Make the object of a schema, unless it is known; return whether the registry has it."""
        if key in self._known:
            return True
        if key.isdecimal() and int(key) > ID_MAX:
            return False
        try:
            content = writer_content(self._client, key, self._subject)
        except RegistryRefused as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            return False
        self._known[key] = self._make(key, content)
        return True


def pinned(
    client: SchemaClient, subject: str, choice: str = NEWEST, message: str | None = None
) -> ReaderSchema:
    """Return a reader's schema: `latest`, a version number, or `id N`.

    Raises:
        RegistryRefused: the registry rejects the request; the status is 404 if nothing matches.
        AdminUnavailable: the registry does not answer.
        InvalidFormat: the registry has no such type of schemas.
    """
    if choice.startswith(ID_PREFIX):
        schema_id = int(choice.removeprefix(ID_PREFIX))
        content = writer_content(client, SchemaKey(str(schema_id)), subject)
        return ReaderSchema(content=content, message=message, id=schema_id)
    found = client.version(subject, choice)
    number = choice if found.version is None else found.version
    content = _content(client, lambda output: client.version(subject, number, output=output), found)
    return ReaderSchema(
        content=content, message=message, subject=subject, version=found.version, id=found.id
    )


def _content(
    client: SchemaClient, fetch: Callable[[str], StoredSchema], found: StoredSchema | None = None
) -> SchemaContent:
    found = found or fetch("")
    kind = _KINDS.get(found.schema_type)
    if kind is None:
        reason = f"must be one of {', '.join(_KINDS)}"
        raise InvalidFormat("schema", found.schema_type, reason)
    output = _OUTPUTS.get(kind, "")
    if kind == "PROTOBUF" or (output and found.references):
        found = fetch(output)
    parts: list[tuple[str, str]] = []
    if kind != "JSON":
        needed = client.dependencies(found, output=output)
        parts = [(name, schema.schema) for name, schema in needed]
    return SchemaContent(kind=kind, text=found.schema, parts=tuple(parts))
