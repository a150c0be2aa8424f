"""A broker's configuration from flags, environment and file, each value with its origin.

Names are Kafka's dotted ones. A flag wins over the environment, the environment over the file,
the file over the default. The file is TOML; `log.retention.ms = 1000` may stand at the top, in
tables (`[log.retention]`) or quoted. In the environment a name follows Kafka's container
mapping behind `PENSTOCK_` or `KAFKA_`: `.` is `_`, `_` is `__`, `-` is `___`; of `KAFKA_` names
those that are no settings of ours are left alone, since images set others.

An error names the setting, the value, the rule and where the value came from.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

from penstock.base.errors import InvalidError, InvalidSetting
from penstock.base.settings import (
    by_name,
    load,
    setting,
    unknown,
    whole_number,
    without_effect,
)
from penstock.broker.apache_settings import idle_setting
from penstock.broker.security.settings import (
    Security,
    SecuritySettings,
    check_override,
    split_override,
)
from penstock.broker.settings import BrokerSettings
from penstock.diskless.settings import DisklessSettings
from penstock.objects.settings import FetchSettings
from penstock.partitions.tiering.settings import TierSettings
from penstock.security.audit.settings import AuditSettings
from penstock.storage.settings import StorageSettings

ENVIRONMENT_PREFIXES: Final = ("KAFKA_", "PENSTOCK_")
CONFIG_FILE_BYTES_MAX: Final = 1 << 20
PROCESSES_MAX: Final = 32
"""All write their metadata to one SQLite file, and each has a link to every other."""
DEFAULT_DIRECTORY: Final = "penstock-data"
CONTROL_SCHEMES: Final = ("postgresql", "postgres")


class InvalidConfiguration(InvalidError):
    """A broker's setting has an invalid value; names where it was given."""

    code: ClassVar[str] = "invalid_config"


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectorySettings:
    """The broker's directory, and the number of processes that share it."""

    log_dirs: str = setting(
        DEFAULT_DIRECTORY, "Directory of the log, the journal and the control database; one"
        " directory.",
    )  # fmt: skip
    log_dirs_access: str = setting(
        "owner", "Who may read what is created in log.dirs, whatever the umask: the broker's own"
        " user (files 0600, directories 0700), or also its group (0640, 0750).",
        choices=("owner", "group"),
    )  # fmt: skip
    processes: int = setting(
        1, "Broker processes of one cluster that one command runs in log.dirs; node.id and the"
        " ports of the listeners increase by one for each. Not with control.url.", 1,
        PROCESSES_MAX,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LocationSettings:
    """Locations of metadata and of the objects of diskless topics."""

    control_url: str = setting(
        "", "Database of topics, groups and the diskless index, as postgresql://user@host/name;"
        " empty is SQLite below log.dirs, for the brokers of one command.",
        secret=True,
    )  # fmt: skip
    control_start_timeout_ms: int = setting(
        60_000, "How long a broker that starts waits for the database of control.url to answer; 0"
        " tries once.", 0, 86_400_000,
    )  # fmt: skip
    diskless_storage_url: str = setting(
        "", "Where diskless topics are stored: file:///directory, s3://bucket/prefix, gs://… or"
        " az://…. All brokers must have the same store; a broker with another one does not"
        " start. Empty is the directory objects below log.dirs; required with control.url.",
    )  # fmt: skip
    diskless_storage_options: tuple[str, ...] = setting(
        (), "Options of the store as name=value, such as aws_endpoint and aws_region. Options"
        " that are missing come from the environment and the machine's identity.",
        secret=True,
    )  # fmt: skip
    diskless_storage_options_file: str = setting(
        "", "File of more options, one name=value per line, for those that are secrets."
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
        if not self.diskless_storage_url:
            raise InvalidSetting(
                "diskless.storage.url",
                "",
                "must name the store that all brokers share, where their control plane is"
                " PostgreSQL",
            )


@dataclass(frozen=True, slots=True)
class Given:
    """Value of a setting with its origin."""

    value: object
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """Configuration of a broker process; `notes` are about settings without effect."""

    broker: BrokerSettings
    storage: StorageSettings
    directory: Path
    directory_access: str = "owner"
    locations: LocationSettings = field(default_factory=LocationSettings)
    diskless: DisklessSettings = field(default_factory=DisklessSettings)
    fetching: FetchSettings = field(default_factory=FetchSettings)
    tiering: TierSettings = field(default_factory=TierSettings)
    audit: AuditSettings = field(default_factory=AuditSettings)
    security: Security = field(default_factory=Security)
    processes: int = 1
    front_secret: bytes = field(default=b"", repr=False)
    """By which a front's word for who has asked is known; empty where there is none."""
    log: str = "log"
    """The directory of the broker's log below `directory`."""
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
    SecuritySettings,
)


def known_names(kinds: Kinds = _TYPES) -> frozenset[str]:
    return frozenset(name for kind in kinds for name in by_name(kind))


def configure(
    *, file: Path | None, environment: Mapping[str, str], flags: Mapping[str, Given]
) -> Configuration:
    """Build the configuration from its sources.

    Raises:
        InvalidConfiguration: the file cannot be read, a name is unknown, a value is not allowed.
    """
    given = gather(_TYPES, file=file, environment=environment, flags=flags)
    overrides = take_overrides(given)
    loaded, notes = load_given(_TYPES, given)
    directories: DirectorySettings = loaded[DirectorySettings]
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
        security=Security(settings=loaded[SecuritySettings], overrides=overrides),
        processes=directories.processes,
        notes=notes,
    )


def load_all(
    kinds: Kinds, *, file: Path | None, environment: Mapping[str, str], flags: Mapping[str, Given]
) -> tuple[dict[type[Any], Any], tuple[str, ...]]:
    """Load the settings of these classes; return a sentence for each value without effect.

    Raises:
        InvalidConfiguration: the file cannot be read; or all unknown names and invalid values.
    """
    return load_given(kinds, gather(kinds, file=file, environment=environment, flags=flags))


def gather(
    kinds: Kinds, *, file: Path | None, environment: Mapping[str, str], flags: Mapping[str, Given]
) -> dict[str, Given]:
    """Gather the given settings, by dotted name.

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
    """Remove and return the values for single listeners: by listener and setting name.

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
    """Load gathered settings, as `load_all`."""
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
    """Read the values of a TOML file, by dotted name.

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
    """Return `, line N` of the assignment of a dotted name, also inside tables."""
    words = name.split(".")
    for start in range(len(words)):
        tail = re.escape(".".join(words[start:]))
        pattern = re.compile(rf"""\s*["']?{tail}["']?\s*=""")
        for number, line in enumerate(lines, 1):
            if pattern.match(line):
                return f", line {number}"
    return ""


def read_environment(environment: Mapping[str, str], kinds: Kinds = _TYPES) -> dict[str, Given]:
    """Read settings from the environment; `PENSTOCK_` overrides `KAFKA_`."""
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
    """Describe each `PENSTOCK_` variable whose name is close to a setting's."""
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
    """Return a setting's name from its environment form without prefix."""
    pieces = re.split("(_+)", words.lower())
    return "".join(_SEPARATORS.get(piece, piece) for piece in pieces)


_SEPARATORS: Final = {"_": ".", "__": "_", "___": "-"}


def parse_override(text: str, origin: str = "flag -X") -> tuple[str, Given]:
    """Read one `key=value`.

    Raises:
        InvalidConfiguration: there is no `=`.
    """
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise InvalidConfiguration(f"{origin} {text!r}: must read key=value")
    return name.strip(), Given(value.strip(), origin)
