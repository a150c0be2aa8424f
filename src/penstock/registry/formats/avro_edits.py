"""Edits of an Avro schema that make it compatible with another version.

Each rule has a list of edits, the smallest first. An edit is kept if the edited document is a valid
schema without the violation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from penstock.registry.formats.avro_compatibility import (
    Comparison,
    Finding,
    Side,
    Slot,
    branches_of,
    compare,
    matched_names,
)
from penstock.registry.formats.avro_draft import Draft, merged
from penstock.registry.formats.avro_parser import Document, Scope
from penstock.registry.formats.avro_types import (
    Array,
    Enum,
    Fixed,
    Map,
    Named,
    Record,
    Union,
    namespace,
    namespace_joined,
    simple_name,
)
from penstock.registry.formats.schema import PROBLEMS_MAX, Incompatibility, InvalidSchema

ROUNDS_MAX: Final = 8
"""Most rounds of one call. A round edits all violations that do not concern the same place."""
ATTEMPTS_MAX: Final = 24
"""Most documents that one call parses and compares."""
TYPES_EDITED_MAX: Final = 5_000
"""Most types, fields, symbols and branches of two schemas for which an edit is searched."""


def root_of(document: Document) -> Side:
    return Side(document.root, Slot(document.holder, 0))


def edited_document(
    document: Document,
    references: Scope,
    other: Document,
    problems: Sequence[Incompatibility],
    *,
    reads: bool,
) -> Document | None:
    """Return a document without some of the problems, or None.

    `reads` is true if the edited document is the reader's. `references` are the types of its
    dependencies, which are not edited.

    Raises:
        InvalidSchema: the documents are too complex to compare.
    """
    if document.scope.count + other.scope.count > TYPES_EDITED_MAX:
        return None
    editor = _Editor(references, other, reads)
    named = {(problem.rule, problem.path) for problem in problems}
    findings = editor.findings(document)
    kept = {_key(finding) for finding in findings} - named
    edited = document
    for _ in range(ROUNDS_MAX):
        following = editor.improved(
            edited, [finding for finding in findings if _key(finding) not in kept]
        )
        if following is None:
            break
        edited, findings = following
    return None if edited is document else edited


def _key(finding: Finding) -> tuple[str, str]:
    return finding.rule, finding.path


class _Editor:
    """Search for edits, bounded by `ATTEMPTS_MAX`."""

    def __init__(self, references: Scope, other: Document, reads: bool) -> None:
        self._references = references
        self._other = other
        self._reads = reads
        self._attempts = 0

    def findings(self, document: Document) -> list[Finding]:
        mine, theirs = root_of(document), root_of(self._other)
        return compare(mine, theirs) if self._reads else compare(theirs, mine)

    def improved(
        self, document: Document, findings: Sequence[Finding]
    ) -> tuple[Document, list[Finding]] | None:
        """Return an edited document with its findings, or None.

        All findings are edited together. If that resolves none, they are edited one by one.
        """
        draft = Draft(document, self._other)
        # A draft with other edits cannot rename types.
        for finding in sorted(findings, key=lambda finding: finding.rule != "NAME_MISMATCH"):
            causes = [cause for cause in _causes(finding) if cause.nearest is None]
            applied = [self._apply(draft, cause) for cause in causes]
            if not any(applied):
                self._apply(draft, finding)
        together = self._resolved(draft, findings)
        if together is not None:
            return together
        causes = [cause for finding in findings for cause in _causes(finding)]
        for cause in causes:
            for choice in range(len(self._edits(cause))):
                draft = Draft(document, self._other)
                alone = self._apply(draft, cause, choice) and self._resolved(draft, [cause])
                if alone:
                    return alone
        return self._separated(document) if findings else None

    def _separated(self, document: Document) -> tuple[Document, list[Finding]] | None:
        """Rename a type that has the name of another kind of type in the other version."""
        draft = Draft(document, self._other)
        taken = document.scope.named.keys() | self._other.scope.named.keys()
        for name in sorted(draft.clashes):
            names = (f"{name}{number}" for number in range(2, len(taken) + 3))
            draft.rename(
                document.scope.named[name], next(free for free in names if free not in taken)
            )
        return self._finished(draft)

    def _finished(self, draft: Draft) -> tuple[Document, list[Finding]] | None:
        if not draft.changed or self._attempts >= ATTEMPTS_MAX:
            return None
        self._attempts += 1
        try:
            edited = draft.finish(self._references)
        except InvalidSchema:
            return None
        return edited, self.findings(edited)

    def _resolved(
        self, draft: Draft, findings: Sequence[Finding]
    ) -> tuple[Document, list[Finding]] | None:
        """Return the edited document with its findings, if it resolves one of `findings`."""
        finished = self._finished(draft)
        if finished is None:
            return None
        before = {cause.message for finding in findings for cause in _causes(finding)}
        after = {cause.message for finding in finished[1] for cause in _causes(finding)}
        return None if before <= after else finished

    def _edits(self, finding: Finding) -> Sequence[Edit]:
        return _EDITS[finding.effective_rule, self._reads]

    def _apply(self, draft: Draft, finding: Finding, first: int = 0) -> bool:
        """Apply the first fitting edit of a finding from `first` on."""
        place = (
            Place(finding, finding.reader, finding.writer)
            if self._reads
            else Place(finding, finding.writer, finding.reader)
        )
        return any(apply(draft, place) for apply in self._edits(finding)[first:])


def _causes(finding: Finding) -> list[Finding]:
    """Return a finding, preceded by those in the similar branches of unions.

    Most findings have no similar branches and are their own cause.
    """
    found = [finding]
    pending, seen = [finding.nearest], set[Comparison]()
    while pending and len(found) < PROBLEMS_MAX:
        nearest = pending.pop()
        if nearest is not None and nearest not in seen:
            seen.add(nearest)
            inner = nearest.all_findings()
            found += inner
            pending += [violation.nearest for violation in inner]
    return found[::-1]


class Place(NamedTuple):
    """Finding with the side that is edited and the other side."""

    finding: Finding
    mine: Side
    theirs: Side


Edit = Callable[[Draft, Place], bool]
"""Edit of a draft. It returns false, without a change, if it does not fit."""


def _use_their_name(draft: Draft, place: Place) -> bool:
    """Refer to the type of the other version's name, if the schema has one."""
    node = place.theirs.node
    if draft.is_root(place.mine.slot) or not isinstance(node, Named):
        return False
    return node.name in draft.document.scope.named and draft.replace(place.mine.slot, node)


