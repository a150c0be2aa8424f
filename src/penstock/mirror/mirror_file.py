"""File of a mirror: its declared keys, and the parser that reports all problems.

name = "dr"

[source]
bootstrap = "127.0.0.1:9092"
topics = ["orders"]          # names or regular expressions
groups = ["g"]

[target]
bootstrap = "127.0.0.1:9192"
policy = "identity"          # or "prefix"
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import MISSING, dataclass, replace
from pathlib import Path
from typing import Any, Final

from penstock.base.document import Document, DocumentInvalid, DocumentKind, in_order, read
from penstock.base.errors import PenstockError
from penstock.base.settings import setting
from penstock.client import Client
from penstock.client.errors import InvalidArgument
from penstock.client.security import environment_options, read_properties, read_security
from penstock.client.session import parse_bootstrap
from penstock.connect.connector_file import Parser
from penstock.connect.plugins import ConnectorSettings

MIRROR: Final = DocumentKind("mirror", "the example of docs/guides/mirroring.md")
OWNER: Final = "mirror."
"""Beginning of the name under which a mirror's positions are stored, as those of a connector."""
STATE_DIRECTORY: Final = ".penstock/mirror"
_SECTIONS: Final = ("name", "source", "target", "mirror")
_PLAIN: Final = re.compile(r"[A-Za-z0-9._-]+")
_INTERNAL: Final = re.compile(
    r"__.*|.*[.-]internal|heartbeats|penstock-(connect|mirror)\..*|penstock-connect\.workers"
)
"""Topics that belong to a cluster or to a mirror, and are never mirrored."""


class SourceOptions(ConnectorSettings):
    """Keys of `[source]`."""

    bootstrap: str = setting(MISSING, "Required: brokers of the source as HOST:PORT,….")
    topics: tuple[str, ...] = setting(
        MISSING, "Required: topics that are mirrored, as names or regular expressions."
    )
    exclude: tuple[str, ...] = setting((), "Topics that are not mirrored, in the same form.")
    groups: tuple[str, ...] = setting(
        (), "Consumer groups whose offsets are mirrored, as names or regular expressions."
    )
    alias: str = setting("source", "Name of the source in prefixes and internal topics.")
    client_config: str = setting("", "Properties file with security options for the source.")
    registry: str = setting("", "URL of the source's schema registry, whose schemas are mirrored.")


class TargetOptions(ConnectorSettings):
    """Keys of `[target]`."""

    bootstrap: str = setting(MISSING, "Required: brokers of the target as HOST:PORT,….")
    policy: str = setting(
        "identity", "Names of topics in the target: `identity` keeps them, `prefix` puts the"
        " source's alias and a dot in front of them.", choices=("identity", "prefix"),
    )  # fmt: skip
    alias: str = setting(
        "target", "Name of the target. With `prefix`, topics that carry it are not mirrored."
    )
    replication_factor: int = setting(
        -1, "Replication factor of topics that are created; -1 means the brokers' default.", -1, 100
    )
    client_config: str = setting("", "Properties file with security options for the target.")
    registry: str = setting("", "URL of the schema registry into which schemas are imported.")


class MirrorOptions(ConnectorSettings):
    """Keys of `[mirror]`."""

    configs: bool = setting(True, "Whether changed settings of topics are applied to the target.")
    acls: bool = setting(True, "Whether ACLs of mirrored topics are added to the target.")
    groups_seconds: float = setting(
        5.0, "Time between two transfers of group offsets.", minimum=0.1, maximum=3600.0
    )
    topics_seconds: float = setting(
        30.0, "Time between two searches for new topics, partitions, settings and ACLs.",
        minimum=0.5, maximum=3600.0,
    )  # fmt: skip
    retry_timeout_seconds: float = setting(
        -1.0, "Time for which a mirror tries to reach its clusters; -1 means without end.",
        minimum=-1.0,
    )  # fmt: skip
    state: str = setting(
        "", "Directory of the status file.", shown="`.penstock/mirror/<name>` beside the file"
    )


