"""Commands `penstock schema list`, `get` and `diff`, which change nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import click
import msgspec

from penstock.apps.client.session import BadInput, State, show, write_json
from penstock.apps.schema.connection import Connections, RegistryAddress, registry_options
from penstock.apps.schema.snapshot import (
    ALL_CONTEXTS,
    RegisteredVersion,
    context_name,
    numbers_of,
    read_versions,
)
from penstock.apps.schema.verdicts import (
    parsed,
    pretty,
    split_version,
    unified,
    write_findings,
)
from penstock.client.schemas import StoredSchema
from penstock.registry.compatibility import Finding

FORMATS: Final = click.Choice(("resolved", "serialized", "ignore_extensions"))


@click.command("list", short_help="List subjects, or the versions of a subject.")
@click.argument("subject", required=False)
@click.option("--prefix", default="", help="Only subjects that begin with this text.")
@click.option("--deleted", is_flag=True, help="List subjects and versions deleted softly, too.")
@registry_options
def list_schemas(
    state: State, address: RegistryAddress, subject: str | None, prefix: str, deleted: bool
) -> None:
    """List subjects with their latest versions, or all versions of SUBJECT.

    Without --prefix, the subjects of all contexts are listed.
    """
    if subject is not None:
        _list_versions(state, address, subject, deleted=deleted)
        return
    whole = prefix if prefix.startswith(":") else f"{ALL_CONTEXTS}{prefix}"
    with Connections(address, 1) as connections:
        found = read_versions(connections, whole)
    subjects: dict[str, list[RegisteredVersion]] = {}
    for version in found:
        if deleted or not version.deleted:
            subjects.setdefault(version.subject, []).append(version)
    rows = [_row(versions) for _, versions in sorted(subjects.items())]
    columns = ("subject", "versions", "latest", "id", "type", *(("deleted",) if deleted else ()))
    show(state, rows, columns, things="subjects")


def _row(versions: Sequence[RegisteredVersion]) -> dict[str, Any]:
    alive = [version for version in versions if not version.deleted]
    latest = (alive or versions)[-1]
    return {
        "subject": latest.subject,
        "versions": len(alive),
        "latest": latest.version,
        "id": latest.id,
        "type": latest.schema.schema_type,
        "deleted": len(versions) - len(alive),
    }


def _list_versions(state: State, address: RegistryAddress, subject: str, *, deleted: bool) -> None:
    with address.client() as client:
        numbers = client.versions(subject, deleted=deleted)
        alive = numbers_of(client, subject) if deleted else numbers
        found = [(number, client.version(subject, number, deleted=deleted)) for number in numbers]
    rows = [
        {
            "version": number,
            "id": version.id,
            "type": version.schema_type,
            "guid": version.guid,
            "references": _targets(version),
            "deleted": number not in alive,
        }
        for number, version in found
    ]
    columns = ("version", "id", "type", "guid", "references")
    show(state, rows, (*columns, "deleted") if deleted else columns, title=f"subject {subject}")


def _targets(schema: StoredSchema) -> list[str]:
    return [f"{reference.subject}:{reference.version}" for reference in schema.references]


@click.command("get", short_help="Print a schema by subject, id or GUID.")
@click.argument("name", required=False, metavar="[SUBJECT[:VERSION]]")
@click.option("--id", "schema_id", type=click.IntRange(min=0), help="Id of the schema.")
@click.option("--context", help="Context of --id, such as .test. Default: the default context.")
@click.option("--guid", help="GUID of the schema.")
@click.option("--format", "form", type=FORMATS, help="Format of the text, for types that have it.")
@click.option("--resolved", is_flag=True, help="Inline all references; means --format resolved.")
@click.option("--deleted", is_flag=True, help="Find versions that are deleted softly, too.")
@click.option("--pretty", "indented", is_flag=True, help="Indent the text, if it is JSON.")
@registry_options
def get(
    state: State,
    address: RegistryAddress,
    name: str | None,
    schema_id: int | None,
    context: str | None,
    guid: str | None,
    form: str | None,
    resolved: bool,
    deleted: bool,
    indented: bool,
) -> None:
    """Print the text of a schema: of a version, of the latest one, of an id or a GUID.

    The format resolved (Avro and JSON Schema) has all references inlined, serialized (Protobuf) is
    a base64 FileDescriptorProto, and ignore_extensions (Protobuf) has no extensions.
    """
    if sum(given is not None for given in (name, schema_id, guid)) != 1:
        raise click.UsageError("give one of SUBJECT[:VERSION], --id and --guid")
    scope = ""
    path: tuple[str, ...]
    if name is not None:
        subject, version = split_version(name)
        path = ("subjects", subject, "versions", str(version or "latest"))
    elif guid is not None:
        path = ("schemas", "guids", guid)
    else:
        path = ("schemas", "ids", str(schema_id))
        scope = f":{context_name(context)}:" if context else ""
    form = "resolved" if resolved else form or ""
    with address.client() as client:
        found = client.request("GET", path, format=form, deleted=deleted, subject=scope)
    if state.json:
        write_json(found)
        return
    text = str(found["schema"])
    click.echo(pretty(text) if indented else text)


@click.command("diff", short_help="Compare two versions of a subject.")
@click.argument("subject")
@click.argument("before", metavar="VERSION")
@click.argument("after", metavar="VERSION")
@click.option("--deleted", is_flag=True, help="Find versions that are deleted softly, too.")
@registry_options
def diff(
    state: State,
    address: RegistryAddress,
    subject: str,
    before: str,
    after: str,
    deleted: bool,
) -> None:
    """Compare two versions of a subject: their texts, and whether each reads data of the other."""
    with address.client() as client:
        old = client.version(subject, before, deleted=deleted)
        new = client.version(subject, after, deleted=deleted)
        if old.schema_type != new.schema_type:
            raise BadInput(
                f"version {before} of {subject} has type {old.schema_type}, and version {after}"
                f" type {new.schema_type}: they cannot be compared"
            )
        reader, writer = parsed(client, new), parsed(client, old)
    number = old.version or 0
    findings = {
        "backward": Finding(version=number, reads=True, problems=reader.check_reads(writer)),
        "forward": Finding(version=number, reads=False, problems=writer.check_reads(reader)),
    }
    names = f"{subject}:{old.version}", f"{subject}:{new.version}"
    changes = unified(old.schema, new.schema, names)
    if state.json:
        facts = {name: msgspec.to_builtins(finding.problems) for name, finding in findings.items()}
        write_json({"subject": subject, "before": old.version, "after": new.version,
                    "diff": changes, **facts})  # fmt: skip
        return
    click.echo(changes or "the texts are equal")
    click.echo()
    for name, finding in findings.items():
        verdict = "incompatible" if finding.problems else "compatible"
        click.echo(f"{name}: {verdict}")
    problems = [finding for finding in findings.values() if finding.problems]
    write_findings(problems, f"version {new.version}")
