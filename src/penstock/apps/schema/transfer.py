"""Commands `penstock schema import` and `penstock schema export`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import msgspec

from penstock.apps.client.session import (
    BadInput,
    State,
    counted,
    default_option,
    path_option,
    say,
    write_json,
)
from penstock.apps.process.daemon import interruptible
from penstock.apps.schema.connection import Connections, RegistryAddress, registry_options
from penstock.apps.schema.files import header_of, read_export, write_export
from penstock.apps.schema.importing import (
    ImportReport,
    Journal,
    import_snapshot,
    journal_path,
)
from penstock.apps.schema.plan import ImportPlan, plan_import, scope_name, with_numbers
from penstock.apps.schema.schemas_topic import read_topic
from penstock.apps.schema.snapshot import Snapshot, context_name, read_registry
from penstock.base.system import SYSTEM_CLOCK
from penstock.client.security import admin_security, read_properties

if TYPE_CHECKING:
    from collections.abc import Callable

TOPIC: Final = "topic:"
CONNECTIONS: Final = 8
CONNECTIONS_MAX: Final = 64


def transfer_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of commands that read or write whole registries."""
    for option in (
        click.option(
            "--context", help="Only this context, such as .test, or . for the default context."
        ),
        default_option(
            "--connections",
            CONNECTIONS,
            "Number of requests that are sent to a registry at the same time.",
            click.IntRange(1, CONNECTIONS_MAX),
        ),
    ):
        command = option(command)
    return command


@click.command("export", short_help="Export everything to a file.")
@click.argument("path", metavar="FILE|DIRECTORY", type=click.Path(path_type=Path))
@transfer_options
@registry_options
def export_schemas(
    state: State, address: RegistryAddress, path: Path, context: str | None, connections: int
) -> None:
    """Write all schemas with their ids, versions and references, configs and modes to a file.

    Versions that are deleted softly are included. The file has one JSON object per line, and ends
    with a checksum. In a directory it is named schemas.jsonl.
    """
    with state.working(f"reading {address.url}"), Connections(address, connections) as opened:
        found = _of_context(read_registry(opened), context)
    try:
        file = write_export(path, found, address.url)
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from None
    header = header_of(found, address.url)
    facts = {**msgspec.to_builtins(header), "file": str(file)}
    say(state, f"{file} has {_contents(found)} of {address.url}", **facts)


def _contents(found: Snapshot) -> str:
    parts = [
        counted(len(found.versions), "version"),
        counted(len(found.ids), "id"),
        counted(len(found.configs), "config"),
        counted(len(found.modes), "mode"),
    ]
    return ", ".join(parts[:-1]) + f" and {parts[-1]}"


def _of_context(found: Snapshot, name: str | None) -> Snapshot:
    if name is None:
        return found
    return found.of_context(context_name(name))


@click.command("import", short_help="Import from a registry, a topic or a file.")
@click.argument("source", metavar="URL|topic:NAME|FILE")
@transfer_options
@click.option(
    "--into",
    metavar="CONTEXT",
    help="Context to import into, instead of that of the source. Ids of other contexts do not"
    " conflict with it.",
)
@click.option(
    "--skip-invalid",
    is_flag=True,
    help="Leave out versions that are invalid here or conflict with existing ones, and those that"
    " refer to them, instead of importing nothing.",
)
@click.option("--dry-run", is_flag=True, help="Show what an import would do.")
@click.option(
    "--source-config",
    metavar="FILE",
    help="Properties file with the credentials and TLS options of the source registry, or of the"
    " Kafka cluster of a topic. Default: none for a registry, and those of -X for a topic.",
)
@path_option(
    "--journal",
    "File that keeps the registry's modes during the import. Default: a file in"
    " ~/.local/state/penstock.",
)
@registry_options
def import_schemas(
    state: State,
    address: RegistryAddress,
    source: str,
    context: str | None,
    into: str | None,
    connections: int,
    skip_invalid: bool,
    dry_run: bool,
    source_config: str | None,
    journal: Path | None,
) -> None:
    """Import schemas with their ids, versions, references, configs and modes.

    The source is another registry (Confluent's, Karapace, Apicurio's ccompat interface, Penstock),
    its topic, such as topic:_schemas, which is read from --bootstrap, or a file of penstock schema
    export. Versions that are deleted softly are imported as such.

    Conflicts and invalid schemas are all reported before anything changes. During the import, the
    registry's contexts are in mode IMPORT; their modes are restored at the end, also after an
    error. Afterwards every id, text and config is read back and compared. The command can be
    repeated: it changes only what is missing, and completes an import that was interrupted.
    """
    started = SYSTEM_CLOCK.monotonic()
    with interruptible(), state.working(f"importing {source} into {address.url}"):
        everything, notes = _read(state, address, source, connections, source_config)
        for note in notes:
            state.notice(f"% {note}")
        found = _of_context(everything, context)
        if into is not None:
            found = found.moved(context_name(into))
        found = with_numbers(found)
        with Connections(address, connections) as opened:
            plan = plan_import(found, read_registry(opened), skip_invalid=skip_invalid)
            if dry_run:
                _show_plan(state, plan, address.url)
                return
            if not skip_invalid:
                plan.check()
            report = import_snapshot(
                opened, found, plan, Journal(journal or journal_path(address.url))
            )
    seconds = round(SYSTEM_CLOCK.monotonic() - started, 1)
    if state.json:
        facts = msgspec.to_builtins(report)
        write_json({**facts, "source": source, "seconds": seconds, "notes": notes})
    else:
        _show(report, source, address.url, seconds)


