"""Copy of an Avro schema's document that is being edited.

An edit changes the copy in place, so that everything else keeps its order and its spelling. The
parser then repairs what the edits broke: it moves the definition of a type to its first use, adds
definitions that the other version has, and replaces defaults that no longer match.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.registry.formats.avro_compatibility import Side, Slot
from penstock.registry.formats.avro_normal import Definitions, NormalForm
from penstock.registry.formats.avro_parser import (
    Document,
    Mend,
    Scope,
    parse_document,
    parse_text,
)
from penstock.registry.formats.avro_types import (
    Named,
    Node,
    Union,
    parts_of,
    simple_name,
    union_key,
)
from penstock.registry.formats.json_text import write_json


@dataclass(frozen=True, slots=True)
class _Removal:
    """Branches to remove from a union, and the other version's type at its place."""

    union: Side
    theirs: Side
    positions: set[int] = field(default_factory=set)


class Draft:
    """Document with edits in progress.

    An edit claims the objects that it changes, so that two edits never change the same object.

    Attributes:
        document: the document before the edits.
        other: the other version.
        form: writer of types, in which all named types are references.
        clashes: names of the document's types that the other version has for other kinds of types.
    """

    def __init__(self, document: Document, other: Document) -> None:
        self.document = document
        self.other = other
        self.clashes = frozenset(
            name
            for name in document.own & other.scope.named.keys()
            if document.scope.named[name].kind != other.scope.named[name].kind
        )
        self._ours = frozenset(map(_simple, document.scope.named.values()))
        self._theirs = frozenset(map(_simple, other.scope.named.values()))
        self._named = {**other.scope.named, **document.scope.named}
        self._copies: dict[int, Any] = {}
        self._holder = copy.deepcopy(document.holder, self._copies)
        self.form = NormalForm(self._named, sort_aliases=False)
        self._claims: dict[int, str] = {}
        self._renames: dict[str, str] = {}
        self._removals: dict[int, _Removal] = {}

    def is_ours(self, node: Named) -> bool:
        """Return whether the document has a type of a type's kind and simple name."""
        return _simple(node) in self._ours

    def is_theirs(self, node: Named) -> bool:
        """Return whether the other version has a type of a type's kind and simple name."""
        return _simple(node) in self._theirs

    @property
    def changed(self) -> bool:
        return bool(self._claims or self._renames)

    def claim(self, source: Any, purpose: str = "") -> Any:
        """Return the copy of an object of the document, or None.

        None means that a dependency has the object, or that another edit has claimed it. Several
        edits may claim an object for the same purpose.
        """
        found = None if self._renames else self._copies.get(id(source))
        claimed = id(source) in self._claims
        if found is None or (claimed and (not purpose or self._claims[id(source)] != purpose)):
            return None
        self._claims[id(source)] = purpose
        return found

    def replace(self, slot: Slot, node: Node) -> bool:
        """Write a type of the other version to a place, if its name has no other meaning here."""
        form = self.form
        if self.is_root(slot):
            references = self.document.scope.named.keys() - self.document.own
            form = NormalForm(references, sort_aliases=False)
        elif not self.is_writable(node):
            return False
        holder = self.claim(slot.holder)
        if holder is None:
            return False
        holder[slot.key] = form.document(node)
        return True

    def is_writable(self, node: Node) -> bool:
        """Return whether the names in a type of the other version have no other meaning here."""
        pending, seen = [node], {node}
        while pending and self.clashes:
            current = pending.pop()
            if union_key(current) in self.clashes:
                return False
            for part in parts_of(current):
                if part not in seen:
                    seen.add(part)
                    pending.append(part)
        return True

    def is_root(self, slot: Slot) -> bool:
        return slot.holder is self.document.holder

    def rename(self, node: Named, name: str) -> bool:
        """Rename a type. No other edits are possible then, because names change their meaning."""
        if (
            self._claims
            or name in self._renames.values()
            or node.name not in self.document.own
            or name in self.document.scope.named
        ):
            return False
        self._renames[node.name] = name
        return True

    def remove_branch(self, branch: Side, theirs: Side) -> bool:
        """Remove a branch from its union, at the place of a type of the other version."""
        if branch.union is None or not isinstance(branch.slot.key, int):
            return False
        source = branch.union.node.source
        if self.claim(source, "remove") is None:
            return False
        removal = self._removals.setdefault(id(source), _Removal(branch.union, theirs))
        removal.positions.add(branch.slot.key)
        return True

    def take_default(self, mine: Side, theirs: Side) -> None:
        """Replace the default of a field by that of the other version, if both have one."""
        ours, others = mine.slot.field, theirs.slot.field
        if ours is not None and ours.has_default and others is not None and others.has_default:
            self._copies[id(ours.source)]["default"] = others.source["default"]

    def replace_default(self, side: Side, symbols: Sequence[str]) -> None:
        """Replace the default of a field of an enum that lost the symbol."""
        part = side.slot.field
        if part is None or not part.has_default or not symbols:
            return
        if part.source["default"] not in symbols:
            self._copies[id(part.source)]["default"] = symbols[0]

    def finish(self, references: Scope) -> Document:
        """Return the edited and repaired document.

        Raises:
            InvalidSchema: the edits do not fit together.
        """
        for removal in self._removals.values():
            self._remove(removal)
        mend = Mend(definitions=Definitions(self._named), renames=self._renames)
        mended = parse_document(self._holder[0], references, mend)
        return parse_text(write_json(mended.holder[0]), references)

    def _remove(self, removal: _Removal) -> None:
        """Remove branches; write the other version's type if null at most would be left."""
        union, theirs = removal.union, removal.theirs
        branches = union.node.branches if isinstance(union.node, Union) else ()
        left = [number for number in range(len(branches)) if number not in removal.positions]
        copies: list[Any] = self._copies[id(union.node.source)]
        holder = self._copies[id(union.slot.holder)]
        self.take_default(union, theirs)
        if all(branches[number].kind == "null" for number in left):
            holder[union.slot.key] = self.form.document(theirs.node)
        elif len(left) == 1 and not isinstance(theirs.node, Union):
            holder[union.slot.key] = copies[left[0]]
        else:
            copies[:] = [copies[number] for number in left]


def _simple(node: Named) -> tuple[str, str]:
    return node.kind, simple_name(node.name)


def merged(ours: Sequence[str], theirs: Sequence[str]) -> list[str]:
    """Return our items, with each missing item of theirs after the item that precedes it there."""
    known = set(ours)
    following: dict[str | None, list[str]] = {}
    last: str | None = None
    for item in theirs:
        if item in known:
            last = item
        else:
            following.setdefault(last, []).append(item)
    made = following.get(None, [])
    for item in ours:
        made += [item, *following.get(item, ())]
    return made
