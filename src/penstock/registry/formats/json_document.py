"""JSON Schema documents: their text, their subschemas and the targets of their references.

A document is parsed into plain lists and dictionaries, except that a number keeps its spelling.
Every subschema is a `Node` with a JSON pointer. References are resolved once, here, among the
document and the documents that it refers to. Nothing is read from files or from the network.

Sources: the JSON Schema specifications of drafts 4, 6, 7, 2019-09 and 2020-12; RFC 6901.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Literal
from urllib.parse import urldefrag

import jsonschema_rs
from referencing import Registry
from referencing.exceptions import CannotDetermineSpecification, NoSuchAnchor, Unresolvable
from referencing.jsonschema import (
    DRAFT4,
    DRAFT6,
    DRAFT7,
    DRAFT201909,
    DRAFT202012,
    UnknownDialect,
)

from penstock.registry.formats.json_text import Number, read_json, shown, shown_json
from penstock.registry.formats.schema import (
    DEPTH_MAX,
    TYPES_MAX,
    Dependency,
    InvalidSchema,
)

Draft = Literal[4, 6, 7, 2019, 2020]
DEFAULT_DRAFT: Final[Draft] = 7
"""Draft of a schema without `$schema`."""
METASCHEMAS: Final[Mapping[Draft, str]] = {
    4: "http://json-schema.org/draft-04/schema",
    6: "http://json-schema.org/draft-06/schema",
    7: "http://json-schema.org/draft-07/schema",
    2019: "https://json-schema.org/draft/2019-09/schema",
    2020: "https://json-schema.org/draft/2020-12/schema",
}
JSON_DEPTH_MAX: Final = 3 * DEPTH_MAX
"""Deepest nesting of JSON arrays and objects in a schema's text."""
PLACE_MAX: Final = 300
"""Longest place or reason in a message, in characters."""
REGEX_SIZE_MAX: Final = 1 << 18
"""Size limit of a compiled regular expression, in bytes."""
REGEX_OPTIONS: Final = jsonschema_rs.RegexOptions(
    size_limit=REGEX_SIZE_MAX, dfa_size_limit=REGEX_SIZE_MAX
)
"""Engine that matches in linear time. It has no look-around and no back-references."""

Children = Literal["one", "list", "map", "one or list", "map or names"]
ALL: Final[tuple[Draft, Draft]] = (4, 2020)
APPLICATORS: Final[Mapping[str, tuple[Children, Draft, Draft]]] = {
    "additionalItems": ("one", 4, 2019),
    "additionalProperties": ("one", *ALL),
    "allOf": ("list", *ALL),
    "anyOf": ("list", *ALL),
    "contains": ("one", 6, 2020),
    "definitions": ("map", *ALL),
    "$defs": ("map", *ALL),
    "dependencies": ("map or names", *ALL),
    "dependentSchemas": ("map", 2019, 2020),
    "else": ("one", 7, 2020),
    "if": ("one", 7, 2020),
    "items": ("one or list", *ALL),
    "not": ("one", *ALL),
    "oneOf": ("list", *ALL),
    "patternProperties": ("map", *ALL),
    "prefixItems": ("list", 2020, 2020),
    "properties": ("map", *ALL),
    "propertyNames": ("one", 6, 2020),
    "then": ("one", 7, 2020),
    "unevaluatedItems": ("one", 2019, 2020),
    "unevaluatedProperties": ("one", 2019, 2020),
}
"""Keywords that hold subschemas, with the first and the last draft that have them.

`$defs` is not a keyword before 2019-09, but some generators write it into draft 7.
"""
IN_PLACE: Final = frozenset(
    ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies")
)
"""Keywords whose subschemas apply to the same value as the schema that holds them."""

_SPECIFICATIONS: Final[Mapping[Draft, Any]] = {
    4: DRAFT4, 6: DRAFT6, 7: DRAFT7, 2019: DRAFT201909, 2020: DRAFT202012,
}  # fmt: skip
_VALIDATORS: Final[Mapping[Draft, type[jsonschema_rs.Validator]]] = {
    4: jsonschema_rs.Draft4Validator,
    6: jsonschema_rs.Draft6Validator,
    7: jsonschema_rs.Draft7Validator,
    2019: jsonschema_rs.Draft201909Validator,
    2020: jsonschema_rs.Draft202012Validator,
}

