"""Edits of a JSON schema that make it compatible with another one.

An edit of the reader's schema accepts more: it drops a requirement, widens a type or a bound,
restores a property, a value or a branch. An edit of the writer's schema produces less: it takes the
reader's constraint over. Both change only the subschemas that the findings name.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Final

from penstock.registry.formats.json_document import Json, Node, Schemas, pointer, value_at
from penstock.registry.formats.json_domain import CONSTANTS, Domain
from penstock.registry.formats.json_findings import Finding
from penstock.registry.formats.json_text import Number
from penstock.registry.formats.json_view import (
    KINDS,
    Bound,
    Kind,
    Objects,
    kinds_of_schema,
    type_names,
    value_key,
)
from penstock.registry.formats.schema import DEPTH_MAX

ANNOTATIONS: Final = (
    "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly",
)  # fmt: skip
"""Keywords that stay when a schema's constraints are removed."""
COPIED_NODES_MAX: Final = 500
"""Most values that one edit copies from the other schema."""
ARRAY_KEYWORDS: Final = ("items", "prefixItems", "additionalItems", "unevaluatedItems")
CONTAINS_KEYWORDS: Final = ("contains", "minContains", "maxContains")
BOUND_KEYWORDS: Final[Mapping[str, tuple[str, str]]] = {
    "MINIMUM": ("minimum", "exclusiveMinimum"),
    "MAXIMUM": ("maximum", "exclusiveMaximum"),
}

SIZE_KEYWORDS: Final = (
    "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties",
)  # fmt: skip
ENTRY_KEYWORDS: Final = (
    "patternProperties", "dependencies", "dependentRequired", "dependentSchemas",
)  # fmt: skip
REMOVED: Final = object()
"""Mark of a list's item that is removed when the edit ends."""

Place = dict[str, Json]


def edited_document(
    schemas: Schemas, other: Schemas, findings: Sequence[Finding], *, reads: bool
) -> Json:
    """Return the document of a schema with an edit for each finding.

    `reads` is true if the edited schema is the reader's, otherwise it is the writer's.
    """
    draft = _Draft(schemas, other)
    for finding in findings:
        _resolve(draft, finding, reads)
    return draft.finish()


