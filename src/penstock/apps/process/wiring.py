"""Assembly of a broker from control plane, log store, object store and server.

<log.dirs>/control.sqlite    topics, groups, offsets, producer ids, unless control.url is set
<log.dirs>/log/              journal, partitions, checkpoints, lock file
<log.dirs>/console/          what the console stores, such as saved plans
<log.dirs>/objects/          diskless topics, unless diskless.storage.url is set
<log.dirs>/staging/          blobs of exactly-once sinks, unless sink.staging.directory is set
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from penstock.base.errors import UnavailableError
from penstock.base.metrics import Registry
from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS
from penstock.base.urls import without_credentials

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from penstock.apps.process.configuration import Configuration, LocationSettings
    from penstock.base.ids import TopicPartition
    from penstock.base.otlp import OtlpExport
    from penstock.broker.admin_app import ConsoleFactory
    from penstock.broker.configuration.settings import BrokerSettings
    from penstock.broker.server import BrokerServer
    from penstock.broker.topics.audit_topic import AuditTopic
    from penstock.control import ControlPlane, SqliteControlPlane
    from penstock.control.drivers.notices import SocketNotices
    from penstock.control.postgres import PostgresControlPlane
    from penstock.diskless.topics.service import DisklessService
    from penstock.objects import UrlSigner
    from penstock.partitions.tiering import TierService
    from penstock.registry.ids import RegisteredIds
    from penstock.registry.service import SchemaRegistry
    from penstock.security import Authoriser
    from penstock.security.audit import Audit, AuditSettings, LineSink
    from penstock.storage import LogConfig, LogStore


logger = logging.getLogger(__name__)

CONTROL: Final = "control.sqlite"
LOG: Final = "log"
CONSOLE: Final = "console"


class DirectoryUnusable(UnavailableError):
    """The data directory cannot be created or written."""

    code: ClassVar[str] = "kafka_storage_error"


class PortUnavailable(UnavailableError):
    """A listener's address cannot be bound."""

    code: ClassVar[str] = "invalid_config"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """Addresses at which a running broker listens.

    `admin` is None without an admin interface, `schemas` without a schema registry.
    """

    kafka: tuple[str, int]
    admin: tuple[str, int] | None
    schemas: tuple[str, int] | None = None

    def line(self, trusted: bool) -> str:
        """Return the line that a broker prints when clients can connect."""
        note = trusted_note(trusted and self.admin is not None)
        places = f"kafka={address(self.kafka)} admin={address(self.admin)}"
        registry = "" if self.schemas is None else f" registry={address(self.schemas)}"
        return f"penstock ready {places}{registry}{note}"


NewConsole = Callable[["SchemaRegistry | None", Path], "ConsoleFactory"]
"""Function that returns a factory of the console of a broker. Its arguments are the schema registry
and the directory of what the console stores."""


async def opened(
    configuration: Configuration,
    notices: SocketNotices | None = None,
    console: NewConsole | None = None,
) -> tuple[BrokerServer, SchemaRegistry | None]:
    """Open the data directory and create a broker, even if its journal or checkpoint is damaged.

    After damage it asks the control plane which partitions have no replicas on other brokers, and
    passes them to `build`, which recovers remaining journal entries only for these.

    Raises:
        PenstockError: as `build`, or the control plane does not answer.
    """
    from penstock.storage import CorruptLog

    try:
        return build(configuration, notices, console=console)
    except CorruptLog:
        alone = await _held_alone(configuration, notices)
    return build(configuration, notices, alone=alone, console=console)


async def _held_alone(
    configuration: Configuration, notices: SocketNotices | None
) -> set[TopicPartition]:
    """Return the partitions whose only log is on this broker."""
    from penstock.base.ids import TopicPartition
    from penstock.broker.metadata.leaders import is_diskless

    control = _control(configuration, notices)
    try:
        await control.start()
        topics = (await control.image()).topics.values()
    finally:
        await control.close()
    node_id = configuration.broker.node_id
    return {
        TopicPartition(topic.name, row.index)
        for topic in topics
        if not is_diskless(topic)
        for row in topic.partitions
        if row.leader == node_id and not row.has_epochs
    }


