"""Configuration of a broker from flags, environment and file; each value keeps its origin.

Settings have Kafka's dotted names. A flag overrides the environment, the environment overrides the
file, and the file overrides the default. The file is TOML: `log.retention.ms = 1000` may be at the
top level, in tables (`[log.retention]`) or under a quoted name.

The name of an environment variable is `PENSTOCK_` or `KAFKA_`, and the setting's name as Kafka's
container images write it: `.` is `_`, `_` is `__`, `-` is `___`. A `KAFKA_` variable that is no
setting of Penstock is ignored, since container images set such variables for other purposes.

An error names the setting, the value, the rule, and the origin of the value.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Final

from penstock.base.errors import InvalidError, InvalidSetting
from penstock.base.otlp_settings import OtlpSettings
from penstock.base.settings import (
    SettingInfo,
    by_name,
    load,
    setting,
    unknown,
    whole_number,
    without_effect,
)
from penstock.broker.configuration.configs import idle_setting
from penstock.broker.configuration.settings import BrokerSettings
from penstock.broker.net.security_settings import (
    Security,
    SecuritySettings,
    check_override,
    split_override,
)
from penstock.diskless.settings import DisklessSettings
from penstock.objects.settings import FetchSettings
from penstock.partitions.tiers.settings import TierSettings
from penstock.registry.settings import RegistrySettings
from penstock.security.audit import AuditSettings
from penstock.storage.files.settings import StorageSettings

ENVIRONMENT_PREFIXES: Final = ("KAFKA_", "PENSTOCK_")
CONFIG_FILE_BYTES_MAX: Final = 1 << 20
PROCESSES_MAX: Final = 32
"""Limit of processes: all write their metadata to one SQLite file, and each is connected to all
others.
"""
DEFAULT_DIRECTORY: Final = "penstock-data"
CONTROL_SCHEMES: Final = ("postgresql", "postgres")


class InvalidConfiguration(InvalidError):
    """A setting or a file of settings is invalid; the message names the origin of the value."""

    code: ClassVar[str] = "invalid_config"


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectorySettings:
    """Settings of a broker's data directory, and of the processes that share it."""

    log_dirs: str = setting(
        DEFAULT_DIRECTORY, "Data directory: has the log, the journal and the SQLite control"
        " database. It is a single directory, not a list.",
    )  # fmt: skip
    log_dirs_access: str = setting(
        "owner", "Users that may read new files in log.dirs, whatever the umask. owner: only the"
        " broker's user (files 0600, directories 0700). group: also the broker's group (0640,"
        " 0750).",
        choices=("owner", "group"),
    )  # fmt: skip
    processes: int = setting(
        1, "Number of broker processes that penstock serve runs in log.dirs, as one cluster."
        " node.id and the ports of the listeners increase by one for each process. Must be 1"
        " with control.url.", 1,
        PROCESSES_MAX,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LocationSettings:
    """Settings of the database of metadata, and of the object store of diskless topics."""

    control_url: str = setting(
        "", "PostgreSQL database of topics, groups and the index of diskless topics, as"
        " postgresql://user@host/name. Empty means SQLite in log.dirs, which only the"
        " processes of one penstock serve can share.",
        secret=True,
    )  # fmt: skip
    control_start_timeout_ms: int = setting(
        60_000, "Longest time that a starting broker waits for the database of control.url; 0 makes"
        " a single attempt.", 0, 86_400_000,
    )  # fmt: skip
    diskless_storage_url: str = setting(
        "", "Object store of diskless topics: file:///directory, s3://bucket/prefix, gs://… or"
        " az://…. All brokers must have the same store; a broker with a different store does"
        " not start. Empty means the directory objects in log.dirs. Required with"
        " control.url.",
    )  # fmt: skip
    diskless_storage_options: tuple[str, ...] = setting(
        (), "Options of the object store as name=value, such as aws_endpoint and aws_region."
        " Missing options are taken from the environment and from the machine's identity.",
        secret=True,
    )  # fmt: skip
    diskless_storage_options_file: str = setting(
        "",
        "File with further options of the object store, one name=value per line; for secret"
        " options.",
    )

    def __post_init__(self) -> None:
        if not self.control_url:
            return
        scheme, separator, _ = self.control_url.partition("://")
        if not separator or scheme not in CONTROL_SCHEMES:
            # Report only the scheme: the rest may contain a password.
            raise InvalidSetting(
                "control.url",
                f"{scheme}://…" if separator else "…",
                f"must begin with {' or '.join(f'{known}://' for known in CONTROL_SCHEMES)},"
                " or be empty for SQLite below log.dirs",
            )
        hosts = self.control_url.partition("://")[2].partition("/")[0].rpartition("@")[2]
        ports = [re.search(r":([^:\]]*)$", host) for host in hosts.split(",")]
        if any(port and whole_number(port[1], 65_535) is None for port in ports):
            raise InvalidSetting(
                "control.url",
                f"{scheme}://…",
                "the port must be a number from 0 to 65535; write a / before the @ as %2F",
            )


@dataclass(frozen=True, slots=True)
class Given:
    """Value of a setting, and its origin for messages, as `flag -X`."""

    value: object
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """Configuration of a broker process.

    `directory` is the data directory. `notes` are sentences about settings without effect.
    """

    broker: BrokerSettings
    storage: StorageSettings
    directory: Path
    directory_access: str = "owner"
    locations: LocationSettings = field(default_factory=LocationSettings)
    diskless: DisklessSettings = field(default_factory=DisklessSettings)
    fetching: FetchSettings = field(default_factory=FetchSettings)
    tiering: TierSettings = field(default_factory=TierSettings)
    audit: AuditSettings = field(default_factory=AuditSettings)
    schemas: RegistrySettings = field(default_factory=RegistrySettings)
    otlp: OtlpSettings = field(default_factory=OtlpSettings)
    security: Security = field(default_factory=Security)
    processes: int = 1
    front_secret: bytes = field(default=b"", repr=False)
    """Secret in requests that the shared admin address forwards (`serve/front.py`); empty
    without a shared address.
    """
    log: str = "log"
    """Name of the broker's log directory in `directory`."""
    notes: tuple[str, ...] = ()


Kinds = tuple[type[Any], ...]
_TYPES: Final[Kinds] = (
    BrokerSettings,
    StorageSettings,
    DirectorySettings,
    LocationSettings,
    DisklessSettings,
    FetchSettings,
    TierSettings,
    AuditSettings,
    RegistrySettings,
    OtlpSettings,
    SecuritySettings,
)


def known_names(kinds: Kinds = _TYPES) -> frozenset[str]:
    return frozenset(name for kind in kinds for name in by_name(kind))


@cache
def all_settings() -> Mapping[str, SettingInfo]:
    """Return the declaration of each setting by its name."""
    return {name: info for kind in _TYPES for name, info in by_name(kind).items()}


def gathered(file: Path | None, environment: Mapping[str, str]) -> dict[str, Given]:
    """Return the values that the file and the environment give, unchecked.

    Raises:
        InvalidConfiguration: the file cannot be read.
    """
    return gather(_TYPES, file=file, environment=environment, flags={})


def configure(
    *,
    file: Path | None,
    environment: Mapping[str, str],
    flags: Mapping[str, Given],
    has_topics: bool = True,
) -> Configuration:
    """Build the configuration of a broker from all sources.

    A process with `has_topics=False` has the control plane of brokers, but no topics.

    Raises:
        InvalidConfiguration: the file cannot be read, a name is unknown, or a value is not allowed.
    """
    given = gather(_TYPES, file=file, environment=environment, flags=flags)
    overrides = take_overrides(given)
    loaded, notes = load_given(_TYPES, given)
    directories: DirectorySettings = loaded[DirectorySettings]
    if has_topics:
        _check_objects(loaded[LocationSettings])
    return Configuration(
        broker=loaded[BrokerSettings],
        storage=loaded[StorageSettings],
        directory=Path(directories.log_dirs).expanduser(),
        directory_access=directories.log_dirs_access,
        locations=loaded[LocationSettings],
        diskless=loaded[DisklessSettings],
        fetching=loaded[FetchSettings],
        tiering=loaded[TierSettings],
        audit=loaded[AuditSettings],
        schemas=loaded[RegistrySettings],
        otlp=loaded[OtlpSettings],
        security=Security(settings=loaded[SecuritySettings], overrides=overrides),
        processes=directories.processes,
        notes=notes,
    )


def _check_objects(locations: LocationSettings) -> None:
    """Raise InvalidConfiguration if brokers would share a database, but no object store."""
    if locations.control_url and not locations.diskless_storage_url:
        error = InvalidSetting(
            "diskless.storage.url",
            "",
            "must name the object store that all brokers share, because the control plane is"
            " PostgreSQL",
        )
        raise InvalidConfiguration(f"{error} (default)")


def load_all(
    kinds: Kinds, *, file: Path | None, environment: Mapping[str, str], flags: Mapping[str, Given]
) -> tuple[dict[type[Any], Any], tuple[str, ...]]:
    """Load settings from all sources: return an object of each class, and notes.

    The notes are sentences about values without effect.

    Raises:
        InvalidConfiguration: the file cannot be read, or names or values are invalid; lists them
            all.
    """
    return load_given(kinds, gather(kinds, file=file, environment=environment, flags=flags))


def gather(
    kinds: Kinds, *, file: Path | None, environment: Mapping[str, str], flags: Mapping[str, Given]
) -> dict[str, Given]:
    """Return the given settings by dotted name, each from the source that has precedence.

    Raises:
        InvalidConfiguration: the file cannot be read.
    """
    given: dict[str, Given] = {}
    if file is not None:
        given.update(read_file(file))
    given.update(read_environment(environment, kinds))
    given.update(flags)
    return given


def take_overrides(given: dict[str, Given]) -> dict[str, dict[str, object]]:
    """Remove settings of single listeners from `given`; return them by listener and setting name.

    They are named `listener.name.<name>.<setting>`.

    Raises:
        InvalidConfiguration: a value is not allowed.
    """
    taken: dict[str, dict[str, object]] = {}
    wrong = []
    for name in [name for name in given if split_override(name)]:
        item, split = given.pop(name), split_override(name)
        try:
            check_override(name, item.value)
        except InvalidSetting as error:
            wrong.append(f"{error} ({item.origin})")
        if split is not None:
            taken.setdefault(split[0], {})[split[1]] = item.value
    if wrong:
        raise InvalidConfiguration("; ".join(wrong))
    return taken


def load_given(
    kinds: Kinds, given: Mapping[str, Given]
) -> tuple[dict[type[Any], Any], tuple[str, ...]]:
    """Load the settings that `gather` returned, as `load_all` does."""
    known = {name: info for kind in kinds for name, info in by_name(kind).items()}
    wrong, notes, loaded = list[str](), list[str](), dict[type[Any], Any]()
    for name, item in given.items():
        info = known.get(name) or (idle_setting(name) if BrokerSettings in kinds else None)
        if info is None:
            wrong.append(f"setting {name} ({item.origin}): {unknown(name, known)}")
            continue
        try:
            sentence = without_effect(info, item.value)
            notes += [f"{sentence} ({item.origin})"] if sentence else []
        except InvalidSetting as error:
            wrong.append(f"{error} ({item.origin})")
    for kind in () if wrong else kinds:  # rules between settings
        values = {name: item.value for name, item in given.items() if name in by_name(kind)}
        try:
            loaded[kind] = load(kind, values)
        except InvalidSetting as error:
            origin = given[error.name].origin if error.name in given else "default"
            wrong.append(f"{error} ({origin})")
    if wrong:
        raise InvalidConfiguration("; ".join(wrong))
    return loaded, tuple(notes)


def read_file(path: Path) -> dict[str, Given]:
    """Return the values of a TOML file by dotted name, with file and line as origin.

    Raises:
        InvalidConfiguration: the file cannot be read, is too large, or is not TOML.
    """
    try:
        with path.open("rb") as file:
            data = file.read(CONFIG_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidConfiguration(f"configuration file {path}: {error.strerror}") from None
    if len(data) > CONFIG_FILE_BYTES_MAX:
        raise InvalidConfiguration(
            f"configuration file {path} is larger than {CONFIG_FILE_BYTES_MAX} bytes"
        )
    try:
        text = data.decode()
        tree = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidConfiguration(f"configuration file {path}: {error}") from None
    lines = text.splitlines()
    return {
        name: Given(value, f"{path}{_line_of(name, lines)}") for name, value in _flatten(tree, "")
    }


def _flatten(tree: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, object]]:
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _flatten(value, name + ".")
        else:
            yield name, value


def _line_of(name: str, lines: list[str]) -> str:
    """Return `, line N` for the line that assigns a dotted name, also inside tables; else empty."""
    words = name.split(".")
    for start in range(len(words)):
        tail = re.escape(".".join(words[start:]))
        pattern = re.compile(rf"""\s*["']?{tail}["']?\s*=""")
        for number, line in enumerate(lines, 1):
            if pattern.match(line):
                return f", line {number}"
    return ""


def read_environment(environment: Mapping[str, str], kinds: Kinds = _TYPES) -> dict[str, Given]:
    """Return the settings in the environment; `PENSTOCK_` overrides `KAFKA_` for the same
    setting.
    """
    known = known_names(kinds)
    given: dict[str, Given] = {}
    for prefix in ENVIRONMENT_PREFIXES:
        for variable, value in environment.items():
            if variable.startswith(prefix):
                name = dotted(variable.removeprefix(prefix))
                if name in known or (SecuritySettings in kinds and split_override(name)):
                    given[name] = Given(value, f"environment variable {variable}")
    return given


def misspelt(environment: Mapping[str, str], kinds: Kinds = _TYPES) -> list[str]:
    """Return a warning for each `PENSTOCK_` variable that is no setting, but similar to one."""
    forms = {f"PENSTOCK_{_environment_form(name)}" for name in known_names(kinds)}
    odd = [name for name in environment if name.startswith("PENSTOCK_") and name not in forms]
    if not odd:
        return []
    import difflib

    close = {name: difflib.get_close_matches(name, forms, n=1, cutoff=0.9) for name in odd}
    return [
        f"environment variable {name} is not a setting; did you mean {found[0]}?"
        for name, found in sorted(close.items())
        if found
    ]


def _environment_form(name: str) -> str:
    return name.replace("_", "__").replace("-", "___").replace(".", "_").upper()


def dotted(words: str) -> str:
    """Return the setting that a variable without its prefix names.

    Example: log.retention.ms for LOG_RETENTION_MS.
    """
    pieces = re.split("(_+)", words.lower())
    return "".join(_SEPARATORS.get(piece, piece) for piece in pieces)


_SEPARATORS: Final = {"_": ".", "__": "_", "___": "-"}


def parse_override(text: str, origin: str = "flag -X") -> tuple[str, Given]:
    """Parse a `key=value` of the command line; return the name, and the value with `origin`.

    Raises:
        InvalidConfiguration: there is no `=`.
    """
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise InvalidConfiguration(f"{origin} {text!r}: must read key=value")
    return name.strip(), Given(value.strip(), origin)
