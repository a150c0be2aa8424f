"""Command `penstock upgrade check`: shows whether this version reads stored data.

It only reads, so it works on a copy, and on a directory that a broker of any version is using.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock import __version__
from penstock.apps.client.session import State, output_option, path_option, write_json, write_table
from penstock.apps.process.configuration import Given, configure

if TYPE_CHECKING:
    from penstock.apps.upgrade.formats import Found


@click.group("upgrade", short_help="Check whether this version reads stored data.")
def upgrade() -> None:
    """Check stored data before another version of Penstock is started with it."""


@upgrade.command("check", short_help="Show what a start of this version changes.")
@path_option("--config file", "TOML file with the broker's settings.")
@click.option("--data-dir", help="Data directory of the broker. Default: the setting log.dirs.")
@click.option(
    "--control-url",
    metavar="URL",
    help="PostgreSQL database of the cluster. Default: the setting control.url.",
)
@output_option
def check(state: State, file: Path | None, data_dir: str | None, control_url: str | None) -> None:
    """Show the formats of a data directory, and what the first start of this version changes.

    Nothing is changed, so a broker may be running, and the directory may be a copy. Exits with
    status 1 if this version cannot read the data; the last line names the cause.
    """
    from penstock.apps.upgrade.formats import survey

    flags = {} if data_dir is None else {"log.dirs": Given(data_dir, "flag --data-dir")}
    configuration = configure(file=file, environment=os.environ, flags=flags)
    url = control_url or configuration.locations.control_url
    found: list[Found] = []
    in_use = False
    if data_dir is not None or not url or configuration.directory.exists():
        surveyed = survey(configuration.directory)
        found, in_use = surveyed.found, surveyed.in_use
    if url:
        found.append(asyncio.run(_postgres(url)))
    _show(state, found, in_use=in_use)
    if any(item.problem for item in found):
        raise click.exceptions.Exit(1)


async def _postgres(url: str) -> Found:
    """Read the schema version of a PostgreSQL database; nothing is changed."""
    from penstock.apps.upgrade.formats import schema
    from penstock.base.system import SYSTEM_RANDOMNESS
    from penstock.control.drivers.postgres_connections import Connections
    from penstock.control.migrations.postgres.migrate import schema_version

    database = Connections(url, size=1, randomness=SYSTEM_RANDOMNESS)
    try:
        version = await database.statement(
            lambda connection: schema_version(connection, database.where)
        )
    finally:
        await database.close()
    return schema("postgres", database.where, version or 0)


def _show(state: State, found: list[Found], *, in_use: bool) -> None:
    problems = [item.problem for item in found if item.problem]
    changed = any(item.change for item in found)
    verdict = _verdict(problems, changed=changed)
    if state.json:
        write_json(
            {
                "version": __version__, "readable": not problems, "in_use": in_use,
                "changes": changed, "downgrade_possible": not problems and not changed,
                "verdict": verdict, "formats": [asdict(item) for item in found],
            }
        )  # fmt: skip
        return
    rows = [
        (item.what, item.where, item.version, item.problem or item.change or "nothing changes")
        for item in found
    ]
    write_table(("format", "where", "version", "first start"), rows)
    if in_use:
        click.echo("A process is using the directory. Stop it before you start this version.")
    click.echo(verdict)


def _verdict(problems: list[str], *, changed: bool) -> str:
    if problems:
        return f"Penstock {__version__} cannot read this data: {problems[0]}"
    if changed:
        return (
            f"Penstock {__version__} reads this data. After the first start a downgrade is not"
            " possible: copy the data before it, if you may want to go back."
        )
    return f"Penstock {__version__} reads this data and changes no format. A downgrade is possible."