Json = Any
"""JSON value: None, bool, str, `Number`, list or dict."""


def parse_json(text: str) -> Json:
    """Return the JSON value of a text, with numbers as `Number`.

    Raises:
        InvalidSchema: the text is not JSON, or exceeds a limit of `read_json`.
    """
    return read_json(text, depth_max=JSON_DEPTH_MAX, exact=True)


def pointer(path: Sequence[str | int]) -> str:
    """Return the JSON pointer of a path; the empty text is the whole document."""
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)


def value_at(value: Json, steps: Sequence[str | int]) -> Json:
    """Return the value that a path leads to."""
    for step in steps:
        value = value[step]
    return value


@dataclass(frozen=True, slots=True, eq=False)
class Document:
    """Schema document with its draft. The main document has the empty name."""

    name: str
    draft: Draft
    value: Json


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """Subschema: a boolean or an object, with its place in a document."""

    document: Document
    path: tuple[str | int, ...]
    schema: Json

    @property
    def key(self) -> object:
        """Identity of the subschema."""
        if isinstance(self.schema, dict):
            return id(self.schema)
        return (id(self.document), self.path)

    @property
    def where(self) -> str:
        """JSON pointer of the subschema, preceded by the document's name if it is not the main."""
        own = pointer(self.path)
        return f"{self.document.name}#{own}" if self.document.name else own

    @property
    def place(self) -> str:
        """The pointer for an error message, shortened to `PLACE_MAX` characters."""
        return self.where[:PLACE_MAX] or "the root"


@dataclass(frozen=True, slots=True, eq=False)
class Schemas:
    """Subschemas of a document and of the documents that it refers to.

    Attributes:
        root: the main document's schema.
        documents: the main document and its dependencies.
        nodes: subschemas that are objects, by the identity of the object.
        targets: targets of references, by the identity of the object that has the reference.
        external: references to a draft's metaschema, by the identity of the referring object.
        dynamic: identities of objects with a reference whose target depends on the evaluation.
    """

    root: Node
    documents: Sequence[Document]
    nodes: Mapping[int, Node]
    targets: Mapping[int, tuple[Node, ...]]
    external: Mapping[int, str]
    dynamic: frozenset[int]

    def node(self, parent: Node, *steps: str | int) -> Node:
        """Return a subschema below another one."""
        value = value_at(parent.schema, steps)
        known = self.nodes.get(id(value)) if isinstance(value, dict) else None
        return known or Node(parent.document, (*parent.path, *steps), value)


_BY_DRAFT: Final[Mapping[Draft, Mapping[str, Children]]] = {
    draft: {
        keyword: kind
        for keyword, (kind, first, last) in APPLICATORS.items()
        if first <= draft <= last
    }
    for draft in METASCHEMAS
}


def has_keyword(draft: Draft, keyword: str) -> bool:
    """Whether a keyword with subschemas exists in a draft."""
    return keyword in _BY_DRAFT[draft]


def children(node: Node) -> Iterator[tuple[str | int, ...]]:
    """Yield the steps from a subschema to each subschema that it holds."""
    schema, draft = node.schema, node.document.draft
    if not isinstance(schema, dict):
        return
    hidden = "$ref" in schema and draft <= 7
    kinds = _BY_DRAFT[draft]
    for keyword in schema.keys() & kinds.keys():
        if not hidden or keyword in ("definitions", "$defs"):
            yield from _children(keyword, kinds[keyword], schema[keyword])


def load(text: str, value: Json, dependencies: Sequence[Dependency]) -> Schemas:
    """Return the subschemas of a document, with all references resolved.

    Args:
        text: the document.
        value: its JSON value.

    Raises:
        InvalidSchema: a document does not conform to its draft, or a reference has no target.
    """
    documents = [_document("", value)]
    for dependency in dependencies:
        try:
            documents.append(_document(dependency.name, parse_json(dependency.text)))
        except InvalidSchema as error:
            raise InvalidSchema(f"reference {shown(dependency.name)!r}: {error}") from None
    texts = [text, *(dependency.text for dependency in dependencies)]
    identified = any(mark in found for found in texts for mark in ('id"', 'nchor"', "\\"))
    return _Loader(documents, identified=identified).load()