@dataclass(frozen=True, slots=True)
class Names:
    """Names and regular expressions that select topics or groups."""

    plain: frozenset[str]
    patterns: tuple[re.Pattern[str], ...]

    @classmethod
    def of(cls, given: Iterable[str]) -> Names:
        """Return the names; an entry with other characters than those of names is an expression.

        Raises:
            re.error: an entry is not a valid regular expression.
        """
        plain = frozenset(entry for entry in given if _PLAIN.fullmatch(entry))
        return cls(plain, tuple(re.compile(entry) for entry in given if entry not in plain))

    def match(self, name: str) -> bool:
        return name in self.plain or any(pattern.fullmatch(name) for pattern in self.patterns)


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorSpec:
    """Checked content of a mirror's file."""

    name: str
    document: Document
    source: SourceOptions
    target: TargetOptions
    options: MirrorOptions
    topics: Names
    exclude: Names
    groups: Names
    state: Path

    @property
    def prefixed(self) -> bool:
        return self.target.policy == "prefix"

    @property
    def position_owner(self) -> str:
        """Name under which the mirror's positions are stored, as those of a connector."""
        return f"{OWNER}{self.name}"

    @property
    def transactional_id(self) -> str:
        """Transactional id of the mirror's producer, and client id of its clients."""
        return f"penstock-mirror-{self.name}"

    @property
    def syncs_topic(self) -> str:
        """MirrorMaker's topic of offset pairs, in the target."""
        return f"mm2-offset-syncs.{self.source.alias}.internal"

    @property
    def checkpoints_topic(self) -> str:
        """MirrorMaker's topic of translated group offsets, in the target."""
        return f"{self.source.alias}.checkpoints.internal"

    def renamed(self, topic: str) -> str:
        """Return the name of a topic in the target."""
        return f"{self.source.alias}.{topic}" if self.prefixed else topic

    def mirrors(self, topic: str) -> bool:
        """Return whether a topic of the source is mirrored."""
        if _INTERNAL.fullmatch(topic) or not self.topics.match(topic) or self.exclude.match(topic):
            return False
        return not (self.prefixed and self.target.alias in topic.split(".")[:-1])

    @property
    def source_security(self) -> dict[str, str]:
        """Security options of the source, by their names in properties files."""
        return _security(self.document, self.source)

    @property
    def target_security(self) -> dict[str, str]:
        """Security options of the target, by their names in properties files."""
        return _security(self.document, self.target)

    def source_client(self, **options: Any) -> Client:
        return self._client(self.source, options)

    def target_client(self, **options: Any) -> Client:
        return self._client(self.target, options)

    def _client(self, side: SourceOptions | TargetOptions, options: dict[str, Any]) -> Client:
        security = read_security(_security(self.document, side))
        name = self.transactional_id
        return Client(side.bootstrap, client_id=name, security=security, **options)


def _security(document: Document, side: SourceOptions | TargetOptions) -> dict[str, str]:
    """Return the security options of a cluster, by default those of `PENSTOCK_CLIENT_CONFIG`."""
    file = side.client_config
    return read_properties(str(document.path(file))) if file else environment_options()


def load(path: Path, *, bootstrap: str | None = None, state: Path | None = None) -> MirrorSpec:
    """Read and check a mirror's file.

    Args:
        path: the file, or a directory with a `mirror.toml`.
        bootstrap: overrides `target.bootstrap`.
        state: overrides `mirror.state`.

    Raises:
        DocumentInvalid: the file has problems; the error has all of them.
    """
    parser = Parser(read(path, MIRROR))
    spec = _spec(parser, state)
    if spec is None or parser.problems:
        raise DocumentInvalid(in_order(parser.problems, parser.document.file))
    if bootstrap is None:
        return spec
    return replace(spec, target=replace(spec.target, bootstrap=bootstrap))


def _spec(parser: Parser, state: Path | None) -> MirrorSpec | None:
    document = parser.document
    for name in document.values:
        if name not in _SECTIONS:
            parser.refuse((name,), "is not known here", f"known are {', '.join(_SECTIONS)}")
    name = parser.document_name()
    source: SourceOptions | None = parser.part(("source",), SourceOptions)
    target: TargetOptions | None = parser.part(("target",), TargetOptions)
    options: MirrorOptions | None = parser.part(("mirror",), MirrorOptions)
    if source is None or target is None or options is None:
        return None
    for section, side in (("source", source), ("target", target)):
        _check_side(parser, section, side)
    if bool(source.registry) != bool(target.registry):
        missing = "target" if source.registry else "source"
        parser.refuse((missing, "registry"), "is missing", "set both registries, or none")
    if target.policy == "prefix" and source.alias == target.alias:
        parser.refuse(
            ("target", "alias"), f"is {target.alias!r}, as is source.alias", "choose another"
        )
    return MirrorSpec(
        name=name,
        document=document,
        source=source,
        target=target,
        options=options,
        topics=_names(parser, "topics", source.topics),
        exclude=_names(parser, "exclude", source.exclude),
        groups=_names(parser, "groups", source.groups),
        state=state or document.path(options.state or f"{STATE_DIRECTORY}/{name}"),
    )


def _names(parser: Parser, key: str, given: tuple[str, ...]) -> Names:
    try:
        return Names.of(given)
    except re.error as error:
        parser.refuse(("source", key), f"has an invalid regular expression: {error}", "correct it")
        return Names.of(())


def _check_side(parser: Parser, section: str, side: SourceOptions | TargetOptions) -> None:
    try:
        parse_bootstrap(side.bootstrap)
    except InvalidArgument as error:
        parser.refuse((section, "bootstrap"), str(error))
    parser.topic((section, "alias"), side.alias)
    if side.client_config:
        try:
            read_security(_security(parser.document, side))
        except PenstockError as error:
            parser.refuse((section, "client_config"), str(error))
