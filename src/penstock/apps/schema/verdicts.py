"""Compatibility of schemas, computed by the command itself.

The command reads the earlier versions from the registry and compares them as Penstock's registry
does. So it can use another level than the subject's, and reports every incompatibility with its
path and rule, whichever registry it is.
"""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, cast

import click
from msgspec import Struct
from msgspec.structs import replace

from penstock.apps.client.session import BadInput
from penstock.apps.schema.snapshot import numbers_of, read_effective
from penstock.client.schemas import SchemaClient, SchemaReference, StoredSchema
from penstock.registry.compatibility import Earlier, Finding, Verdict, check, is_transitive
from penstock.registry.formats import parse
from penstock.registry.formats.schema import (
    SCHEMA_BYTES_MAX,
    Dependency,
    ParsedSchema,
    Policy,
    SchemaType,
)
from penstock.registry.values import LEVELS, Level

TYPES: Final[dict[str, SchemaType]] = {".avsc": "AVRO", ".proto": "PROTOBUF", ".json": "JSON"}
"""Types of schemas by the suffixes of their files."""
STDIN: Final = "-"


class Candidate(Struct, frozen=True, kw_only=True):
    """Schema of a file, which is to be registered or checked.

    `normalize` requests its normal form. The text of a compatible edit is written to `proposal`.
    """

    subject: str
    schema: StoredSchema
    file: Path
    normalize: bool
    proposal: Path | None


class Checked(Struct, frozen=True, kw_only=True):
    """Verdict about a schema, and the level and the versions that it was compared with."""

    subject: str
    level: Level
    versions: Sequence[int]
    verdict: Verdict

    def facts(self) -> dict[str, Any]:
        """Return the verdict as an object for JSON."""
        return {
            "subject": self.subject,
            "compatible": self.verdict.compatible,
            "level": self.level,
            "versions": list(self.versions),
            "incompatibilities": [
                {
                    "version": finding.version,
                    "direction": "backward" if finding.reads else "forward",
                    "rule": problem.rule,
                    "path": problem.path,
                    "message": problem.message,
                }
                for finding in self.verdict.findings
                for problem in finding.problems
            ],
            "proposal": self.verdict.proposal or None,
        }


def read_schema(path: Path, schema_type: str | None, references: Sequence[str]) -> StoredSchema:
    """Read a schema from a file; `-` is stdin.

    Args:
        path: the file. Its suffix decides the type, if no `schema_type` is given.
        schema_type: AVRO, PROTOBUF or JSON.
        references: texts of the form NAME=SUBJECT:VERSION.

    Raises:
        BadInput: the file cannot be read, or its type is unknown.
    """
    kind = schema_type or TYPES.get(path.suffix)
    if kind is None:
        known = ", ".join(TYPES)
        raise BadInput(
            f"{path}: the type is unknown: give --type, or a file that ends with {known}"
        )
    try:
        if str(path) == STDIN:
            data = sys.stdin.buffer.read(SCHEMA_BYTES_MAX + 1)
        else:
            with path.open("rb") as file:
                data = file.read(SCHEMA_BYTES_MAX + 1)
        text = data.decode()
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: byte {error.start} is not UTF-8") from None
    if len(data) > SCHEMA_BYTES_MAX:
        raise BadInput(f"{path} is larger than the limit of {SCHEMA_BYTES_MAX} bytes")
    return StoredSchema(
        schema=text, schema_type=kind, references=tuple(map(_reference, references))
    )


def _reference(text: str) -> SchemaReference:
    name, equals, target = text.partition("=")
    subject, version = split_version(target)
    if not (name and equals and subject and isinstance(version, int)):
        raise click.UsageError(f"--reference {text}: must read NAME=SUBJECT:VERSION")
    return SchemaReference(name=name, subject=subject, version=version)


def split_version(text: str) -> tuple[str, int | str | None]:
    """Split SUBJECT:VERSION; the version is None if the text is only a subject.

    Subjects may contain colons, and begin with their context, as in `:.context:subject`.
    """
    subject, colon, version = text.rpartition(":")
    whole = not colon or not subject or (subject.startswith(":") and ":" not in subject[1:])
    if whole or not (version == "latest" or (version.isascii() and version.isdecimal())):
        return text, None
    return subject, version if version == "latest" else int(version)


