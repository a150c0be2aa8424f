"""Commands `penstock schema register`, `check` and `delete`."""

from __future__ import annotations

import functools
import sys
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from penstock.apps.client.session import State, path_option, say, write_json
from penstock.apps.schema.connection import RegistryAddress, registry_options
from penstock.apps.schema.snapshot import numbers_of
from penstock.apps.schema.verdicts import (
    TYPES,
    Candidate,
    Checked,
    check_schema,
    pretty,
    read_schema,
    split_version,
    write_verdict,
)
from penstock.client.schemas import RegistryRefused
from penstock.registry.errors import SubjectSoftDeleted, VersionSoftDeleted
from penstock.registry.values import LEVELS, Level

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.client.schemas import SchemaClient

STATUS_INCOMPATIBLE: Final = 1
_SOFTLY_DELETED: Final = (SubjectSoftDeleted.error_code, VersionSoftDeleted.error_code)


def candidate_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the arguments SUBJECT and FILE, and the options that describe the schema in FILE.

    The command gets them as the argument `candidate`.
    """

    @click.argument("subject")
    @click.argument("file", type=click.Path(path_type=Path))
    @click.option(
        "--type",
        "schema_type",
        type=click.Choice(tuple(TYPES.values()), case_sensitive=False),
        help="Type of the schema. Default: by the suffix of FILE, .avsc, .proto or .json.",
    )
    @click.option(
        "--reference",
        "references",
        multiple=True,
        metavar="NAME=SUBJECT:VERSION",
        help="Schema to which the text refers by NAME. May be repeated.",
    )
    @click.option(
        "--normalize",
        is_flag=True,
        help="Bring the schema into normal form, so that equivalent schemas have the same id.",
    )
    @path_option(
        "--write-proposal proposal", "File for the text of a compatible edit, if one is known."
    )
    @functools.wraps(command)
    def wrapped(
        subject: str,
        file: Path,
        schema_type: str | None,
        references: tuple[str, ...],
        normalize: bool,
        proposal: Path | None,
        **arguments: Any,
    ) -> None:
        schema = read_schema(file, schema_type, references)
        candidate = Candidate(
            subject=subject, schema=schema, file=file, normalize=normalize, proposal=proposal
        )
        command(candidate=candidate, **arguments)

    return wrapped


@click.command("register", short_help="Register a schema.")
@candidate_options
@registry_options
def register(state: State, address: RegistryAddress, candidate: Candidate) -> None:
    """Register the schema in FILE under SUBJECT, and print its id and version.

    A schema that the subject has already keeps its id and version. If it is incompatible with
    earlier versions, the exit status is 1, and each incompatibility is printed, with an edit of the
    schema that is compatible. FILE may be -, for stdin.
    """
    with address.client() as client:
        try:
            found = _registered(client, candidate)
        except RegistryRefused as error:
            if error.status != HTTPStatus.CONFLICT:
                raise
            checked = check_schema(client, candidate)
            if checked.verdict.compatible:
                raise  # the registry has another opinion, and says why
            _report(state, checked, candidate)
            sys.exit(STATUS_INCOMPATIBLE)
    subject, version, schema_id = candidate.subject, found["version"], found["id"]
    say(
        state,
        f"{subject} version {version} has id {schema_id}",
        subject=subject,
        version=version,
        id=schema_id,
        guid=found.get("guid"),
        type=candidate.schema.schema_type,
    )


def _registered(client: SchemaClient, candidate: Candidate) -> dict[str, Any]:
    """Register a schema; return its id and version.

    Some registries return the version only for a look-up.
    """
    path, body = ("subjects", candidate.subject), candidate.schema.body()
    normalize = candidate.normalize
    found = dict(client.request("POST", (*path, "versions"), body, normalize=normalize))
    if "version" in found:
        return found
    return dict(client.request("POST", path, body, normalize=normalize))


def _report(state: State, checked: Checked, candidate: Candidate) -> None:
    if state.json:
        write_json(checked.facts())
    else:
        write_verdict(checked, candidate.schema.schema, str(candidate.file))
    proposal = candidate.proposal
    if proposal is not None and checked.verdict.proposal:
        proposal.write_text(pretty(checked.verdict.proposal) + "\n", encoding="utf-8")
        if not state.json:
            click.echo(f"\nthe proposed edit is in {proposal}")


@click.command("check", short_help="Check a schema's compatibility without registering it.")
@candidate_options
@click.option(
    "--level",
    type=click.Choice(LEVELS, case_sensitive=False),
    help="Compatibility level to check. Default: that of the subject.",
)
@registry_options
def check(
    state: State, address: RegistryAddress, candidate: Candidate, level: Level | None
) -> None:
    """Check whether the schema in FILE is compatible with the versions of SUBJECT.

    Nothing is registered. The exit status is 0 for a compatible schema and 1 for an incompatible
    one. FILE may be -, for stdin.
    """
    with address.client() as client:
        checked = check_schema(client, candidate, level)
    _report(state, checked, candidate)
    if not checked.verdict.compatible:
        sys.exit(STATUS_INCOMPATIBLE)


@click.command("delete", short_help="Delete a subject or a version.")
@click.argument("name", metavar="SUBJECT[:VERSION]")
@click.option(
    "--permanent",
    is_flag=True,
    help="Delete permanently: the schema's id can no longer be resolved, and records with it cannot"
    " be decoded.",
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@registry_options
def delete(state: State, address: RegistryAddress, name: str, permanent: bool, yes: bool) -> None:
    """Delete a version, or a subject with all its versions.

    A deletion without --permanent is soft: versions are no longer listed or compared, but their ids
    are still resolved, so that records can be decoded.
    """
    subject, version = split_version(name)
    path: tuple[str, ...] = ("subjects", subject)
    if version is not None:
        path += ("versions", str(version))
    with address.client() as client:
        if version is None:
            numbers = numbers_of(client, subject, deleted=permanent)
        else:
            numbers = [client.version(subject, version, deleted=permanent).version or 0]
        shown = ", ".join(map(str, numbers)) or "none"
        if not yes:
            how = "permanently" if permanent else "softly"
            click.confirm(f"delete {how} versions {shown} of {subject}?", abort=True, err=True)
        try:
            deleted = client.request("DELETE", path)
        except RegistryRefused as error:
            if not (permanent and error.error_code in _SOFTLY_DELETED):
                raise
        if permanent:
            deleted = client.request("DELETE", path, permanent=True)
    versions = deleted if isinstance(deleted, list) else [deleted]
    how = " permanently" if permanent else ""
    say(
        state,
        f"deleted{how} versions {', '.join(map(str, versions))} of {subject}",
        subject=subject,
        versions=versions,
        permanent=permanent,
    )