def _children(keyword: str, kind: Children, value: Json) -> Iterator[tuple[str | int, ...]]:
    if isinstance(value, list):
        if kind in ("list", "one or list"):
            yield from ((keyword, index) for index in range(len(value)))
    elif kind in ("map", "map or names"):
        if isinstance(value, dict):
            for name, item in value.items():
                if not isinstance(item, list):
                    yield (keyword, name)
    else:
        yield (keyword,)


def plain(value: Json) -> Json:
    """Return a value with Python's numbers, for the validator."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, Number):
        number = value.value
        return int(number) if value.literal.lstrip("-").isdecimal() else number
    return value


def _document(name: str, value: Json) -> Document:
    if not isinstance(value, dict | bool):
        raise InvalidSchema("a JSON schema must be an object or a boolean")
    draft = _draft(value.get("$schema")) if isinstance(value, dict) else DEFAULT_DRAFT
    _check_metaschema(draft, value)
    return Document(name, draft, value)


def _draft(uri: Json) -> Draft:
    if uri is None:
        return DEFAULT_DRAFT
    if isinstance(uri, str):
        bare = re.sub("^https?:", "", uri).rstrip("#").rstrip("/")
        for draft, known in METASCHEMAS.items():
            if bare == known.partition(":")[2]:
                return draft
    allowed = ", ".join(METASCHEMAS.values())
    raise InvalidSchema(
        f"$schema {shown_json(uri)} is not supported; use one of {allowed}, or remove it"
    )


@cache
def _metaschema(draft: Draft) -> jsonschema_rs.Validator:
    reference = {"$ref": METASCHEMAS[draft] + ("#" if draft <= 7 else "")}
    return _VALIDATORS[draft](reference, validate_formats=False, offline=True)


def _check_metaschema(draft: Draft, value: Json) -> None:
    if isinstance(value, bool):
        return
    instance = plain(value)
    instance.pop("$schema", None)
    try:
        _metaschema(draft).validate(instance)
    except jsonschema_rs.ValidationError as error:
        where = pointer(error.instance_path)[:PLACE_MAX] or "its root"
        raise InvalidSchema(
            f"the schema does not conform to draft {_draft_name(draft)} at {where}:"
            f" {error.message[:PLACE_MAX]}"
        ) from None
    except (jsonschema_rs.ReferencingError, ValueError) as error:
        raise InvalidSchema(f"the schema cannot be checked: {str(error)[:PLACE_MAX]}") from None


def _draft_name(draft: Draft) -> str:
    return {2019: "2019-09", 2020: "2020-12"}.get(draft, str(draft))


@cache
def _ecma_syntax() -> jsonschema_rs.Validator:
    return jsonschema_rs.Draft7Validator({"format": "regex"}, validate_formats=True, offline=True)


def _check_pattern(pattern: str, node: Node) -> None:
    """Reject a malformed regular expression. ECMA's syntax is checked without compiling it."""
    if _ecma_syntax().is_valid(pattern):
        return
    if compile_pattern(pattern) is None:
        raise InvalidSchema(
            f"pattern {pattern[:100]!a} at {node.place} is not a regular expression of ECMA-262"
        )


def compile_pattern(pattern: str) -> jsonschema_rs.Validator | None:
    """Return a validator of strings that match, or None if the linear engine has no such pattern.

    Compiling is bounded by `REGEX_SIZE_MAX` and takes at most a few milliseconds.
    """
    try:
        return jsonschema_rs.Draft202012Validator(
            {"pattern": pattern}, pattern_options=REGEX_OPTIONS, offline=True
        )
    except ValueError:
        return None