def _renamed(draft: Draft, place: Place) -> tuple[Named, Named] | None:
    """Return both types if the other version has no type of our name, so that ours is new."""
    mine, theirs = place.mine.node, place.theirs.node
    if not isinstance(mine, Named) or not isinstance(theirs, Named):
        return None
    return None if draft.is_theirs(mine) else (mine, theirs)


def _add_alias(draft: Draft, place: Place) -> bool:
    types = _renamed(draft, place)
    if types is None:
        return False
    mine, theirs = types
    space = namespace(theirs.name)
    if namespace(mine.name) and not space:
        return False  # Avro's Java library matches no alias without a namespace here.
    source = draft.claim(mine.source)
    if source is None:
        return False
    same = space == namespace(mine.name)
    source.setdefault("aliases", []).append(simple_name(theirs.name) if same else theirs.name)
    return True


def _add_branch_alias(draft: Draft, place: Place) -> bool:
    """Add an alias to the branch that has no counterpart, if the other version's has none here."""
    theirs = place.theirs.node
    if not isinstance(theirs, Named) or draft.is_ours(theirs):
        return False
    return any(
        branch.node.kind == theirs.kind and _add_alias(draft, place._replace(mine=branch))
        for branch in branches_of(place.mine)
    )


def _rename_branch(draft: Draft, place: Place) -> bool:
    """Give a type the name of a branch of the other version that has no counterpart here."""
    return any(
        isinstance(branch.node, Named)
        and branch.node.kind == place.mine.node.kind
        and not draft.is_ours(branch.node)
        and _rename(draft, place._replace(theirs=branch))
        for branch in branches_of(place.theirs)
    )