def build(
    configuration: Configuration,
    notices: SocketNotices | None = None,
    *,
    alone: Collection[TopicPartition] | None = None,
    console: NewConsole | None = None,
) -> tuple[BrokerServer, SchemaRegistry | None]:
    """Open the data directory and create a broker and its schema registry, without starting them.

    `notices` connects the broker to others that share its directory. `alone` has the partitions
    without replicas on other brokers; None means that they are unknown.

    Raises:
        CorruptLog: the journal or the checkpoint is damaged, and `alone` is None.
        InvalidConfiguration, InvalidSetting: settings of the object store are invalid.
        DirectoryUnusable: the directory cannot be created or written.
        UnavailableError: another broker uses the directory, or its content cannot be read.
    """
    from penstock.broker.configuration.configs import TopicConfigs
    from penstock.broker.server import BrokerServer

    directory = configuration.directory
    _check_store(configuration)
    prepare(directory / configuration.log)
    topics = TopicConfigs(configuration.broker)
    store = _store(configuration, topics.config_of, alone)
    control = _control(configuration, notices)
    archive, registry = _diskless(configuration, control, topics.config_of), Registry()
    audit = configuration.audit
    topic = _audit_topic(audit)
    schemas, schema_ids = _schemas(configuration, control, registry)
    server = BrokerServer(
        _with_staging(configuration.broker, directory),
        control=control,
        store=store,
        clock=SYSTEM_CLOCK,
        randomness=SYSTEM_RANDOMNESS,
        registry=registry,
        diskless=archive,
        tiers=_tiers(configuration, control, archive),
        authoriser=authoriser_of(configuration.broker),
        security=configuration.security,
        front_secret=configuration.front_secret,
        audit=audit_log(audit, registry, {"broker": configuration.broker.node_id}, topic),
        audit_topic=topic,
        schema_ids=schema_ids,
        export=_export(configuration, registry),
        console=None if console is None else console(schemas, directory / CONSOLE),
    )
    topics.bind(lambda: server.cluster.loaded)
    return server, schemas


def _store(
    configuration: Configuration,
    config_of: Callable[[str], LogConfig],
    alone: Collection[TopicPartition] | None,
) -> LogStore:
    """Open the store of a broker's logs; raises as `build`."""
    from penstock.storage import LogStore, StoreLocked

    try:
        return LogStore.open(
            configuration.directory / configuration.log,
            configuration.storage,
            clock=SYSTEM_CLOCK,
            config_of=config_of,
            replicated=None if alone is None else lambda where: where not in alone,
        )
    except StoreLocked as error:
        error.add_note("stop the broker that uses it, or choose another directory with --data-dir")
        raise


def _export(configuration: Configuration, registry: Registry) -> OtlpExport | None:
    """Return the export by OTLP; None if `otlp.endpoint` is empty."""
    if not configuration.otlp.endpoint:
        return None
    from penstock.base.otlp import OtlpExport

    node_id = str(configuration.broker.node_id)
    return OtlpExport(
        configuration.otlp,
        {"service.name": "penstock-broker", "service.instance.id": node_id},
        clock=SYSTEM_CLOCK,
        randomness=SYSTEM_RANDOMNESS,
        registry=registry,
    )


def _schemas(
    configuration: Configuration, control: ControlPlane, metrics: Registry
) -> tuple[SchemaRegistry | None, RegisteredIds | None]:
    """Return the schema registry of a broker and its ids; both are None if it serves none."""
    if not configuration.schemas.registry_enable:
        return None, None
    from penstock.registry.ids import RegisteredIds
    from penstock.registry.service import SchemaRegistry

    registry = SchemaRegistry(control)
    metrics.add(registry.samples)
    return registry, RegisteredIds(registry)


def authoriser_of(settings: BrokerSettings) -> Authoriser:
    """Return the authoriser that the settings choose; it has no ACLs yet."""
    from penstock.broker.configuration.settings import super_users_of
    from penstock.security import PERMISSIVE, AclAuthoriser

    if not settings.authorizer_class_name:
        return PERMISSIVE
    return AclAuthoriser(
        super_users=super_users_of(settings),
        allow_unbound=settings.allow_everyone_if_no_acl_found,
    )


def _control(
    configuration: Configuration, notices: SocketNotices | None
) -> SqliteControlPlane | PostgresControlPlane:
    """Return the control plane of a broker that waits for its database while it starts."""
    locations = configuration.locations
    seconds = locations.control_start_timeout_ms / 1000
    return control_of(
        locations.control_url, configuration.directory, notices, start_seconds=seconds
    )


