"""Export file of a registry: one JSON object per line, from a header to a checksum.

    {"kind": "header", "format": "penstock-schemas", "format_version": 1, "source": URL,
     "versions": N, "ids": N, "contexts": N, "configs": N, "modes": N}
    {"kind": "config", "subject": "…", "config": {…}}
    {"kind": "mode", "subject": "…", "mode": "…"}
    {"kind": "version", "subject": "…", "version": 1, "id": 1, "deleted": false,
     "schemaType": "AVRO", "schema": "…", "references": […], "metadata": {…}, "ruleSet": {…}}
    {"kind": "end", "lines": N, "sha256": "…"}

Subjects are qualified: `:.context:subject`. The empty subject is the whole registry, and
`:.context:` a context. `lines` counts the lines before the last one, and `sha256` is the hash of
their bytes.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, ClassVar, Final

import msgspec
from msgspec import Struct

from penstock.apps.schema.snapshot import RegisteredVersion, Snapshot
from penstock.base.errors import InvalidError
from penstock.base.files import write_durably
from penstock.client.schemas import SchemaReference, StoredSchema
from penstock.registry.values import parse_subject

FORMAT: Final = "penstock-schemas"
FORMAT_VERSION: Final = 1
FILE_NAME: Final = "schemas.jsonl"
"""Name of an export file in a directory."""
FILE_BYTES_MAX: Final = 4 << 30


class UnusableExport(InvalidError):
    """File that is no export, is damaged, or has a newer format."""

    code: ClassVar[str] = "invalid_request"


class _Line(Struct, tag_field="kind", kw_only=True):
    """Line of the file; its subclasses are the kinds."""


class Header(_Line, tag="header", kw_only=True):
    """First line. It also has the numbers of the lines of each kind."""

    format: str
    format_version: int
    source: str
    versions: int
    ids: int
    contexts: int
    configs: int
    modes: int


class _Config(_Line, tag="config", kw_only=True):
    subject: str
    config: dict[str, Any]


class _Mode(_Line, tag="mode", kw_only=True):
    subject: str
    mode: str


class _Version(_Line, tag="version", kw_only=True):
    subject: str
    version: int
    id: int
    deleted: bool
    schema_type: str = msgspec.field(name="schemaType")
    schema: str
    references: tuple[SchemaReference, ...] = ()
    metadata: dict[str, Any] | None = None
    rule_set: dict[str, Any] | None = msgspec.field(name="ruleSet", default=None)


class _End(_Line, tag="end", kw_only=True):
    lines: int
    sha256: str


_Any = Header | _Config | _Mode | _Version | _End
_decoder: Final[msgspec.json.Decoder[_Any]] = msgspec.json.Decoder(_Any)


def header_of(snapshot: Snapshot, source: str) -> Header:
    return Header(
        format=FORMAT,
        format_version=FORMAT_VERSION,
        source=source,
        versions=len(snapshot.versions),
        ids=len(snapshot.ids),
        contexts=len(snapshot.contexts),
        configs=len(snapshot.configs),
        modes=len(snapshot.modes),
    )


def encode(snapshot: Snapshot, source: str) -> bytes:
    """Return the content of an export file. `source` is the registry's URL."""
    items: list[_Any] = [header_of(snapshot, source)]
    items += [
        _Config(subject=scope, config=dict(config))
        for scope, config in sorted(snapshot.configs.items())
    ]
    items += [_Mode(subject=scope, mode=mode) for scope, mode in sorted(snapshot.modes.items())]
    items += [_version(found) for _, found in sorted(snapshot.versions.items())]
    data = b"".join(msgspec.json.encode(item) + b"\n" for item in items)
    end = _End(lines=len(items), sha256=hashlib.sha256(data).hexdigest())
    return data + msgspec.json.encode(end) + b"\n"


def _version(found: RegisteredVersion) -> _Version:
    schema = found.schema
    return _Version(
        subject=found.subject,
        version=found.version,
        id=found.id,
        deleted=found.deleted,
        schema_type=schema.schema_type,
        schema=schema.schema,
        references=schema.references,
        metadata=schema.metadata,
        rule_set=schema.rule_set,
    )


def decode(data: bytes, name: str) -> tuple[Header, Snapshot]:
    """Return the header and content of an export file; `name` is for messages.

    Raises:
        UnusableExport: the checksum or a number is wrong, or the format is unknown.
    """
    lines = data.splitlines(keepends=True)
    items = [_item(line, number, name) for number, line in enumerate(lines, 1)]
    if not items or not isinstance(items[0], Header) or items[0].format != FORMAT:
        raise UnusableExport(
            f"{name} is not an export of penstock schema export: its first line is no header"
        )
    header, end = items[0], items[-1]
    if header.format_version > FORMAT_VERSION:
        raise UnusableExport(
            f"{name} has format version {header.format_version}; this Penstock reads up to"
            f" {FORMAT_VERSION}. Import it with the version that exported it, or a newer one"
        )
    if not isinstance(end, _End):
        raise UnusableExport(
            f"{name} is cut off: it has {len(lines)} lines, and none with the checksum. Export"
            " again"
        )
    digest = hashlib.sha256(b"".join(lines[:-1])).hexdigest()
    if (end.lines, end.sha256) != (len(lines) - 1, digest):
        raise UnusableExport(
            f"{name} is damaged: {len(lines) - 1} lines with SHA-256 {digest}, but its end names"
            f" {end.lines} lines with {end.sha256}. Export again"
        )
    snapshot = Snapshot()
    for item in items[1:-1]:
        _add(snapshot, item)
    if header_of(snapshot, header.source) != header:
        raise UnusableExport(f"{name} has other numbers of lines than its header names")
    return header, snapshot


def _item(line: bytes, number: int, name: str) -> _Any:
    try:
        return _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnusableExport(
            f"{name}, line {number}: {error}. The file must be an export of penstock schema export"
        ) from None


def _add(snapshot: Snapshot, item: _Any) -> None:
    if isinstance(item, _Config):
        snapshot.configs[item.subject] = item.config
    elif isinstance(item, _Mode):
        snapshot.modes[item.subject] = item.mode
    elif isinstance(item, _Version):
        subject = parse_subject(item.subject).qualified
        snapshot.versions[subject, item.version] = RegisteredVersion(
            subject=subject,
            version=item.version,
            id=item.id,
            deleted=item.deleted,
            schema=StoredSchema(
                schema=item.schema,
                schema_type=item.schema_type,
                references=item.references,
                metadata=item.metadata,
                rule_set=item.rule_set,
            ),
        )


def write_export(path: Path, snapshot: Snapshot, source: str) -> Path:
    """Write an export file durably, and return its path. In a directory it is `FILE_NAME`.

    A file that exists already is replaced when the new one is complete.

    Raises:
        OSError: the file cannot be written.
    """
    file = path / FILE_NAME if path.is_dir() else path
    write_durably(file, encode(snapshot, source))
    return file


def read_export(path: Path) -> tuple[Header, Snapshot]:
    """Read an export file, or the one in a directory.

    Raises:
        UnusableExport: it is no export, or damaged.
        OSError: it cannot be read.
    """
    file = path / FILE_NAME if path.is_dir() else path
    size = file.stat().st_size
    if size > FILE_BYTES_MAX:
        raise UnusableExport(f"{file} has {size} bytes; the limit is {FILE_BYTES_MAX}")
    return decode(file.read_bytes(), str(file))