class _Loader:
    """Walk over all documents that collects subschemas, then resolves their references."""

    def __init__(self, documents: Sequence[Document], *, identified: bool) -> None:
        self._documents = documents
        self._identified = identified  # whether a subschema may have an identifier or an anchor
        self._nodes: dict[int, Node] = {}
        self._targets: dict[int, tuple[Node, ...]] = {}
        self._pending: list[tuple[Node, str, Any]] = []
        self._resolved: dict[tuple[int, str], tuple[Json, Any]] = {}
        self._dynamic: dict[str, list[int]] = {}
        self._anchors: dict[str, int] = {}
        self._external: dict[int, str] = {}
        self._patterns: set[str] = set()
        self._places: dict[int, tuple[Document, int, str | int]] = {}
        self._count = 0

    def load(self) -> Schemas:
        roots = [Node(document, (), document.value) for document in self._documents]
        try:
            registry = self._registry()
            for root in roots:
                name = root.document.name
                self._walk(root, registry.resolver(name))
            self._resolve(registry)
        except (UnknownDialect, CannotDetermineSpecification) as error:
            raise InvalidSchema(f"an inner $schema is not supported: {error}") from None
        self._refuse_endless()
        unclear = (
            identity
            for name, identities in self._dynamic.items()
            if self._anchors.get(name, 0) > 1
            for identity in identities
        )
        return Schemas(
            root=roots[0],
            documents=self._documents,
            nodes=self._nodes,
            targets=self._targets,
            external=self._external,
            dynamic=frozenset(unclear),
        )

    def _registry(self) -> Any:
        registry: Any = Registry()
        resources = [
            (doc.name, _SPECIFICATIONS[doc.draft].create_resource(doc.value))
            for doc in self._documents
        ]
        registry = registry.with_resources(resources)
        return registry.crawl() if self._identified else registry

    def _walk(self, start: Node, resolver: Any) -> None:
        waiting = [(start, resolver, 0)]
        while waiting:
            node, resolver, depth = waiting.pop()
            schema = node.schema
            self._count += 1
            if not isinstance(schema, dict) or id(schema) in self._nodes:
                continue
            self._nodes[id(schema)] = node
            self._check_size(node, depth)
            if "$id" in schema or "id" in schema:
                specification = _SPECIFICATIONS[node.document.draft]
                resolver = resolver.in_subresource(specification.create_resource(schema))
            self._note(node, resolver)
            for steps in children(node):
                below = Node(node.document, (*node.path, *steps), value_at(schema, steps))
                waiting.append((below, resolver, depth + 1))

    def _check_size(self, node: Node, depth: int) -> None:
        schema = node.schema
        for keyword in ("enum", "required", "type"):
            values = schema.get(keyword)
            self._count += len(values) if isinstance(values, list) else 0
        if self._count > TYPES_MAX:
            raise InvalidSchema(
                f"the schema has more than {TYPES_MAX} subschemas, enum values and required"
                " properties, together with its references. Split it up."
            )
        if depth > DEPTH_MAX:
            raise InvalidSchema(
                f"the schema at {node.place} nests deeper than {DEPTH_MAX} subschemas. Move inner"
                " schemas to definitions and refer to them."
            )

    def _note(self, node: Node, resolver: Any) -> None:
        """Record the references, anchors and patterns of a subschema."""
        schema, draft = node.schema, node.document.draft
        if node.path and _draft(schema.get("$schema", METASCHEMAS[draft])) != draft:
            raise InvalidSchema(
                f"$schema at {node.place} differs from the document's draft"
                f" {_draft_name(draft)}. Move the inner schema to a document of its own."
            )
        for keyword in ("$ref", "$recursiveRef", "$dynamicRef"):
            reference = schema.get(keyword)
            if not isinstance(reference, str) or not _has_reference(keyword, draft):
                continue
            self._pending.append((node, reference, resolver))
            if keyword != "$ref":
                name = "" if keyword == "$recursiveRef" else urldefrag(reference)[1]
                self._dynamic.setdefault(name, []).append(id(schema))
        if schema.get("$recursiveAnchor") is True:
            self._anchors[""] = self._anchors.get("", 0) + 1
        name = schema.get("$dynamicAnchor")
        if isinstance(name, str):
            self._anchors[name] = self._anchors.get(name, 0) + 1
        patterns = [schema["pattern"]] if isinstance(schema.get("pattern"), str) else []
        for pattern in (*patterns, *schema.get("patternProperties", ())):
            if pattern not in self._patterns:
                self._patterns.add(pattern)
                _check_pattern(pattern, node)

    def _resolve(self, registry: Any) -> None:
        for node, reference, resolver in self._pending:  # grows while targets are walked
            if _is_metaschema(reference):
                self._external[id(node.schema)] = reference
                continue
            contents, within = self._look_up(node, reference, resolver, registry)
            target = self._nodes.get(id(contents)) if isinstance(contents, dict) else None
            if target is None:
                target = self._place(node, contents)
                self._walk(target, within)
            known = self._targets.get(id(node.schema), ())
            self._targets[id(node.schema)] = (*known, target)

    def _look_up(
        self, node: Node, reference: str, resolver: Any, registry: Any
    ) -> tuple[Json, Any]:
        key = (id(resolver), reference)
        if key in self._resolved:
            return self._resolved[key]
        found = self._try(resolver, reference) or self._try(registry.resolver(), reference)
        if found is None:
            raise InvalidSchema(
                f"$ref {reference[:200]!a} at {node.place} has no target. Define it,"
                " or add a reference whose name is the part of the $ref before '#'."
            )
        if not isinstance(found.contents, dict | bool):
            raise InvalidSchema(
                f"$ref {reference[:200]!a} at {node.place} refers to a value that is not a schema"
            )
        self._resolved[key] = (found.contents, found.resolver)
        return self._resolved[key]

    @staticmethod
    def _try(resolver: Any, reference: str) -> Any:
        try:
            return resolver.lookup(reference)
        except (Unresolvable, NoSuchAnchor, ValueError, TypeError, AttributeError, LookupError):
            return None

    def _place(self, referrer: Node, contents: Json) -> Node:
        """Return the node of a target that the walk over keywords has not reached."""
        if not self._places:
            for document in self._documents:
                self._index(document)
        if id(contents) not in self._places:
            return Node(referrer.document, (*referrer.path, "$ref"), contents)
        path: list[str | int] = []
        document, parent, step = self._places[id(contents)]
        while parent:
            path.append(step)
            _, parent, step = self._places[parent]
        return Node(document, tuple(reversed(path)), contents)

    def _index(self, document: Document) -> None:
        waiting: list[tuple[Json, int, str | int]] = [(document.value, 0, "")]
        while waiting:
            value, parent, step = waiting.pop()
            if isinstance(value, dict):
                items: Iterator[tuple[str | int, Json]] = iter(value.items())
            elif isinstance(value, list):
                items = iter(enumerate(value))
            else:
                continue
            self._places[id(value)] = (document, parent, step)
            waiting.extend((item, id(value), key) for key, item in items)

    def _refuse_endless(self) -> None:
        """Reject subschemas that apply themselves to the same value, without end."""
        done: set[int] = set()
        for start in self._nodes.values():
            if id(start.schema) in done:
                continue
            open_now = {id(start.schema)}
            trail = [(start, self._in_place(start))]
            while trail:
                node, following = trail[-1]
                below = next(following, None)
                if below is None:
                    trail.pop()
                    open_now.discard(id(node.schema))
                    done.add(id(node.schema))
                elif id(below.schema) in open_now:
                    raise InvalidSchema(
                        f"the schema at {below.place} refers to itself for the same"
                        " value, so that validation never ends. Put a property or an item between."
                    )
                elif id(below.schema) not in done:
                    open_now.add(id(below.schema))
                    trail.append((below, self._in_place(below)))

    def _in_place(self, node: Node) -> Iterator[Node]:
        """Yield the subschemas that apply to the same value as a subschema."""
        schemas = [target.schema for target in self._targets.get(id(node.schema), ())]
        schemas += [
            value_at(node.schema, steps) for steps in children(node) if steps[0] in IN_PLACE
        ]
        for schema in schemas:
            if isinstance(schema, dict):
                yield self._nodes[id(schema)]


def _has_reference(keyword: str, draft: Draft) -> bool:
    return keyword == "$ref" or draft == {"$recursiveRef": 2019, "$dynamicRef": 2020}[keyword]


def _is_metaschema(reference: str) -> bool:
    return reference.rstrip("#") in METASCHEMAS.values()