def control_of(
    url: str,
    directory: Path,
    notices: SocketNotices | None = None,
    *,
    start_seconds: float = 0.0,
) -> SqliteControlPlane | PostgresControlPlane:
    """Return the control plane of a broker, not started.

    `start_seconds` limits the wait for PostgreSQL; 0 makes a single attempt.
    """
    if notices is not None:
        from penstock.control.sqlite import SharedSqliteControlPlane

        return SharedSqliteControlPlane(directory / CONTROL, notices=notices)
    if not url:
        from penstock.control import SqliteControlPlane

        return SqliteControlPlane(directory / CONTROL)
    from penstock.control.postgres import PostgresControlPlane

    return PostgresControlPlane(url, start_seconds=start_seconds)


def _diskless(
    configuration: Configuration,
    plane: SqliteControlPlane | PostgresControlPlane,
    config_of: Callable[[str], LogConfig],
) -> DisklessService:
    from penstock.diskless.topics.service import DisklessService
    from penstock.objects import open_store, place_of

    locations = configuration.locations
    url = store_url(configuration)
    options = store_options(locations)
    timeout_ms = configuration.diskless.put_timeout_ms
    return DisklessService(
        configuration.diskless,
        configuration.fetching,
        plane=plane,
        open_store=lambda: open_store(url, options=options, request_timeout_ms=timeout_ms),
        clock=SYSTEM_CLOCK,
        randomness=SYSTEM_RANDOMNESS,
        broker_id=configuration.broker.node_id,
        config_of=config_of,
        store_url=without_credentials(url),
        store_place=place_of(url, options),
        url_signer=url_signer(configuration.broker, url, options),
        needed=bool(locations.diskless_storage_url),
    )


def url_signer(settings: BrokerSettings, url: str, options: Mapping[str, str]) -> UrlSigner | None:
    """Return the signer of URLs with which Spark reads objects; None if unneeded or impossible."""
    from penstock.objects import StoreRefused, is_local, signer_of

    wanted = settings.authorizer_class_name and settings.extents_direct_files_enable != "false"
    if not wanted or is_local(url):
        return None
    try:
        return signer_of(url, options, os.environ)
    except StoreRefused as error:
        logger.warning(
            "Spark reads diskless topics through brokers, since URLs of objects cannot be signed:"
            " %s",
            error,
        )
        return None


def _tiers(
    configuration: Configuration,
    plane: SqliteControlPlane | PostgresControlPlane,
    archive: DisklessService,
) -> TierService:
    from penstock.partitions.tiering import TierService

    return TierService(
        configuration.tiering,
        plane=plane,
        archive=archive,
        clock=SYSTEM_CLOCK,
        randomness=SYSTEM_RANDOMNESS,
    )


def _audit_topic(settings: AuditSettings) -> AuditTopic | None:
    """Return the writer of audit lines to the topic `audit.topic`; None if that is not set."""
    from penstock.broker.topics.audit_topic import AuditTopic

    if not settings.topic:
        return None
    return AuditTopic(settings.topic, lines_max=settings.queue_events)


def audit_log(
    settings: AuditSettings,
    registry: Registry,
    origin: dict[str, int | str],
    topic: LineSink | None = None,
) -> Audit:
    """Return the audit log of this process; `origin` identifies the process in each line.

    Lines are written to the configured file and to `topic`, as far as these exist.

    Raises:
        AuditFileUnusable: the file cannot be opened.
    """
    from penstock.security.audit import NO_AUDIT, AuditLog

    sinks = [] if topic is None else [topic]
    if settings.log_file:
        from penstock.security.audit import AuditFile

        file = AuditFile(
            settings.log_file,
            bytes_max=settings.log_file_bytes,
            files_max=settings.log_files,
            queue_max=settings.queue_events,
        )
        sinks.append(file)
    if not sinks:
        return NO_AUDIT
    audit = AuditLog(sinks, clock=SYSTEM_CLOCK, origin=origin)
    registry.add(audit.samples)
    return audit


def _check_store(configuration: Configuration) -> None:
    """Reject an invalid configuration of the object store, before anything is opened.

    Raises:
        InvalidConfiguration: the options cannot be read.
        InvalidSetting: the URL or an option is invalid.
    """
    locations = configuration.locations
    options = store_options(locations)
    if locations.diskless_storage_url:
        from penstock.objects import is_local, open_store

        if not is_local(locations.diskless_storage_url):
            open_store(locations.diskless_storage_url, options=options)