def _rename(draft: Draft, place: Place) -> bool:
    types = _renamed(draft, place)
    if types is None:
        return False
    mine, theirs = types
    name = namespace_joined(namespace(mine.name), simple_name(theirs.name))
    return draft.rename(mine, name)


def _restore_size(draft: Draft, place: Place) -> bool:
    source = draft.claim(place.mine.node.source)
    if source is None or not isinstance(place.theirs.node, Fixed):
        return False
    source["size"] = place.theirs.node.size_bytes
    return True


def _restore_symbols(draft: Draft, place: Place) -> bool:
    mine, theirs = place.mine.node, place.theirs.node
    source = draft.claim(mine.source)
    if source is None or not isinstance(mine, Enum) or not isinstance(theirs, Enum):
        return False
    source["symbols"] = merged(mine.symbols, theirs.symbols)
    return True


def _remove_symbols(draft: Draft, place: Place) -> bool:
    mine, theirs = place.mine.node, place.theirs.node
    source = draft.claim(mine.source)
    if source is None or not isinstance(mine, Enum) or not isinstance(theirs, Enum):
        return False
    known = set(theirs.symbols)
    left = [symbol for symbol in mine.symbols if symbol in known] or list(theirs.symbols)
    source["symbols"] = left
    draft.replace_default(place.mine, left)
    return True


def _add_default(draft: Draft, place: Place) -> bool:
    """Add a default: an empty array or map, an enum's default, or null in a union."""
    part = place.finding.field
    source = draft.claim(part.source) if part is not None else None
    if part is None or source is None:
        return False
    match part.node:
        case Array():
            source["default"] = []
        case Map():
            source["default"] = {}
        case Enum(default=str() as symbol):
            source["default"] = symbol
        case Union(branches=branches, source=union):
            copies = draft.claim(union)
            if copies is None:
                return False
            # Older libraries allow the default of the first branch only.
            nulls = [number for number, node in enumerate(branches) if node.kind == "null"]
            copies.insert(0, copies.pop(nulls[0]) if nulls else "null")
            source["default"] = None
        case _:
            if part.node.kind != "null":
                source["type"] = ["null", source["type"]]
            source["default"] = None
    return True


def _add_field_alias(draft: Draft, place: Place) -> bool:
    """Add the name of the other version's field that has the field's name as an alias."""
    part, mine, theirs = place.finding.field, place.mine.node, place.theirs.node
    if part is None or not isinstance(mine, Record) or not isinstance(theirs, Record):
        return False
    for renamed in theirs.fields.values():
        if part.name in renamed.aliases and renamed.name not in mine.fields:
            source = draft.claim(part.source)
            if source is None:
                return False
            source.setdefault("aliases", []).append(renamed.name)
            return True
    return False


def _restore_field_name(draft: Draft, place: Place) -> bool:
    """Rename the field that has the other version's name as an alias."""
    part, record = place.finding.field, place.mine.node
    if part is None or not isinstance(record, Record):
        return False
    for renamed in record.fields.values():
        if part.name in renamed.aliases:
            source = draft.claim(renamed.source)
            if source is None:
                return False
            source["name"] = part.name
            source["aliases"] = [alias for alias in renamed.aliases if alias != part.name]
            if not source["aliases"]:
                del source["aliases"]
            return True
    return False


def _restore_field(draft: Draft, place: Place) -> bool:
    """Insert a field of the other version after the field that precedes it there."""
    part, record, theirs = place.finding.field, place.mine.node, place.theirs.node
    if part is None or not isinstance(record, Record) or not isinstance(theirs, Record):
        return False
    if not draft.is_writable(part.node):
        return False
    fields = draft.claim(record.source["fields"], "insert")
    if fields is None:
        return False
    positions = {field["name"]: number for number, field in enumerate(fields)}
    position = 0
    for name in theirs.fields:
        if name == part.name:
            break
        position = positions.get(name, position - 1) + 1
    made = draft.form.field(part)
    made["aliases"] = [alias for alias in part.aliases if alias not in record.fields]
    if not made["aliases"]:
        del made["aliases"]
    fields.insert(position, made)
    return True


