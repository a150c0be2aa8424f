"""Access rules of an agent: which producers may publish to which topics. This is their file:

    [[rule]]
    uid = 1000                          # user of the producer's process, from the kernel
    gid = 1000                          # its effective group; if both are given, both must match
    principal = "User:app"
    topics = ["orders", "metrics.*"]    # names, or prefixes of names with *

    [[rule]]
    user = "web"                        # HTTP client with basic credentials
    password = "SCRAM-SHA-256$4096:…"   # stored form, see `security/credentials.py`
    principal = "User:web"
    topics = ["clicks"]

    [[rule]]
    token_sha256 = "9f86d0…"            # HTTP client with a bearer token of this digest
    principal = "User:prometheus"
    observes = true                     # may read metrics and status

    [[rule]]
    name = "orders-service"             # HTTP client with a signed token or certificate
    principal = "User:orders-service"
    topics = ["orders"]

The first matching rule applies. A producer without a matching rule is rejected. A process with the
agent's own user may connect without a rule, for health checks, but may not publish.

Source: `unix(7)`, SO_PEERCRED: the kernel records the user and group at the time of `connect`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from msgspec import Struct

from penstock.base.errors import InvalidError
from penstock.security.credentials import (
    Credentials,
    FileCredentials,
    InvalidCredential,
    ScramCredential,
    parse_credential,
)

RULES_MAX: Final = 1000
TOPICS_MAX: Final = 1000
_ID_MAX: Final = 2**32 - 2
_PRINCIPAL: Final = re.compile(r"[A-Za-z]+:.{1,255}")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_NAME: Final = re.compile(r".{1,4096}")
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{0,249}\*?")
_KEYS: Final = frozenset(
    {"uid", "gid", "user", "password", "token_sha256", "name", "principal", "topics", "observes"}
)


class InvalidRules(InvalidError):
    """The rules are invalid; the message names the rule and its mistake."""

    code: ClassVar[str] = "invalid_config"


class Permission(Struct, frozen=True, kw_only=True):
    """Rights of one producer."""

    principal: str
    names: frozenset[str] = frozenset()
    prefixes: tuple[str, ...] = ()
    observes: bool = False

    def allows(self, topic: str) -> bool:
        """Whether the producer may publish to a topic."""
        return topic in self.names or topic.startswith(self.prefixes)

    def refusal(self, topic: str) -> str:
        """Return the reason why the producer may not publish to a topic."""
        return f"{self.principal} may not publish to topic {topic or '(none)'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Rules of an agent; `credentials` are the passwords of its HTTP users."""

    peers: Sequence[tuple[int | None, int | None, Permission]] = ()
    tokens: Mapping[str, Permission] = field(default_factory=dict, repr=False)
    users: Mapping[str, Permission] = field(default_factory=dict)
    names: Mapping[str, Permission] = field(default_factory=dict)
    """Permissions by the name in a signed token or a certificate."""
    credentials: Credentials = field(default_factory=lambda: FileCredentials({}), repr=False)

    def of_peer(self, uid: int, gid: int, *, own_uid: int) -> Permission | None:
        """Return the permission of a process by its user and group; None if no rule matches."""
        for rule_uid, rule_gid, permission in self.peers:
            if rule_uid in (None, uid) and rule_gid in (None, gid):
                return permission
        return Permission(principal=f"User:uid-{uid}") if uid == own_uid else None


def parse_rules(text: str) -> Rules:
    """Parse the text of a file of rules.

    Raises:
        InvalidRules: the text is not TOML, or a rule is invalid. The message contains no secrets.
    """
    try:
        tree = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRules(str(error)) from None
    entries = tree.pop("rule", [])
    if tree or not isinstance(entries, list) or len(entries) > RULES_MAX:
        raise InvalidRules(f"the file must contain only [[rule]] tables, at most {RULES_MAX}")
    peers: list[tuple[int | None, int | None, Permission]] = []
    tokens: dict[str, Permission] = {}
    users: dict[str, Permission] = {}
    names: dict[str, Permission] = {}
    kept: dict[tuple[str, str], ScramCredential] = {}
    for number, entry in enumerate(entries, 1):
        try:
            kind, permission = _kind(entry), _permission(entry)
            if kind == "peer":
                peers.append((_id(entry, "uid"), _id(entry, "gid"), permission))
            elif kind == "token_sha256":
                tokens.setdefault(_word(entry, kind, _DIGEST), permission)
            elif kind == "name":
                names.setdefault(_word(entry, kind, _NAME), permission)
            else:
                user = _word(entry, kind, re.compile(r"[^:]{1,255}"))
                credential = parse_credential(_word(entry, "password", re.compile(".+")))
                users.setdefault(user, permission)
                kept.setdefault((credential.mechanism, user), credential)
        except (InvalidRules, InvalidCredential) as error:
            raise InvalidRules(f"rule {number}: {error}") from None
    credentials = FileCredentials(kept)
    return Rules(peers=peers, tokens=tokens, users=users, names=names, credentials=credentials)


def _kind(entry: Any) -> str:
    if not isinstance(entry, dict):
        raise InvalidRules("must be a table [[rule]]")
    if unknown := sorted(entry.keys() - _KEYS):
        raise InvalidRules(f"{unknown[0]!r} is unknown; known keys are {', '.join(sorted(_KEYS))}")
    given = [name for name in ("user", "token_sha256", "name") if name in entry]
    if "uid" in entry or "gid" in entry:
        given.append("peer")
    if len(given) != 1 or ("password" in entry) != ("user" in entry):
        raise InvalidRules(
            "must have exactly one of: uid or gid or both; user with password; token_sha256; name"
        )
    return given[0]


def _permission(entry: dict[str, Any]) -> Permission:
    topics, observes = entry.get("topics", []), entry.get("observes", False)
    if not isinstance(topics, list) or len(topics) > TOPICS_MAX:
        raise InvalidRules(f"topics must be a list of at most {TOPICS_MAX} names or prefixes")
    for topic in topics:
        if not (isinstance(topic, str) and topic and _TOPIC.fullmatch(topic)):
            raise InvalidRules(
                f"topic {topic!r}: must be a name, or a prefix of names followed by *"
            )
    if not isinstance(observes, bool):
        raise InvalidRules("observes must be true or false")
    return Permission(
        principal=_word(entry, "principal", _PRINCIPAL),
        names=frozenset(topic for topic in topics if not topic.endswith("*")),
        prefixes=tuple(topic[:-1] for topic in topics if topic.endswith("*")),
        observes=observes,
    )


def _word(entry: dict[str, Any], name: str, form: re.Pattern[str]) -> str:
    value = entry.get(name)
    if not isinstance(value, str) or not form.fullmatch(value):
        raise InvalidRules(f"{name} must be a text that matches {form.pattern}")
    return value


def _id(entry: dict[str, Any], name: str) -> int | None:
    value = entry.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _ID_MAX:
        raise InvalidRules(f"{name} must be a whole number from 0 to {_ID_MAX}")
    return value
