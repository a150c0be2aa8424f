"""Avro schemas of the registry."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import ClassVar, Final

from penstock.registry.formats.avro_compatibility import compare
from penstock.registry.formats.avro_edits import edited_document, root_of
from penstock.registry.formats.avro_normal import Definitions, NormalForm
from penstock.registry.formats.avro_parser import (
    Document,
    Mend,
    Scope,
    parse_document,
    parse_text,
)
from penstock.registry.formats.json_text import shown_json, utf8_size, write_json
from penstock.registry.formats.schema import (
    REFERENCES_MAX,
    SCHEMA_BYTES_MAX,
    Dependency,
    Incompatibility,
    InvalidSchema,
    ParsedSchema,
    Policy,
    SchemaType,
)

REFERENCES_BYTES_MAX: Final = 8 * SCHEMA_BYTES_MAX
"""Size limit of the texts of all schemas that a schema refers to, in bytes of UTF-8."""


def parse_avro(text: str, dependencies: Sequence[Dependency]) -> AvroSchema:
    """Return the schema of a text.

    Each dependency precedes those that refer to it.

    Raises:
        InvalidSchema: the text, or that of a dependency, is not a valid Avro schema.
    """
    scope = _scope_of(dependencies)
    return AvroSchema(parse_text(text, scope), scope)


def _scope_of(dependencies: Sequence[Dependency]) -> Scope:
    if len(dependencies) > REFERENCES_MAX:
        raise InvalidSchema(
            f"The schema refers to {len(dependencies)} schemas, the limit is {REFERENCES_MAX}."
        )
    size = sum(utf8_size(dependency.text) for dependency in dependencies)
    if size > REFERENCES_BYTES_MAX:
        raise InvalidSchema(
            f"The schema refers to schemas of {size} bytes, the limit is {REFERENCES_BYTES_MAX}."
        )
    scope = Scope()
    texts: set[str] = set()
    for dependency in dependencies:
        if dependency.text not in texts:
            texts.add(dependency.text)
            try:
                scope = parse_text(dependency.text, scope).scope
            except InvalidSchema as error:
                raise InvalidSchema(
                    f"In reference {shown_json(dependency.name)}: {error}"
                ) from error
    return scope


class AvroSchema(ParsedSchema):
    """Avro schema: a document, and the types that it refers to."""

    schema_type: ClassVar[SchemaType] = "AVRO"

    def __init__(self, document: Document, references: Scope) -> None:
        self._document = document
        self._references = references
        self.text = write_json(document.holder[0])
        self.identity = self._normal_text(sort_aliases=False)

    def _normal_text(self, *, sort_aliases: bool) -> str:
        form = NormalForm(self._references.named, sort_aliases=sort_aliases)
        return write_json(form.document(self._document.root))

    def normalized(self) -> AvroSchema:
        text = self._normal_text(sort_aliases=True)
        return AvroSchema(parse_text(text, self._references), self._references)

    def check_reads(
        self, writer: AvroSchema, policy: Policy = "STRICT"
    ) -> Sequence[Incompatibility]:
        findings = compare(root_of(self._document), root_of(writer._document))
        return [finding.incompatibility for finding in findings]

    def edited(
        self,
        other: AvroSchema,
        problems: Sequence[Incompatibility],
        *,
        reads: bool,
        policy: Policy = "STRICT",
    ) -> AvroSchema | None:
        document = edited_document(
            self._document, self._references, other._document, problems, reads=reads
        )
        return None if document is None else AvroSchema(document, self._references)

    def formatted(self, name: str) -> str:
        if not name:
            return self.text
        if name != "resolved":
            raise InvalidSchema(
                f"The output format {shown_json(name)} does not exist for Avro schemas. Use"
                " resolved."
            )
        document = copy.deepcopy(self._document.holder[0])
        mend = Mend(definitions=Definitions(self._references.named))
        return write_json(parse_document(document, Scope(), mend).holder[0])
