"""Schemas for decoding: those of this broker's registry, and files of `console.schema.directory`.

A file is named after its topic: `TOPIC-value` or `TOPIC-key`, with the ending `.avsc` (Avro),
`.proto` (Protobuf) or that of a compiled descriptor set.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from functools import lru_cache
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from penstock.client.schemas import RegistryRefused, SchemaClient
from penstock.formats.readers import Reader, avro_reader, protobuf_reader
from penstock.formats.value_format import COMPILED, InvalidFormat, ValueFormat
from penstock.registry.access import topic_of
from penstock.registry.errors import RegistryError, SchemaNotFound
from penstock.registry.formats.schema import InvalidSchema
from penstock.registry.routes import full, version_number
from penstock.registry.values import DEFAULT_CONTEXT, parse_subject

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from penstock.registry.service import SchemaRegistry
    from penstock.registry.state import SchemaVersion
    from penstock.security import Rights

SECONDS_MAX: Final = 30.0
"""Longest wait for the event loop, which formats schemas."""
FILES_KEPT: Final = 64
SUFFIXES: Final[Mapping[str, tuple[str, ...]]] = {
    "avro": (".avsc",),
    "protobuf": (".proto", *sorted(COMPILED)),
}
"""Endings of schema files by format."""


class BrokerSchemas(SchemaClient):
    """Client of the registry in this process, which threads other than the event loop's use.

    It returns only schemas that the caller may see.
    """

    def __init__(self, registry: SchemaRegistry, rights: Rights) -> None:
        """Create a client in the event loop's thread."""
        super().__init__("http://localhost")
        self._registry = registry
        self._rights = rights
        self._loop = asyncio.get_running_loop()

    @property
    def url(self) -> str:
        return "of this broker"

    def pause(self) -> None:
        """Read the schemas that were registered at other brokers."""
        self._wait(self._registry.refresh())

    def _wait(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(SECONDS_MAX)

    def request(
        self,
        method: str,
        path: Iterable[str],
        body: Mapping[str, Any] | None = None,
        **parameters: str | int | bool,
    ) -> Any:
        """Return the registry's response to a request for a schema.

        Raises:
            RegistryRefused: no such schema exists, or the caller may not see it.
        """
        try:
            found = self._found(list(path), str(parameters.get("subject", "")))
            output = str(parameters.get("format", ""))
            text = self._wait(self._registry.formatted(found, output)) if output else None
        except RegistryError as error:
            raise RegistryRefused(self.url, error.status, error.error_code, str(error)) from None
        except InvalidSchema as error:
            status = HTTPStatus.UNPROCESSABLE_ENTITY
            raise RegistryRefused(self.url, status, int(status), str(error)) from None
        return full(found, text)

    def _found(self, path: list[str], subject: str) -> SchemaVersion:
        state = self._registry.state
        if path[0] == "subjects":
            number = version_number(path[3])
            name = parse_subject(path[1], DEFAULT_CONTEXT)
            return self._visible([state.version(name, number, deleted=True)], path[1])
        if path[1] == "ids":
            named = parse_subject(subject, DEFAULT_CONTEXT)
            place, _ = state.place_of_id(int(path[2]), named)
            return self._visible(state.users_of(place, int(path[2]), deleted=True), path[2])
        users = (
            user
            for context, schema_id in state.ids_of_guid(UUID(path[2]))
            for user in state.users_of(context, schema_id, deleted=True)
        )
        return self._visible(users, path[2])

    def _visible(self, users: Iterable[SchemaVersion], name: str) -> SchemaVersion:
        for user in users:
            if self._rights.allows("describe", "topic", topic_of(user.subject)):
                return user
        raise SchemaNotFound(name)


def schema_file(directory: str, topic: str, side: str, kind: str) -> Path | None:
    """Return the schema file of a topic's keys or values; None if there is none. Blocks."""
    if not directory:
        return None
    for suffix in SUFFIXES[kind]:
        path = Path(directory) / f"{topic}-{side}{suffix}"
        if path.is_file():
            return path
    return None


def file_reader(path: Path, kind: str, message: str) -> Reader:
    """Return the reader of a schema file, which is read again after it has changed. Blocks.

    `message` is the full name of a Protobuf message; empty if the file has only one.

    Raises:
        InvalidFormat: the schema is malformed, or has no such message.
    """
    try:
        changed = path.stat().st_mtime_ns
    except OSError as error:
        raise InvalidFormat("schema_file", path, f"cannot be read: {error.strerror}") from error
    return _reader(path, kind, message, changed)


@lru_cache(FILES_KEPT)
def _reader(path: Path, kind: str, message: str, changed: int) -> Reader:
    if kind == "avro":
        return avro_reader(ValueFormat(kind="avro", schema_file=path))
    return protobuf_reader(ValueFormat(kind="protobuf", schema_file=path, message=message or None))