def _keep_first_match(draft: Draft, place: Place) -> bool:
    """Remove the aliases by which a field matches further fields of the other version."""
    part, theirs = place.finding.field, place.theirs.node
    if part is None or not isinstance(theirs, Record):
        return False
    source = draft.claim(part.source)
    if source is None:
        return False
    matched = matched_names(part, theirs)
    source["aliases"] = [alias for alias in part.aliases if alias not in matched[1:]]
    return True


def _remove_further_matches(draft: Draft, place: Place) -> bool:
    """Remove the fields that a field of the other version matches, except the first."""
    part, mine = place.finding.field, place.mine.node
    if part is None or not isinstance(mine, Record):
        return False
    fields = draft.claim(mine.source["fields"], "insert")
    if fields is None:
        return False
    matched = matched_names(part, mine)
    fields[:] = [field for field in fields if field["name"] not in matched[1:]]
    return True


def _widen(draft: Draft, place: Place) -> bool:
    """Replace a type by a union with the branch of the other version's union."""
    mine, theirs = place.mine, place.theirs
    if theirs.union is None or mine.union is not None or isinstance(mine.node, Union):
        return False
    if not draft.is_writable(theirs.node):
        return False
    holder = draft.claim(mine.slot.holder)
    if holder is None:
        return False
    branches = [holder[mine.slot.key], draft.form.document(theirs.node)]
    if theirs.node.kind == "null" and not _has_default(mine):
        branches.reverse()
    holder[mine.slot.key] = branches
    return True


def _add_branch(draft: Draft, place: Place) -> bool:
    mine, theirs = place.mine, place.theirs
    if not isinstance(mine.node, Union) or not draft.is_writable(theirs.node):
        return False
    branches = draft.claim(mine.node.source)
    if branches is None:
        return False
    first = theirs.node.kind == "null" and not _has_default(mine)
    branches.insert(0 if first else len(branches), draft.form.document(theirs.node))
    return True


def _has_default(side: Side) -> bool:
    return side.slot.field is not None and side.slot.field.has_default


def _remove_branch(draft: Draft, place: Place) -> bool:
    return draft.remove_branch(place.mine, place.theirs)


def _restore_type(draft: Draft, place: Place) -> bool:
    """Write the other version's type; a whole union if either type is a branch of one."""
    mine, theirs = place.mine.union or place.mine, place.theirs.union or place.theirs
    if not draft.replace(mine.slot, theirs.node):
        return False
    draft.take_default(mine, theirs)
    return True


_EDITS: Final[Mapping[tuple[str, bool], Sequence[Edit]]] = {
    ("NAME_MISMATCH", True): (_use_their_name, _add_alias, _rename, _restore_type),
    ("NAME_MISMATCH", False): (_use_their_name, _rename, _restore_type),
    ("FIXED_SIZE_MISMATCH", True): (_restore_size, _restore_type),
    ("FIXED_SIZE_MISMATCH", False): (_restore_size, _restore_type),
    ("MISSING_ENUM_SYMBOLS", True): (_restore_symbols, _restore_type),
    ("MISSING_ENUM_SYMBOLS", False): (_remove_symbols, _restore_type),
    ("READER_FIELD_MISSING_DEFAULT_VALUE", True): (_add_field_alias, _add_default),
    ("READER_FIELD_MISSING_DEFAULT_VALUE", False): (_restore_field_name, _restore_field),
    ("AMBIGUOUS_FIELD_ALIAS", True): (_keep_first_match,),
    ("AMBIGUOUS_FIELD_ALIAS", False): (_remove_further_matches,),
    ("TYPE_MISMATCH", True): (_widen, _restore_type),
    ("TYPE_MISMATCH", False): (_remove_branch, _restore_type),
    ("MISSING_UNION_BRANCH", True): (_add_branch_alias, _add_branch, _restore_type),
    ("MISSING_UNION_BRANCH", False): (_rename_branch, _remove_branch, _restore_type),
}
"""Edits by rule, and by whether the edited schema is the reader's; the smallest first."""
