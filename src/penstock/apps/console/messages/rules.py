"""Rules of `console.masking.file`: fields of records, and the principals who see them in clear.

    [roles]
    fraud = ["User:alice", "User:bob"]

    [rules.card]
    topics = ["payments", "orders.*"]          # names, or beginnings that end in *
    fields = [".value.customer.card", ".key", '.headers["token"]']
    mask = "card"                              # a kind of `security/data/masks.py`, or hide = true
    clear = ["fraud", "User:carol"]            # roles and principals; all others get masked values

`first` and `last` belong to `mask = "keep"`. `message` names the Protobuf message of values, if the
topic's schema file has several.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, ClassVar, Final

from msgspec import Struct

from penstock.apps.console.messages.expressions import (
    NUMBERS,
    InvalidFilter,
    Path,
    Truth,
    parse,
)
from penstock.base.document import Document, Key, Problem, dotted, in_order, read
from penstock.base.errors import InvalidError
from penstock.security.data.masks import KEPT_MAX, KINDS, Mask
from penstock.security.files import Reloading
from penstock.spark.pipeline.kinds import nearest, type_name

if TYPE_CHECKING:
    from penstock.security import Principal

SETTING: Final = "console.masking.file"
_TABLES: Final = ("roles", "rules")
_KEYS: Final = ("topics", "fields", "mask", "first", "last", "hide", "clear", "message")
_USER: Final = "User:"

logger = logging.getLogger(__name__)


class MaskingInvalid(InvalidError):
    """File of rules with problems; the message lists all of them."""

    code: ClassVar[str] = "invalid_config"


class Masked(InvalidError):
    """Request for content that rules mask for the caller."""

    code: ClassVar[str] = "topic_authorization_failed"


class Rule(Struct, frozen=True, kw_only=True):
    """Rule for fields of records. `mask` is None if the fields are hidden, also if they are null.

    Attributes:
        fields: paths as the file has them, and parsed.
        clear: principals who see the fields.
        message: name of the Protobuf message of values; empty if the schema file has only one.
    """

    name: str
    topics: tuple[str, ...]
    fields: tuple[tuple[str, Path], ...]
    mask: Mask | None
    clear: frozenset[str]
    message: str = ""

    def applies(self, topic: str, principal: str) -> bool:
        return principal not in self.clear and any(
            topic.startswith(name[:-1]) if name.endswith("*") else topic == name
            for name in self.topics
        )

    def paths(self, root: str) -> list[Path]:
        """Return the paths of the fields in a part of records."""
        return [path for _, path in self.fields if path.root == root]


def why(rules: Iterable[Rule]) -> str:
    """Return the reason why fields are masked, which names the rules."""
    names = [rule.name for rule in rules]
    return f"fields are masked by rule{'s'[: len(names) - 1]} {', '.join(names)} of {SETTING}"


class Masking:
    """Rules of a file, which is read again after it has changed."""

    def __init__(self, file: str) -> None:
        """Read the file. Blocks.

        Raises:
            MaskingInvalid, UnusableFile: the file has problems, or cannot be read.
        """
        self._file = Reloading([file], lambda: _rules(FilePath(file)))

    def rules(self, topic: str, principal: Principal) -> tuple[Rule, ...]:
        """Return the rules that mask fields of a topic for a principal, hiding ones first. Blocks.

        If the changed file has problems, the previous rules apply, and the problems are logged.
        """
        failures = self._file.failures
        if self._file.reload():
            logger.info("reloaded %s", SETTING)
        elif self._file.failures > failures:
            logger.error("keeping the previous rules of %s: %s", SETTING, self._file.failure)
        user = str(principal)
        return tuple(rule for rule in self._file.current if rule.applies(topic, user))


def _rules(file: FilePath) -> tuple[Rule, ...]:
    try:
        document = read(file)
    except InvalidError as error:  # the file is not TOML
        raise MaskingInvalid(f"{SETTING}: {error}") from None
    checks = _Checks(document)
    rules = checks.rules()
    if checks.problems:
        problems = in_order(checks.problems, document.file)
        raise MaskingInvalid("\n".join([f"{SETTING} has problems:", *map(str, problems)]))
    return tuple(sorted(rules, key=lambda rule: rule.mask is not None))


class _Checks:
    """Reader of a document, which collects its problems."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self.problems: list[Problem] = []

    def rules(self) -> list[Rule]:
        values = self._document.values
        self._known((), values, _TABLES)
        roles = {
            name: self._principals(("roles", name), members, {})
            for name, members in self._table(("roles",), values.get("roles", {})).items()
        }
        rules = self._table(("rules",), values.get("rules", {}))
        if not rules:
            self._refuse(("rules",), "the file has no rules", "add a table such as [rules.card]")
        return [
            self._rule(("rules", name), self._table(("rules", name), raw), roles)
            for name, raw in rules.items()
        ]

    def _refuse(self, key: Key, message: str, fix: str) -> None:
        self.problems.append(self._document.problem(key, message, fix))

    def _table(self, key: Key, raw: object) -> Mapping[str, Any]:
        if isinstance(raw, dict):
            return raw
        self._refuse(key, f"must be a table, but is {type_name(raw)}", f"write [{dotted(key)}]")
        return {}

    def _known(self, key: Key, raw: Iterable[str], names: tuple[str, ...]) -> None:
        for name in raw:
            if name not in names:
                close = nearest(name, names)
                fix = f"write {close}" if close else f"known are {', '.join(names)}"
                self._refuse((*key, name), "is not known here", fix)

    def _rule(self, key: Key, raw: Mapping[str, Any], roles: Mapping[str, frozenset[str]]) -> Rule:
        self._known(key, raw, _KEYS)
        topics = self._texts((*key, "topics"), raw.get("topics"), 'topics = ["orders"]')
        for number, topic in enumerate(topics):
            if "*" in topic[:-1]:
                fix = "end it with *, as in orders.*, or write the whole name"
                self._refuse((*key, "topics", number), f"{topic!r} has * inside", fix)
        message = raw.get("message", "")
        if not isinstance(message, str):
            self._refuse((*key, "message"), "must be text", 'write message = "shop.Payment"')
        return Rule(
            name=str(key[-1]),
            topics=topics,
            fields=tuple(self._fields(key, raw)),
            mask=self._mask(key, raw),
            clear=self._principals((*key, "clear"), raw.get("clear", []), roles),
            message=str(message),
        )

    def _texts(self, key: Key, raw: object, example: str) -> tuple[str, ...]:
        """Return the texts of a list that is not empty; report other values."""
        if isinstance(raw, list) and raw and all(isinstance(item, str) and item for item in raw):
            return tuple(raw)
        self._refuse(key, "must be a list of texts", f"write {example}")
        return ()

    def _fields(self, key: Key, raw: Mapping[str, Any]) -> Iterable[tuple[str, Path]]:
        key = (*key, "fields")
        texts = self._texts(key, raw.get("fields"), 'fields = [".value.id"]')
        for number, text in enumerate(texts):
            try:
                found = parse(text)
            except InvalidFilter as error:
                self._refuse((*key, number), str(error), "write a path, such as .value.customer.id")
                continue
            if not isinstance(found, Truth) or found.path.root in NUMBERS:
                fix = "write a path into .key, .value or .headers"
                self._refuse((*key, number), f"{text!r} is not a field of a record", fix)
            elif any(isinstance(step, int) for step in found.path.steps):
                fix = "leave the index out: a path enters all elements of arrays"
                self._refuse((*key, number), f"{text!r} has an index", fix)
            else:
                yield text, found.path

    def _mask(self, key: Key, raw: Mapping[str, Any]) -> Mask | None:
        kind, hide = raw.get("mask"), raw.get("hide", False)
        if not isinstance(hide, bool) or (kind is None) != hide:
            fix = f'write either hide = true, or mask = "KIND" with {", ".join(KINDS)}'
            self._refuse(key, "must have one of mask and hide", fix)
            return None
        sizes = {name: raw[name] for name in ("first", "last") if name in raw}
        for name, size in sizes.items():
            if kind != "keep" or type(size) is not int or not 0 <= size <= KEPT_MAX:
                fix = f'write a whole number from 0 to {KEPT_MAX} beside mask = "keep"'
                self._refuse((*key, name), f"{size!r} is not allowed", fix)
        if kind is not None and kind not in KINDS:
            fix = f"write one of {', '.join(KINDS)}"
            self._refuse((*key, "mask"), f"{kind!r} is not a kind of mask", fix)
        if kind is None or self.problems:
            return None
        return Mask(kind=kind, **sizes)

    def _principals(
        self, key: Key, raw: object, roles: Mapping[str, frozenset[str]]
    ) -> frozenset[str]:
        """Return the principals of a list, in which names of roles stand for their members."""
        if raw == []:
            return frozenset()
        found: set[str] = set()
        for number, name in enumerate(self._texts(key, raw, '["User:alice"]')):
            if name.startswith(_USER) and name != _USER:
                found.add(name)
            elif name in roles:
                found |= roles[name]
            else:
                close = nearest(name, tuple(roles))
                fix = f"write {close}" if close else f"write {_USER}NAME, or add it to [roles]"
                self._refuse((*key, number), f"{name!r} is neither a principal nor a role", fix)
        return frozenset(found)