def store_url(configuration: Configuration) -> str:
    """Return the URL of the object store: the configured one, or the directory objects in
    `log.dirs`.
    """
    directory = configuration.directory / "objects"
    return configuration.locations.diskless_storage_url or directory.absolute().as_uri()


def store_options(locations: LocationSettings) -> dict[str, str]:
    """Return the options of the object store; single options override those of the file.

    Raises:
        InvalidConfiguration: the file cannot be read, or a line or an option has no `=`.
    """
    from penstock.apps.process.configuration import InvalidConfiguration

    lines: list[tuple[str, str]] = []
    if locations.diskless_storage_options_file:
        path = Path(locations.diskless_storage_options_file).expanduser()
        try:
            text = path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidConfiguration(f"diskless.storage.options.file {path}: {error}") from None
        lines += [
            (line.strip(), f"{path}, line {number}")
            for number, line in enumerate(text.splitlines(), 1)
            if line.strip() and not line.lstrip().startswith("#")
        ]
    lines += [(text, "diskless.storage.options") for text in locations.diskless_storage_options]
    options: dict[str, str] = {}
    for line, origin in lines:
        name, equals, value = line.partition("=")
        if not equals or not name.strip():
            raise InvalidConfiguration(f"{origin}: an option must read name=value")
        options[name.strip()] = value.strip()
    return options


def _with_staging(settings: BrokerSettings, directory: Path) -> BrokerSettings:
    if settings.sink_staging_directory:
        return settings
    return replace(settings, sink_staging_directory=str(directory / "staging"))


def logs_below(directory: Path) -> list[Path]:
    """Return the existing log directories in a data directory.

    `log` belongs to a single process, `log-<node.id>` to further processes that shared the
    directory.
    """
    return [
        thing for thing in (directory / LOG, *sorted(directory.glob(f"{LOG}-*"))) if thing.is_dir()
    ]


def prepare(log: Path) -> None:
    """Create a broker's log directory, and check that the data directory is writable.

    Raises:
        DirectoryUnusable: the directory cannot be created or written.
    """
    prepare_directory(log.parent, log)


def prepare_directory(directory: Path, log: Path | None = None) -> None:
    """Create a data directory, and check that it is writable; also create a log directory in it.

    Raises:
        DirectoryUnusable: a directory cannot be created or written.
    """
    try:
        (log or directory).mkdir(parents=True, exist_ok=True)
        probe = directory / ".writable"
        probe.write_bytes(b"")
        probe.unlink(missing_ok=True)
    except OSError as error:
        raise DirectoryUnusable(
            f"data directory {directory} (log.dirs): {error.strerror}; choose another directory"
            " with --data-dir, or change the owner of this one"
        ) from None


async def start(server: BrokerServer) -> Ready:
    """Start a broker and return its addresses; stop it again on failure.

    Raises:
        PortUnavailable: a listener's address is in use, or is not an address of this machine.
    """
    try:
        await server.start()
    except OSError as error:
        await server.stop()
        raise PortUnavailable(unbound(server.settings, error)) from None
    except BaseException:
        await server.stop()
        raise
    return Ready(kafka=server.kafka_address, admin=server.admin_address)


def unbound(settings: BrokerSettings, error: OSError) -> str:
    """Return an error's text: the address that cannot be bound, the reason, and the option to
    change.
    """
    said = error.strerror or str(error)
    pairs = re.findall(r"\('([^']*)', (\d+)", said)
    cause = os.strerror(error.errno) if pairs and error.errno else said
    tried = ", ".join(f"{host}:{port}" for host, port in pairs) or ", ".join(
        [*settings.listeners, settings.admin_listener]
    )
    flag = "--admin" if tried == settings.admin_listener else "--listener"
    return (
        f"cannot listen on {tried}: {cause}; choose another address with {flag} HOST:PORT (port 0"
        " picks a free port)"
    )


def trusted_note(trusted: bool) -> str:
    """Return the end of the ready line, which warns if local admin requests need no credentials."""
    return " admin.loopback.trusted=true" if trusted else ""


def address(pair: tuple[str, int] | None) -> str:
    """Return an address as `host:port`, with brackets around IPv6; a dash for None."""
    if pair is None:
        return "-"
    host, port = pair
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