class _Draft:
    """Copy of the main document that is being edited, and copies from the other schema."""

    def __init__(self, schemas: Schemas, other: Schemas) -> None:
        self.main = schemas.root.document
        self.value: Json = copy.deepcopy(self.main.value)
        self._names = {document.name for document in schemas.documents}
        self._other = other
        self._budget = 0
        self._exact = False
        self._renamed: dict[int, str] = {}

    def finish(self) -> Json:
        """Return the edited document."""
        return _without_removed(self.value)

    def place(self, node: Node) -> Place | None:
        """Return the object at a node's place, which becomes one if it is a boolean."""
        if node.document is not self.main:
            return None
        if not node.path:
            if not isinstance(self.value, dict):
                self.value = {}
            return self.value
        parent = self._find(node.path[:-1])
        found = _below(parent, node.path[-1])
        if isinstance(found, bool):
            found = parent[node.path[-1]] = {}
        return found if isinstance(found, dict) else None

    def copied(self, node: Node, *, exact: bool = False) -> Json:
        """Return a copy of a subschema of the other schema for this document."""
        copied = self.value_of(node, exact=exact)
        if isinstance(copied, bool) and self.main.draft == 4:
            return {} if copied else {"not": {}}
        return copied

    def value_of(self, node: Node, *steps: str | int, exact: bool = False) -> Json:
        """Return a copy of a value below a subschema of the other schema.

        References keep their pointers, also if this document defines something else there. An
        `exact` copy defines the other schema's target under a new name in that case.
        """
        self._budget = COPIED_NODES_MAX
        self._exact = exact
        return self._copied(value_at(node.schema, steps))

    def remove_branch(self, node: Node) -> bool:
        """Remove a branch of a union, unless it is the only one."""
        if node.document is not self.main or len(node.path) < 2:
            return False
        *above, keyword, index = node.path
        branches = self._find((*above, keyword))
        if keyword not in ("anyOf", "oneOf") or not isinstance(branches, list):
            return False
        if sum(branch is not REMOVED for branch in branches) < 2 or not isinstance(index, int):
            return False
        branches[index] = REMOVED
        return True

    def domain(self, domain: Domain) -> Json:
        """Return a schema that accepts all values of a domain."""
        if not domain.nodes:
            return {}
        copies = [self._part(node) for node in domain.nodes]
        return copies[0] if len(copies) == 1 else {"allOf": copies}

    def branch(self, domain: Domain) -> Json:
        """Return a schema of the case that a domain is of its union."""
        if not domain.nodes:
            return {}
        node = domain.nodes[-1]
        for _ in range(DEPTH_MAX):  # a branch that refers to its own union would never end
            targets = self._other.targets.get(id(node.schema))
            if not targets:
                break
            node = targets[0]
        return self._part(node)

    def _part(self, node: Node) -> Json:
        if node.document is not CONSTANTS:
            return self.copied(node)
        if "const" in node.schema:
            return {"enum": [node.schema["const"]]}
        return dict(node.schema)

    def _copied(self, value: Json) -> Json:
        self._budget -= 1
        if self._budget < 0:
            return {}
        if isinstance(value, list):
            return [self._copied(item) for item in value]
        if not isinstance(value, dict):
            return value
        if id(value) in self._other.targets:
            return self._reference(value, self._other.targets[id(value)][0])
        return {
            key: item if key in ("enum", "const") else self._copied(item)
            for key, item in value.items()
            if key not in ("$schema", "$id", "id", "$anchor", "$dynamicAnchor")
        }

    def _reference(self, value: Place, target: Node) -> Json:
        """Return a reference to the same target, which is defined here if it is not yet."""
        if target.document.name:
            return dict(value) if target.document.name in self._names else {}
        found = self._find(target.path)
        if found is not None and (not self._exact or found == target.schema):
            return {**value, "$ref": f"#{pointer(target.path)}"}
        if id(target.schema) not in self._renamed and not self._define(target):
            return {}
        return {**value, "$ref": f"#{self._renamed[id(target.schema)]}"}

    def _find(self, path: Sequence[str | int]) -> Json:
        found = self.value
        for step in path:
            found = _below(found, step)
        return found

    def _define(self, target: Node) -> bool:
        holder = "$defs" if self.main.draft >= 2019 else "definitions"
        if not isinstance(self.value, dict) or not target.path:
            return False
        definitions = self.value.setdefault(holder, {})
        base = name = str(target.path[-1])
        number = 1
        while name in definitions:
            number += 1
            name = f"{base}_{number}"
        self._renamed[id(target.schema)] = pointer((holder, name))
        definitions[name] = True
        definitions[name] = self._copied(target.schema)
        return True


Edit = Callable[[_Draft, Place, Finding], None]

# Edits of the reader's schema


def _reader_type(draft: _Draft, place: Place, finding: Finding) -> None:
    """Allow the writer's types as well."""
    if finding.reader.never:
        place.clear()
        return
    kinds = finding.reader.kinds | finding.writer.kinds
    if kinds == KINDS:
        place.pop("type", None)
    else:
        place["type"] = types_of(kinds)


def _reader_values(draft: _Draft, place: Place, finding: Finding) -> None:
    """Add the writer's values, or allow any value."""
    if "enum" not in place and "const" not in place:
        return
    values = place.pop("enum", [place.get("const")])
    place.pop("const", None)
    if isinstance(finding.subject, list):
        place["enum"] = [*values, *finding.subject]