def _read(
    state: State,
    address: RegistryAddress,
    source: str,
    connections: int,
    source_config: str | None,
) -> tuple[Snapshot, list[str]]:
    """Read a source; return its content, and sentences about what was skipped."""
    if source.startswith(TOPIC):
        topic = source.removeprefix(TOPIC)
        options = {} if source_config is None else {"security": read_properties(source_config)}
        with state.client(f"topic {topic}", **options) as client:
            replay = read_topic(client, topic)
        return replay.found, [
            f"skipped {counted(count, 'record')} of topic {topic}: {reason}"
            for reason, count in sorted(replay.skipped.items())
        ]
    if "://" in source:
        security = admin_security(read_properties(source_config) if source_config else {})
        place = RegistryAddress(url=source, security=security)
        if place.url == address.url:
            raise BadInput(f"{source} is the registry to import into: name another source")
        with Connections(place, connections) as opened:
            return read_registry(opened), []
    try:
        header, found = read_export(Path(source))
    except OSError as error:
        raise BadInput(
            f"{source}: {error.strerror}. A source is a URL, topic:NAME, or a file of penstock"
            " schema export"
        ) from None
    return found, [f"{source} is an export of {header.source}"]


# Output


def _show_plan(state: State, plan: ImportPlan, url: str) -> None:
    if state.json:
        write_json({**plan.changes, "present": plan.present, "problems": plan.problems})
        return
    click.echo(f"an import into {url} would make {_changes(**plan.changes)}")
    click.echo(f"it has {counted(plan.present, 'version')} of the source already")
    for problem in plan.problems:
        click.echo(f"problem: {problem}")


def _changes(registered: int, deleted: int, configs: int, modes: int) -> str:
    return (
        f"{counted(registered, 'registration')}, {counted(deleted, 'soft deletion')},"
        f" changes of {counted(configs, 'config')} and {counted(modes, 'mode')}"
    )


def _show(report: ImportReport, source: str, url: str, seconds: float) -> None:
    for sentence in report.left_out:
        click.echo(f"left out: {sentence}")
    if report.registered or report.deleted or report.configs or report.modes:
        made = _changes(report.registered, report.deleted, report.configs, report.modes)
        click.echo(f"imported {source} into {url}: {made}")
        if report.present:
            click.echo(f"{counted(report.present, 'version')} existed already")
    else:
        click.echo(f"nothing to import: {url} has everything of {source} already")
    verified = report.verified
    click.echo(
        f"verified {counted(verified.versions, 'version')}, {counted(report.ids, 'id')} and all"
        f" configs and modes in {seconds:g} s"
    )
    if verified.reformatted:
        differ = "differs" if verified.reformatted == 1 else "differ"
        click.echo(f"{counted(verified.reformatted, 'text')} {differ} in formatting only")
    for scope in report.importing:
        click.echo(
            f"{scope_name(scope)} was in mode IMPORT before, and stays so. Change it with"
            f" penstock schema mode {scope}".rstrip()
            + " --set READWRITE"
        )