def parsed(client: SchemaClient, schema: StoredSchema) -> ParsedSchema:
    """Parse a schema with its references, which are read from the registry.

    Raises:
        InvalidSchema: the schema is malformed.
        RegistryRefused: a reference does not exist.
    """
    dependencies = [
        Dependency(name=name, text=found.schema) for name, found in client.dependencies(schema)
    ]
    return parse(cast("SchemaType", schema.schema_type), schema.schema, dependencies)


def check_schema(client: SchemaClient, candidate: Candidate, level: Level | None = None) -> Checked:
    """Compare a schema with the versions of its subject; `level` replaces the subject's level.

    Raises:
        InvalidSchema: a schema is malformed, or the comparison exceeds its limit.
        PenstockError: the registry rejects a request, or does not answer.
    """
    subject, schema = candidate.subject, candidate.schema
    made = parsed(client, replace(schema, subject=subject))
    if candidate.normalize:
        made = made.normalized()
    config = read_effective(client, "config", subject)
    chosen = level or _level(config)
    group = config.get("compatibilityGroup")
    earlier = list(_earlier(client, subject, chosen, schema, group))
    policy = cast("Policy", config.get("compatibilityPolicy") or "STRICT")
    verdict = check(made, earlier, chosen, policy)
    return Checked(
        subject=subject,
        level=chosen,
        versions=[version.number for version in earlier],
        verdict=verdict,
    )


def _level(config: dict[str, Any]) -> Level:
    named = str(config.get("compatibilityLevel") or "BACKWARD").upper()
    return next((level for level in LEVELS if level == named), "BACKWARD")


def _earlier(
    client: SchemaClient, subject: str, level: Level, schema: StoredSchema, group: str | None
) -> Iterator[Earlier]:
    """Yield the versions that a level compares, of those in the same compatibility group."""
    if level == "NONE":
        return
    chosen: list[StoredSchema] = []
    for number in reversed(numbers_of(client, subject)):
        found = client.version(subject, number)
        if group and _property(found, group) != _property(schema, group):
            continue
        chosen.append(found)
        if not is_transitive(level):
            break
    for found in reversed(chosen):
        yield Earlier(found.version or 0, parsed(client, replace(found, subject=subject)))


def _property(schema: StoredSchema, name: str) -> object:
    return ((schema.metadata or {}).get("properties") or {}).get(name)


# Output


def pretty(text: str) -> str:
    """Return a schema's text with indentation, if it is JSON."""
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


def unified(before: str, after: str, names: tuple[str, str]) -> str:
    """Return the differences of two texts with indentation; empty if there are none."""
    lines = difflib.unified_diff(
        pretty(before).splitlines(), pretty(after).splitlines(), *names, lineterm=""
    )
    return "\n".join(lines)


def write_verdict(checked: Checked, text: str, name: str) -> None:
    """Write a verdict to stdout; `text` is that of the schema in the file `name`."""
    verdict = checked.verdict
    versions = ", ".join(map(str, checked.versions)) or "none"
    if verdict.compatible:
        click.echo(
            f"{name} is compatible with subject {checked.subject} ({checked.level}, compared"
            f" versions: {versions})"
        )
        return
    click.echo(f"{name} is incompatible with subject {checked.subject} ({checked.level})")
    write_findings(verdict.findings, "the new schema")
    if not verdict.proposal:
        click.echo("\nno compatible edit is known")
        return
    changes = unified(text, verdict.proposal, (name, "proposed edit"))
    click.echo(f"\nproposed edit, which is compatible:\n{changes}")


def write_findings(findings: Sequence[Finding], new: str) -> None:
    """Write each incompatibility with its rule, its path and both sides."""
    for finding in findings:
        old = f"version {finding.version}"
        reader, writer = (new, old) if finding.reads else (old, new)
        click.echo(f"\n{reader} cannot read data of {writer}:")
        for problem in finding.problems:
            click.echo(f"  {problem.rule} at {problem.path}: {problem.message}")