def _reader_bound(draft: _Draft, place: Place, finding: Finding) -> None:
    """Take the writer's bound over, or remove the bound."""
    name = "MINIMUM" if "MINIMUM" in finding.rule else "MAXIMUM"
    old = finding.writer.low if name == "MINIMUM" else finding.writer.high
    _set_bound(draft, place, name, old)


def _reader_multiple(draft: _Draft, place: Place, finding: Finding) -> None:
    place.pop("multipleOf", None)
    if finding.writer.multiples:
        place["multipleOf"] = _literal(finding.writer.multiples[0])


def _reader_pattern(draft: _Draft, place: Place, finding: Finding) -> None:
    place.pop("pattern", None)
    if finding.writer.patterns:
        place["pattern"] = min(finding.writer.patterns)


def _reader_size(draft: _Draft, place: Place, finding: Finding) -> None:
    keyword = str(finding.steps[0])
    if isinstance(finding.subject, int):
        place[keyword] = _literal(Decimal(finding.subject))
    else:
        place.pop(keyword, None)


def _reader_required(draft: _Draft, place: Place, finding: Finding) -> None:
    names = [name for name in place.get("required", ()) if name != finding.subject]
    if names:
        place["required"] = names
    else:
        place.pop("required", None)


def _reader_property(draft: _Draft, place: Place, finding: Finding) -> None:
    """Restore a property that was removed; allow any value for one that was added."""
    properties = place.setdefault("properties", {})
    name, value = str(finding.subject), finding.value
    old = properties.get(name)
    kept = {key: old[key] for key in ANNOTATIONS if key in old} if isinstance(old, dict) else {}
    restored = {} if value is None else draft.domain(value)
    restored = {} if restored is True else restored
    properties[name] = {**restored, **kept} if isinstance(restored, dict) else restored


def _reader_additional(draft: _Draft, place: Place, finding: Finding) -> None:
    """Open the content model as far as the writer's is."""
    keyword = str(finding.steps[0])
    place.pop(keyword, None)
    rules = finding.writer.objects
    if len(rules) == 1 and rules[0].additional is not None and not rules[0].patterns:
        copied = draft.copied(rules[0].additional)
        if copied not in (True, {}):
            place["additionalProperties"] = copied


def _reader_entry(draft: _Draft, place: Place, finding: Finding) -> None:
    """Remove an entry of patternProperties or of a dependency."""
    keyword = str(finding.steps[0])
    entries = place.get(keyword, {})
    entries.pop(finding.subject, None)
    if not entries:
        place.pop(keyword, None)


def _reader_items(draft: _Draft, place: Place, finding: Finding) -> None:
    """Allow further items, restore an item, or allow any value for an item that was added."""
    keyword, index = str(finding.steps[0]), finding.subject
    if len(finding.steps) == 2:
        place[keyword][finding.steps[1]] = {}
        return
    holder = "prefixItems" if draft.main.draft >= 2020 else "items"
    items = place.get(holder)
    if isinstance(items, list) and index == len(items) and finding.value is not None:
        items.append(draft.domain(finding.value))
        return
    place.pop(keyword, None)
    place.pop("unevaluatedItems", None)


def _reader_contains(draft: _Draft, place: Place, finding: Finding) -> None:
    for keyword in CONTAINS_KEYWORDS:
        place.pop(keyword, None)


def _reader_branch(draft: _Draft, place: Place, finding: Finding) -> None:
    """Add a branch for the values that no branch accepts."""
    branches = place.get(str(finding.steps[0]))
    if isinstance(branches, list):
        branches.append(draft.branch(finding.writer))


def _drop_keyword(draft: _Draft, place: Place, finding: Finding) -> None:
    place.pop(str(finding.steps[0]), None)


def _reader_overlaps(draft: _Draft, place: Place, finding: Finding) -> None:
    """Allow that several branches match."""
    branches = place.pop("oneOf", None)
    if branches is None:
        return
    if "anyOf" in place:
        place.setdefault("allOf", []).append({"anyOf": branches})
    else:
        place["anyOf"] = branches


