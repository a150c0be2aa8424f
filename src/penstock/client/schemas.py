"""Client of a schema registry: Penstock's, or any other with Confluent's HTTP interface.

Reads and writes are repeated until their timeout while the registry is unavailable. Schemas by id
never change, so they are cached.

Source: Confluent's Schema Registry API reference.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any, ClassVar, Final
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Struct

from penstock.base.errors import InvalidError
from penstock.base.system import SYSTEM_CLOCK
from penstock.client.admin_http import NO_SECURITY, AdminHttp, AdminSecurity, Body
from penstock.client.errors import MalformedResponse

CACHED_MAX: Final = 10_000
"""Most schemas that a client caches."""
PAUSE_ATTEMPT: Final = 2
"""Number of failed attempts after which the pause before the next one is 100 to 200 ms."""
REFERENCES_MAX: Final = 500
"""Most schemas to which a schema leads through references."""
_TYPE: Final = "application/vnd.schemaregistry.v1+json"


class RegistryRefused(InvalidError):
    """Error response of a registry, with its HTTP status and error code."""

    code: ClassVar[str] = "invalid_request"

    def __init__(self, url: str, status: int, error_code: int, message: str) -> None:
        super().__init__(f"the schema registry {url} responded {error_code}: {message}")
        self.status = status
        self.error_code = error_code
        self.message = message


class SchemaReference(Struct, frozen=True, kw_only=True):
    """Reference of a schema to a version of a subject, by the name that its text uses."""

    name: str
    subject: str
    version: int


class StoredSchema(Struct, frozen=True, kw_only=True, rename="camel"):
    """Schema of a registry. `id`, `subject` and `version` are None if the response lacks them."""

    schema: str
    schema_type: str = "AVRO"
    references: tuple[SchemaReference, ...] = ()
    metadata: dict[str, Any] | None = None
    rule_set: dict[str, Any] | None = None
    id: int | None = None
    guid: str | None = None
    subject: str | None = None
    version: int | None = None

    def body(self) -> dict[str, Any]:
        """Return the body of a request that carries this schema's content."""
        fields: dict[str, Any] = {"schema": self.schema, "schemaType": self.schema_type}
        if self.references:
            fields["references"] = self.references
        if self.metadata:
            fields["metadata"] = self.metadata
        if self.rule_set:
            fields["ruleSet"] = self.rule_set
        return fields


def stored_schema(found: Mapping[str, Any]) -> StoredSchema:
    """Return the schema of a response. Some registries write absent fields as null."""
    given = {name: value for name, value in found.items() if value is not None}
    return msgspec.convert(given, StoredSchema)


def in_context_of(referrer: str | None, subject: str) -> str:
    """Return the subject of a reference, in the context of the subject that has the reference."""
    if referrer is None or not referrer.startswith(":") or subject.startswith(":"):
        return subject
    context, colon, _ = referrer[1:].partition(":")
    return f":{context}{colon}{subject}"


