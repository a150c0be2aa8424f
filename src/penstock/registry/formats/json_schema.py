"""JSON Schema in the registry: text, identity, normal form, and references bundled into one text.

The identity of a schema is its text without spaces. The order of keys counts, as in Confluent's
registry, so that ids agree after a migration and readers get the order back that they wrote. The
normal form sorts what has no order: keys, and the lists of `required`, `enum` and `type`. Branches
of `allOf`, `anyOf` and `oneOf` keep their order, because JSON pointers address them by number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar
from urllib.parse import quote

from penstock.registry.formats.json_compatibility import Comparison
from penstock.registry.formats.json_document import (
    Document,
    Json,
    Schemas,
    load,
    parse_json,
    pointer,
)
from penstock.registry.formats.json_edits import edited_document
from penstock.registry.formats.json_text import write_json
from penstock.registry.formats.schema import (
    Dependency,
    Incompatibility,
    InvalidSchema,
    ParsedSchema,
    Policy,
    SchemaType,
)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class JsonSchema(ParsedSchema):
    """JSON schema with its references."""

    schema_type: ClassVar[SchemaType] = "JSON"
    text: str
    identity: str
    dependencies: Sequence[Dependency]
    schemas: Schemas

    def normalized(self) -> JsonSchema:
        """Return the schema with sorted keys, and sorted lists whose order has no meaning."""
        normal = write_json(_normal(self.schemas.root.schema, self.schemas))
        return self if normal == self.text else parse_json_schema(normal, self.dependencies)

    def check_reads(
        self, writer: JsonSchema, policy: Policy = "STRICT"
    ) -> Sequence[Incompatibility]:
        """Return why documents of `writer` may be invalid for this schema; empty if none is."""
        if self.identity == writer.identity and self.dependencies == writer.dependencies:
            return []
        comparison = Comparison(self.schemas, writer.schemas, policy)
        return [finding.public() for finding in comparison.findings()]

    def edited(
        self,
        other: JsonSchema,
        problems: Sequence[Incompatibility],
        *,
        reads: bool,
        policy: Policy = "STRICT",
    ) -> JsonSchema | None:
        """Return a small edit of this schema that resolves `problems`, or some of them."""
        reader, writer = (self, other) if reads else (other, self)
        comparison = Comparison(reader.schemas, writer.schemas, policy)
        wanted = {(problem.rule, problem.path) for problem in problems}
        findings = [
            finding for finding in comparison.findings() if (finding.rule, finding.path) in wanted
        ]
        try:
            text = write_json(edited_document(self.schemas, other.schemas, findings, reads=reads))
            if text == self.text:
                return None
            return parse_json_schema(text, self.dependencies)
        except InvalidSchema:
            return None

    def formatted(self, name: str) -> str:
        """Return the text, or with the name `resolved` a text that refers to no other schema."""
        if name == "":
            return self.text
        if name == "resolved":
            return write_json(_bundle(self.schemas)) if self.dependencies else self.text
        raise InvalidSchema(
            f"format {name!r} does not exist for JSON schemas; use 'resolved', or no format"
        )


def parse_json_schema(text: str, dependencies: Sequence[Dependency]) -> JsonSchema:
    """Parse a JSON schema of draft 4, 6, 7, 2019-09 or 2020-12; draft 7 without `$schema`.

    A dependency precedes those that refer to it. Its name is the part of a `$ref` before the `#`.

    Raises:
        InvalidSchema: the text is not such a schema, is too large, or a `$ref` has no target.
    """
    value = parse_json(text)
    minified = write_json(value)
    schemas = load(minified, value, dependencies)
    return JsonSchema(
        text=minified, identity=minified, dependencies=tuple(dependencies), schemas=schemas
    )


UNORDERED = ("required", "enum", "type")
"""Keywords whose lists are sets."""


def _normal(value: Json, schemas: Schemas) -> Json:
    if isinstance(value, list):
        return [_normal(item, schemas) for item in value]
    if not isinstance(value, dict):
        return value
    made = {key: _normal(value[key], schemas) for key in sorted(value)}
    if id(value) not in schemas.nodes:
        return made
    for keyword in UNORDERED:
        if isinstance(made.get(keyword), list):
            made[keyword] = _sorted(made[keyword])
    for keyword in ("dependentRequired", "dependencies"):
        entries = made.get(keyword)
        if isinstance(entries, dict):
            made[keyword] = {
                name: _sorted(names) if isinstance(names, list) else names
                for name, names in entries.items()
            }
    return made


def _sorted(values: Iterable[Json]) -> list[Json]:
    return sorted(values, key=write_json)


def _bundle(schemas: Schemas) -> Json:
    """Return the main document with all documents that it refers to among its definitions."""
    main, *others = schemas.documents
    strange = [document.name for document in others if document.draft != main.draft]
    if strange or schemas.dynamic:
        raise InvalidSchema(
            "the schema cannot be resolved into one text, because"
            + (f" reference {strange[0]!r} is of another draft" if strange else "")
            + (" it has dynamic references with several targets" if not strange else "")
        )
    holder = "$defs" if main.draft >= 2019 else "definitions"
    if not isinstance(main.value, dict):
        return main.value
    taken = dict(main.value.get(holder, {}))
    places: dict[int, str] = {id(main): ""}
    for document in others:
        name = document.name
        while name in taken:
            name += "_"
        taken[name] = document
        places[id(document)] = pointer((holder, name))
    bundle = _Bundle(schemas, main, places)
    made: dict[str, Json] = bundle.copied(main.value, main)
    made[holder] = {
        **made.get(holder, {}),
        **{
            name: bundle.copied(document.value, document)
            for name, document in taken.items()
            if isinstance(document, Document)
        },
    }
    return made


class _Bundle:
    """Copies of documents whose references point into the bundle."""

    def __init__(self, schemas: Schemas, main: Document, places: Mapping[int, str]) -> None:
        self._schemas = schemas
        self._main = main
        self._places = places
        inner = any(
            node.path and node.document is main and isinstance(node.schema.get("$id"), str)
            for node in schemas.nodes.values()
        )
        self._base = main.value.get("$id", "").rstrip("#") if inner else ""

    def copied(self, value: Json, document: Document) -> Json:
        """Return a copy of a value of a document."""
        if isinstance(value, list):
            return [self.copied(item, document) for item in value]
        if not isinstance(value, dict):
            return value
        made = {key: self.copied(item, document) for key, item in value.items()}
        if id(value) not in self._schemas.nodes:
            return made
        if document is not self._main:
            for keyword in ("$schema", "$id", "id", "$anchor", "$dynamicAnchor"):
                made.pop(keyword, None)
        targets = self._schemas.targets.get(id(value), ())
        keywords = [key for key in ("$ref", "$recursiveRef", "$dynamicRef") if key in value]
        for keyword, target in zip(keywords, targets, strict=True):
            if document is self._main and target.document is self._main:
                continue
            made.pop(keyword)
            place = self._places[id(target.document)] + pointer(target.path)
            reference = f"{self._base}#{quote(place, safe=SAFE)}"
            if "$ref" in made:
                made.setdefault("allOf", []).append({"$ref": reference})
            else:
                made["$ref"] = reference
        return made


SAFE = "/~!$&'()*+,;=:@?-._"
"""Characters that a URI's fragment may have."""