_READER_EDITS: Final[Mapping[str, Edit]] = {
    "SUM_TYPE_OVERLAPS": _reader_overlaps,
    "UNEVALUATED_CHANGED": _drop_keyword,
    "type": _reader_type,
    "enum": _reader_values,
    "const": _reader_values,
    **dict.fromkeys(("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"), _reader_bound),
    "multipleOf": _reader_multiple,
    "pattern": _reader_pattern,
    **dict.fromkeys(SIZE_KEYWORDS, _reader_size),
    "required": _reader_required,
    "properties": _reader_property,
    "additionalProperties": _reader_additional,
    "unevaluatedProperties": _reader_additional,
    **dict.fromkeys(ENTRY_KEYWORDS, _reader_entry),
    **dict.fromkeys(ARRAY_KEYWORDS, _reader_items),
    **dict.fromkeys(CONTAINS_KEYWORDS, _reader_contains),
    "anyOf": _reader_branch,
    "oneOf": _reader_branch,
    **dict.fromkeys(
        ("propertyNames", "uniqueItems", "not", "then", "else", "$ref", "$dynamicRef"),
        _drop_keyword,
    ),
}
"""Edits of the reader's schema by rule, or else by the violated keyword."""


# Edits of the writer's schema


def _writer_type(draft: _Draft, place: Place, finding: Finding) -> None:
    """Drop the types that the reader does not allow, or take its schema over if none is left."""
    kinds = finding.writer.kinds & finding.reader.kinds
    if finding.reader.never or not kinds:
        _replace(draft, place, finding)
    else:
        place["type"] = types_of(kinds)


def _writer_values(draft: _Draft, place: Place, finding: Finding) -> None:
    """Drop the values that the reader does not allow."""
    missing = finding.subject if isinstance(finding.subject, list) else []
    values = finding.reader.values or ()
    if finding.writer.values is not None:
        dropped = {value_key(value) for value in missing}
        left = [value for value in finding.writer.values if value_key(value) not in dropped]
        if not left:
            _replace(draft, place, finding)
            return
        values = tuple(left)
    place.pop("const", None)
    place["enum"] = list(values)


def _writer_bound(draft: _Draft, place: Place, finding: Finding) -> None:
    name = "MINIMUM" if "MINIMUM" in finding.rule else "MAXIMUM"
    numbers = finding.reader.numbers
    if numbers is not None:
        _set_bound(draft, place, name, numbers.low if name == "MINIMUM" else numbers.high)


def _writer_keyword(draft: _Draft, place: Place, finding: Finding) -> None:
    """Take a keyword of the reader over."""
    keyword = str(finding.steps[0])
    schema = finding.reader.node.schema
    if keyword in schema:
        place[keyword] = draft.value_of(finding.reader.node, keyword)


def _writer_required(draft: _Draft, place: Place, finding: Finding) -> None:
    """Require the property as well, and declare it if only the reader does."""
    names = place.setdefault("required", [])
    if finding.subject not in names:
        names.append(finding.subject)
    rules = finding.reader.objects
    node = rules.properties.get(str(finding.subject)) if rules is not None else None
    if node is not None and not finding.rule.startswith("REQUIRED_ATTRIBUTE"):
        place.setdefault("properties", {}).setdefault(finding.subject, draft.copied(node))


def _object_rules(finding: Finding) -> Objects:
    """Return the reader's constraints of objects that a finding is about."""
    own, closing = finding.reader.objects, finding.reader.closing
    if closing is not None and (own is None or own.additional is None):
        return closing
    return own or Objects()


def _writer_property(draft: _Draft, place: Place, finding: Finding) -> None:
    """Declare a property as the reader does, or remove one that the reader does not allow."""
    name = str(finding.subject)
    rules = _object_rules(finding)
    properties = place.setdefault("properties", {})
    if "ADDED" in finding.rule:
        declared = finding.reader.objects or rules
        properties[name] = draft.copied(declared.properties[name])
    elif rules.additional is not None and rules.additional.schema is not False:
        properties[name] = draft.copied(rules.additional)
    else:
        properties.pop(name, None)
        _reader_required(draft, place, finding)