class SchemaClient:
    """Client of one registry, for one thread.

    Raises:
        InvalidArgument: the URL is not an HTTP URL.
    """

    def __init__(
        self,
        url: str,
        *,
        security: AdminSecurity = NO_SECURITY,
        timeout_seconds: float = 30.0,
    ) -> None:
        self._http = AdminHttp(
            url, security=security, name="schema registry", example="http://host:8081"
        )
        self._timeout_seconds = timeout_seconds
        self._by_id: dict[tuple[int, str, str], StoredSchema] = {}

    @property
    def url(self) -> str:
        return self._http.url

    def __enter__(self) -> SchemaClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def request(
        self,
        method: str,
        path: Iterable[str],
        body: Mapping[str, Any] | None = None,
        **parameters: str | int | bool,
    ) -> Any:
        """Send a request; return the decoded JSON of the response.

        `path` has the segments of the path, which are encoded one by one. Parameters that are
        false or empty are omitted.

        Raises:
            RegistryRefused: the registry rejected the request.
            AdminUnavailable: the registry did not answer within the timeout.
            NotHttp: the address uses another protocol.
            MalformedResponse: the response is no JSON, or exceeds `ADMIN_ANSWER_BYTES_MAX`.
        """
        query = {
            name: str(value).lower() if isinstance(value, bool) else value
            for name, value in parameters.items()
            if value is not False and value != ""
        }
        target = "/" + "/".join(quote(segment, safe="") for segment in path)
        if query:
            target += f"?{urlencode(query)}"
        sent = None
        if body is not None:
            content = msgspec.json.encode(body)
            sent = Body(pieces=[content], size_bytes=len(content), content_type=_TYPE)
        answer = self._http.call(method, target, sent, timeout_seconds=self._timeout_seconds)
        if answer.status >= HTTPStatus.BAD_REQUEST:
            error_code = answer.body.get("error_code", answer.status)
            raise RegistryRefused(self.url, answer.status, error_code, answer.message)
        try:
            return msgspec.json.decode(answer.content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise MalformedResponse(
                f"the schema registry {self.url} responded to {method} {target} with"
                f" {len(answer.content)} bytes that are no JSON, or too long: {error}"
            ) from None

    def schema(self, schema_id: int, *, subject: str = "", output: str = "") -> StoredSchema:
        """Return the schema of an id, from the cache if it was read before.

        Args:
            subject: a subject of the context in which the id is searched.
            output: format of the text, such as `serialized` or `resolved`.
        """
        key = (schema_id, subject, output)
        known = self._by_id.get(key)
        if known is None:
            path = ("schemas", "ids", str(schema_id))
            found = self.request("GET", path, subject=subject, format=output)
            known = stored_schema({**found, "id": schema_id})
            while len(self._by_id) >= CACHED_MAX:
                del self._by_id[next(iter(self._by_id))]
            self._by_id[key] = known
        return known

    def schema_by_guid(self, guid: str, *, output: str = "") -> StoredSchema:
        return stored_schema(self.request("GET", ("schemas", "guids", guid), format=output))

    def version(
        self,
        subject: str,
        version: int | str = "latest",
        *,
        deleted: bool = False,
        output: str = "",
    ) -> StoredSchema:
        """Return a version of a subject; `output` is that of `schema`."""
        path = ("subjects", subject, "versions", str(version))
        return stored_schema(self.request("GET", path, deleted=deleted, format=output))

    def look_up(self, subject: str, schema: StoredSchema, *, normalize: bool = False) -> int:
        """Return the id of a schema that is a version of a subject."""
        found = self.request("POST", ("subjects", subject), schema.body(), normalize=normalize)
        return int(found["id"])

    def pause(self) -> None:
        """Wait for the time after which another server of the registry has the newest schemas."""
        self._http.pause(PAUSE_ATTEMPT, SYSTEM_CLOCK.monotonic() + self._timeout_seconds)

    def versions(self, subject: str, *, deleted: bool = False) -> list[int]:
        path = ("subjects", subject, "versions")
        return msgspec.convert(self.request("GET", path, deleted=deleted), list[int])

    def subjects(self, *, deleted: bool = False, prefix: str = "") -> list[str]:
        found = self.request("GET", ("subjects",), deleted=deleted, subjectPrefix=prefix)
        return msgspec.convert(found, list[str])

    def register(
        self,
        subject: str,
        schema: StoredSchema,
        *,
        normalize: bool = False,
        schema_id: int | None = None,
        version: int | None = None,
    ) -> int:
        """Register a schema; return its id. `schema_id` and `version` are for imports."""
        body = schema.body()
        if schema_id is not None:
            body["id"] = schema_id
        if version is not None:
            body["version"] = version
        path = ("subjects", subject, "versions")
        found = self.request("POST", path, body, normalize=normalize)
        return int(found["id"])

    def dependencies(
        self, schema: StoredSchema, *, output: str = ""
    ) -> list[tuple[str, StoredSchema]]:
        """Return the schemas to which references lead, with the names of the references.

        Each precedes those that refer to it. `output` is that of `schema`.

        Raises:
            RegistryRefused: a referenced version does not exist, or there are more than
                `REFERENCES_MAX`.
        """
        found: dict[str, StoredSchema] = {}
        waiting = [(schema.subject, iter(schema.references), "")]
        while waiting:
            referrer, references, name = waiting[-1]
            reference = next(references, None)
            if reference is None:
                waiting.pop()
                if name:
                    found[name] = found.pop(name)
            elif reference.name not in found:
                if len(found) >= REFERENCES_MAX:
                    raise RegistryRefused(
                        self.url, 422, 42201,
                        f"the schema leads to more than {REFERENCES_MAX} others by references",
                    )  # fmt: skip
                subject = in_context_of(referrer, reference.subject)
                target = self.version(subject, reference.version, deleted=True, output=output)
                found[reference.name] = target
                waiting.append((target.subject, iter(target.references), reference.name))
        return list(found.items())
