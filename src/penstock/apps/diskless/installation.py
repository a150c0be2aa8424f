"""Control plane and object store of an installation, opened by commands instead of a broker."""

from __future__ import annotations

import functools
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click

from penstock.apps.client.session import path_option
from penstock.apps.process.configuration import Configuration, Given, configure, parse_override
from penstock.apps.process.wiring import store_options, store_url
from penstock.base.errors import InvalidError
from penstock.control import DatabaseLocked, SqliteControlPlane

if TYPE_CHECKING:
    from penstock.control.postgres import PostgresControlPlane
    from penstock.control.values.diskless import PartitionKey
    from penstock.diskless.identity import GuardedStore, StoreGuard


class NoDatabase(InvalidError):
    """The data directory has no control database: no broker has run in it."""

    code: ClassVar[str] = "invalid_config"


@dataclass(frozen=True, slots=True)
class Installation:
    """Opened control plane and object store; `guard` checks that the store is this database's."""

    plane: SqliteControlPlane | PostgresControlPlane
    store: GuardedStore
    guard: StoreGuard


def installation_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--config`, `--data-dir` and `-X` to a command, and pass a `Configuration` first."""

    @path_option("--config file", "TOML file with the brokers' settings.")
    @click.option("--data-dir", help="Data directory of the broker. Default: the setting log.dirs.")
    @click.option(
        "-X",
        "overrides",
        multiple=True,
        metavar="KEY=VALUE",
        help="Setting of the brokers by name; overrides file and environment. May be repeated.",
    )
    @functools.wraps(command)
    def wrapped(
        file: Path | None, data_dir: str | None, overrides: tuple[str, ...], **arguments: Any
    ) -> None:
        flags = dict(parse_override(text) for text in overrides)
        if data_dir is not None:
            flags["log.dirs"] = Given(data_dir, "flag --data-dir")
        configuration = configure(file=file, environment=os.environ, flags=flags)
        command(configuration, **arguments)

    return wrapped


@asynccontextmanager
async def opened(configuration: Configuration) -> AsyncIterator[Installation]:
    """Open the configured control plane and object store; close them at the end of the context.

    Raises:
        NoDatabase: no broker has run in the data directory.
        DatabaseLocked: a broker uses the SQLite database, which only one process may open.
        StoreMismatch: the object store belongs to another database.
        PenstockError: the database or the store cannot be opened.
    """
    from penstock.base.system import SYSTEM_RANDOMNESS
    from penstock.diskless.identity import GuardedStore, StoreGuard
    from penstock.objects import open_store, place_of

    plane = _plane(configuration)
    url, options = store_url(configuration), store_options(configuration.locations)
    try:
        await plane.start()
    except DatabaseLocked as error:
        error.add_note(
            "a running broker uses the database: stop the broker, or use PostgreSQL (control.url)"
        )
        raise
    try:
        store = open_store(
            url, options=options, request_timeout_ms=configuration.diskless.put_timeout_ms
        )
        try:
            guard = StoreGuard(
                plane=plane,
                store=store,
                cluster_id=(await plane.image()).cluster_id,
                randomness=SYSTEM_RANDOMNESS,
                place=place_of(url, options),
            )
            await guard.check()
            yield Installation(plane, GuardedStore(store, guard), guard)
        finally:
            await store.close()
    finally:
        await plane.close()


def _plane(configuration: Configuration) -> SqliteControlPlane | PostgresControlPlane:
    url = configuration.locations.control_url
    if url:
        from penstock.control.postgres import PostgresControlPlane

        return PostgresControlPlane(url)
    path = configuration.directory / "control.sqlite"
    if not path.exists():
        raise NoDatabase(
            f"database {path} does not exist; give the broker's data directory with --data-dir"
        )
    return SqliteControlPlane(path)


async def partition_names(installation: Installation) -> dict[PartitionKey, str]:
    """Return the names of all diskless partitions, as `orders-0`, by topic id and index."""
    image = await installation.plane.image()
    return {
        (topic.topic_id, index): f"{topic.name}-{index}"
        for topic in image.topics.values()
        if topic.configs.get("diskless.enable") == "true"
        for index in range(len(topic.partitions))
    }


async def wanted_partitions(
    installation: Installation, topic: str | None
) -> dict[PartitionKey, str]:
    """Return the names of the partitions of one diskless topic, or of all diskless topics.

    Raises:
        click.UsageError: the topic does not exist, or is not diskless.
    """
    names = await partition_names(installation)
    wanted = {
        key: name
        for key, name in names.items()
        if topic is None or name.rpartition("-")[0] == topic
    }
    if topic is not None and not wanted:
        raise click.UsageError(f"topic {topic!r} does not exist, or is not a diskless topic")
    return wanted