def _writer_additional(draft: _Draft, place: Place, finding: Finding) -> None:
    """Close the content model as far as the reader's is."""
    rules = _object_rules(finding)
    copied: Json = False
    if rules.additional is not None and rules.additional.schema is not False:
        copied = draft.copied(rules.additional)
    if place.get("additionalProperties") == copied:
        place.pop("patternProperties", None)
    place["additionalProperties"] = copied


def _writer_entry(draft: _Draft, place: Place, finding: Finding) -> None:
    """Take an entry of patternProperties or of a dependency over."""
    keyword, name = str(finding.steps[0]), str(finding.subject)
    entry = draft.value_of(finding.reader.node, keyword, name)
    entries = place.setdefault(keyword, {})
    if isinstance(entry, list) and isinstance(entries.get(name), list):
        entry = [*entries[name], *(need for need in entry if need not in entries[name])]
    entries[name] = entry


def _writer_keywords(keywords: Sequence[str]) -> Edit:
    """Return an edit that takes several keywords of the reader over."""

    def edit(draft: _Draft, place: Place, finding: Finding) -> None:
        for keyword in keywords:
            place.pop(keyword, None)
            if keyword in finding.reader.node.schema:
                place[keyword] = draft.value_of(finding.reader.node, keyword, exact=True)

    return edit


def _writer_branch(draft: _Draft, place: Place, finding: Finding) -> None:
    """Remove the branch, value or type that the reader does not accept."""
    writer = finding.writer
    last = writer.nodes[-1] if writer.nodes else None
    if last is not None and last.document is CONSTANTS:
        values = place.get("enum")
        if "const" in last.schema and isinstance(values, list) and len(values) > 1:
            dropped = value_key(last.schema["const"])
            place["enum"] = [value for value in values if value_key(value) != dropped]
            return
        kinds = kinds_of_schema(place) - writer.kinds
        if "type" in last.schema and kinds:
            place["type"] = types_of(kinds)
            return
    elif last is not None and draft.remove_branch(last):
        return
    _replace(draft, place, finding)


def _writer_not(draft: _Draft, place: Place, finding: Finding) -> None:
    excluded = draft.value_of(finding.reader.node, "not", exact=True)
    if place.get("not") in (None, excluded):
        place["not"] = excluded
    else:
        place.setdefault("allOf", []).append({"not": excluded})


def _writer_overlaps(draft: _Draft, place: Place, finding: Finding) -> None:
    """Allow one branch only, as the reader does."""
    last = finding.writer.nodes[-1] if finding.writer.nodes else None
    if last is not None and last.path[-2:-1] == ("oneOf",):
        holder = draft.place(Node(last.document, last.path[:-2], {}))
        place = place if holder is None else holder
    place["oneOf"] = draft.value_of(finding.reader.node, "oneOf", exact=True)


def _replace(draft: _Draft, place: Place, finding: Finding) -> None:
    """Take the reader's whole subschema over, except for annotations."""
    copied = draft.copied(finding.reader.node, exact=True)
    kept = {key: value for key, value in place.items() if key in _KEPT}
    place.clear()
    place.update(kept)
    if isinstance(copied, dict):
        place.update({key: value for key, value in copied.items() if key not in _KEPT})
    elif not copied:
        place["not"] = {}


