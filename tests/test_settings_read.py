"""Each setting of topics and brokers is read by the code, or declared to have no effect yet.

A setting is found by its declaration; what reads it, in the syntax trees of the rooms that it is
handed to: as an attribute of a settings object, or, where a topic's configuration is read over the
wire, as its name. A topic's default on the broker is read when the topic's own setting is.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from penstock.apps.process.configuration import DirectorySettings, LocationSettings
from penstock.base.settings import describe, setting
from penstock.broker.configuration.configs import TOPIC_SYNONYMS
from penstock.broker.configuration.settings import BrokerSettings, TopicDefaults
from penstock.broker.net.security_settings import SecuritySettings
from penstock.diskless.settings import DisklessSettings
from penstock.host.server.settings import HostSettings, HttpSecuritySettings, SinkSettings
from penstock.objects.settings import FetchSettings
from penstock.partitions.tiers.settings import TierSettings
from penstock.security.audit import AuditSettings
from penstock.storage.files.settings import LogConfig, StorageSettings

SOURCE = Path(__file__).resolve().parent.parent / "src" / "penstock"
ROOMS: Mapping[type[Any], tuple[str, ...]] = {
    LogConfig: ("storage", "diskless", "partitions", "broker"),
    BrokerSettings: ("broker", "apps/process/wiring.py", "apps/serve", "apps/console"),
    StorageSettings: ("storage",),
    DirectorySettings: ("apps/process/configuration.py",),
    LocationSettings: ("apps/process/wiring.py",),
    DisklessSettings: ("diskless", "apps/process/wiring.py"),
    FetchSettings: ("objects",),
    TierSettings: ("partitions",),
    SecuritySettings: (
        "broker/net",
        "broker/handlers/tokens.py",
        "security/listeners",
        "security/tls.py",
    ),
    AuditSettings: ("apps/process/wiring.py", "broker"),
    HostSettings: ("host/server", "apps/host/wiring.py"),
    HttpSecuritySettings: ("host/server", "security/listeners", "security/tls.py"),
    SinkSettings: ("host/sinks", "apps/host/wiring.py"),
}
HOLDERS = {
    "broker", "config", "configuration", "diskless", "directories", "effective", "locations",
    "settings", "sink", "sinks",
}  # fmt: skip
"""Names of variables and attributes that hold settings; `self` does in the settings' own file."""
OVER_THE_WIRE = ("spark/tables",)
"""Rooms that read a topic's configuration by name from what DescribeConfigs answers."""
DECLARATIONS = ("settings.py", "configs.py", "security_settings.py", "files.py")


def files(rooms: Iterable[str]) -> Iterator[Path]:
    for room in rooms:
        place = SOURCE / room
        yield from sorted(place.rglob("*.py")) if place.is_dir() else [place]


def attributes_read(rooms: Iterable[str]) -> set[str]:
    """Attributes that are read of something that holds settings."""
    return {name for path in files(rooms) for name in attributes_of(path)}


@cache
def attributes_of(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text())
    own = path.name in DECLARATIONS
    checks = [node for node in ast.walk(tree) if is_check(node)]
    checked = {id(part) for check in checks for part in ast.walk(check)}
    found: set[str] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or id(node) in checked:
            continue
        holder = node.value
        name = getattr(holder, "attr", getattr(holder, "id", "")).lstrip("_")
        if name in HOLDERS or (own and name == "self"):
            found.add(node.attr)
    return frozenset(found)


def is_check(node: ast.AST) -> bool:
    """Whether this only compares settings with each other."""
    return isinstance(node, ast.FunctionDef) and node.name == "__post_init__"


@cache
def names_read(rooms: tuple[str, ...]) -> frozenset[str]:
    nodes = (node for path in files(rooms) for node in ast.walk(ast.parse(path.read_text())))
    return frozenset(
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def unread(kind: type[Any], rooms: Iterable[str]) -> set[str]:
    """Names of the settings of a class that no code reads."""
    attributes, names = attributes_read(rooms), names_read(OVER_THE_WIRE)
    return {
        info.name
        for info in describe(kind)
        if info.attribute not in attributes and not (kind is LogConfig and info.name in names)
    }


def without_effect(kind: type[Any]) -> set[str]:
    """Return the settings that are declared to have none, with any value."""
    return {info.name for info in describe(kind) if info.no_effect is not None}


def test_every_setting_is_read_or_declared_to_have_no_effect() -> None:
    for kind, rooms in ROOMS.items():
        inherited = {info.name for info in describe(TopicDefaults)}
        skipped = inherited if kind is BrokerSettings else set()
        assert unread(kind, rooms) - skipped == without_effect(kind) - skipped, kind


def test_a_topics_default_has_the_effect_of_the_topics_own_setting() -> None:
    own = {info.name: info.no_effect for info in describe(LogConfig)}
    topic_of = {broker: name for name, chain in TOPIC_SYNONYMS.items() for broker, _ in chain}
    for info in describe(TopicDefaults):
        assert info.no_effect == own[topic_of[info.name]], info.name


def test_the_documentation_says_it() -> None:
    for kind in ROOMS:
        for info in describe(kind):
            assert info.no_effect is None or info.no_effect.why in info.doc


def test_finds_a_setting_that_nothing_reads() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Planted:
        flush_ms: int = setting(1, name="flush.ms", doc="Read.")
        read_by_nobody: int = setting(1, name="read.by.nobody", doc="Not read.")

    assert unread(Planted, ROOMS[LogConfig]) == {"read.by.nobody"}