_KEPT: Final = frozenset((*ANNOTATIONS, "$schema", "$id", "id", "$defs", "definitions"))
_WRITER_EDITS: Final[Mapping[str, Edit]] = {
    "SUM_TYPE_OVERLAPS": _writer_overlaps,
    "UNEVALUATED_CHANGED": _replace,
    "type": _writer_type,
    "enum": _writer_values,
    "const": _writer_values,
    **dict.fromkeys(("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"), _writer_bound),
    **dict.fromkeys(
        ("multipleOf", "pattern", "propertyNames", "uniqueItems", *SIZE_KEYWORDS), _writer_keyword
    ),
    "required": _writer_required,
    "properties": _writer_property,
    "additionalProperties": _writer_additional,
    "unevaluatedProperties": _writer_additional,
    **dict.fromkeys(ENTRY_KEYWORDS, _writer_entry),
    **dict.fromkeys(ARRAY_KEYWORDS, _writer_keywords(ARRAY_KEYWORDS)),
    **dict.fromkeys(CONTAINS_KEYWORDS, _writer_keywords(CONTAINS_KEYWORDS)),
    "anyOf": _writer_branch,
    "oneOf": _writer_branch,
    "not": _writer_not,
    **dict.fromkeys(("then", "else"), _writer_keywords(("if", "then", "else"))),
}
"""Edits of the writer's schema by rule, or else by the violated keyword."""


def _resolve(draft: _Draft, finding: Finding, reads: bool) -> bool:
    """Edit the subschema of a finding, and return whether an edit is known."""
    if finding.causes and any([_resolve(draft, cause, reads) for cause in finding.causes]):
        return True
    keyword = str(finding.steps[0]) if finding.steps else "type"
    if reads:
        place = draft.place(finding.reader.node)
        edit = _READER_EDITS.get(finding.rule) or _READER_EDITS.get(keyword)
    else:
        place = _writer_place(draft, finding)
        edit = _WRITER_EDITS.get(finding.rule) or _WRITER_EDITS.get(keyword, _replace)
    if place is None or edit is None:
        return False
    edit(draft, place, finding)
    return True


def _writer_place(draft: _Draft, finding: Finding) -> Place | None:
    """Return the writer's subschema to edit: that of a case, or the first that is not hidden."""
    parts = finding.writer.parts
    nodes = [part.node for part in parts if part.node.document is draft.main]
    visible = [
        node
        for node in nodes
        if draft.main.draft >= 2019 or node.schema in (True, False) or "$ref" not in node.schema
    ]
    name = finding.subject
    if finding.steps[:1] == ("properties",) and "REMOVED" in finding.rule:
        visible = [
            node
            for node in visible
            if isinstance(node.schema, dict) and name in node.schema.get("properties", ())
        ]
    elif finding.writer.opened and finding.writer.nodes:
        key = finding.writer.nodes[-1].key
        start = next((index for index, node in enumerate(nodes) if node.key == key), 0)
        visible = [node for node in visible if node in nodes[start:]] or visible
    return draft.place(visible[0]) if visible else None


def types_of(kinds: frozenset[Kind]) -> Json:
    """Return the value of `type` that allows some kinds."""
    names = type_names(kinds)
    return names[0] if len(names) == 1 else names


def _literal(value: Decimal) -> Number:
    return Number(str(value), value)


def _set_bound(draft: _Draft, place: Place, name: str, bound: Bound | None) -> None:
    keyword, exclusive = BOUND_KEYWORDS[name]
    place.pop(keyword, None)
    place.pop(exclusive, None)
    if bound is None:
        return
    if bound.open and draft.main.draft > 4:
        place[exclusive] = _literal(bound.value)
        return
    place[keyword] = _literal(bound.value)
    if bound.open:
        place[exclusive] = True


def _below(value: Json, step: str | int) -> Json:
    """Return a value below another one, or None if there is none."""
    if isinstance(value, dict):
        return value.get(step) if isinstance(step, str) else None
    if isinstance(value, list) and isinstance(step, int) and step < len(value):
        return value[step]
    return None


def _without_removed(value: Json) -> Json:
    if isinstance(value, dict):
        return {key: _without_removed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_removed(item) for item in value if item is not REMOVED]
    return value
