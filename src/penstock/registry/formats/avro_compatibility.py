"""Rules by which a reader's Avro schema decodes the data of a writer's schema.

The rules and their names are those of `SchemaCompatibility` in Avro's Java library:

| rule                               | violated if                                              |
|------------------------------------|----------------------------------------------------------|
| TYPE_MISMATCH                      | the types differ and no promotion exists                 |
| NAME_MISMATCH                      | simple names differ and the reader has no alias          |
| FIXED_SIZE_MISMATCH                | the sizes differ                                         |
| MISSING_ENUM_SYMBOLS               | the reader lacks symbols and has no default              |
| READER_FIELD_MISSING_DEFAULT_VALUE | the writer lacks the field, and it has no default        |
| MISSING_UNION_BRANCH               | no branch of the reader's union decodes the type         |
| AMBIGUOUS_FIELD_ALIAS              | a reader's field matches several fields of the writer    |

The Java library fails where the last rule is violated. It ignores logical types, and so does this
module: a decimal of another scale is compatible.

Each pair of types is compared once, also if the types are recursive. A path is a JSON pointer in
the reader's schema. A writer's branch that a reader without a union cannot decode adds the position
of the branch.

Source: the Avro 1.12 specification, "Schema Resolution".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from penstock.registry.formats.avro_types import (
    Array,
    Enum,
    Field,
    Fixed,
    Map,
    Named,
    Node,
    Record,
    Union,
    describe,
    simple_name,
)
from penstock.registry.formats.json_text import shown
from penstock.registry.formats.schema import (
    COMPARISONS_MAX,
    DEPTH_MAX,
    PROBLEMS_MAX,
    Incompatibility,
    InvalidSchema,
)

READ_AS: Final[Mapping[str, frozenset[str]]] = {
    "int": frozenset(("int", "long", "float", "double")),
    "long": frozenset(("long", "float", "double")),
    "float": frozenset(("float", "double")),
    "string": frozenset(("string", "bytes")),
    "bytes": frozenset(("bytes", "string")),
} | {kind: frozenset((kind,)) for kind in ("null", "boolean", "double")}
"""Primitive types of a reader that decode a writer's primitive type."""
PAIRS_DEPTH_MAX: Final = 2 * DEPTH_MAX
"""Deepest nesting of compared pairs. It exceeds that of types if recursive types differ."""


class Slot(NamedTuple):
    """Place of a type in a JSON document: `holder[key]`, and its field if it is a field's type."""

    holder: Any
    key: str | int
    field: Field | None = None


class Side(NamedTuple):
    """Reader's or writer's type of a compared pair; `union` is the union that it is a branch of."""

    node: Node
    slot: Slot
    union: Side | None = None


class Pair(NamedTuple):
    """Compared types, and the path of the reader's."""

    reader: Side
    writer: Side
    path: str


class Finding(NamedTuple):
    """Violated rule with both sides.

    Attributes:
        field: the reader's field if the rule is about a field.
        nearest: comparison with the most similar branch of the reader's union.
    """

    rule: str
    path: str
    reader: Side
    writer: Side
    field: Field | None = None
    nearest: Comparison | None = None

    @property
    def effective_rule(self) -> str:
        """Rule that selects the message and the edits: a field that mismatches lacks a default."""
        if self.rule == "TYPE_MISMATCH" and self.field is not None:
            return "READER_FIELD_MISSING_DEFAULT_VALUE"
        return self.rule

    @property
    def message(self) -> str:
        return _MESSAGES[self.effective_rule](self)

    @property
    def incompatibility(self) -> Incompatibility:
        return Incompatibility(rule=self.rule, path=self.path, message=self.message)


@dataclass(slots=True, eq=False)
class Comparison:
    """Result of the comparison of a pair: violated rules, and comparisons of contained pairs."""

    findings: list[Finding] = field(default_factory=list)
    parts: list[Comparison] = field(default_factory=list)
    compatible: bool = True
    complete: bool = False

    @property
    def accepted(self) -> bool:
        """Whether no violation is known, or the comparison is still in progress."""
        return self.compatible or not self.complete

    def report(
        self,
        pair: Pair,
        rule: str,
        place: str = "",
        part: Field | None = None,
        nearest: Comparison | None = None,
    ) -> None:
        """Add a violation at a place below the pair's path."""
        self.compatible = False
        if len(self.findings) < PROBLEMS_MAX:
            path = f"{pair.path}{place}" or "/"
            finding = Finding(rule, path, pair.reader, pair.writer, part, nearest)
            self.findings.append(finding)

    def include(self, part: Comparison) -> None:
        if part.compatible and part.complete:
            return
        self.parts.append(part)
        self.compatible = self.compatible and part.accepted

    def all_findings(self) -> list[Finding]:
        """Return the findings of this and of contained pairs, at most `PROBLEMS_MAX`."""
        found: dict[tuple[str, str], Finding] = {}
        pending, seen = [self], {self}
        while pending and len(found) < PROBLEMS_MAX:
            comparison = pending.pop()
            for finding in comparison.findings:
                found.setdefault((finding.rule, finding.path), finding)
            for part in reversed(comparison.parts):
                if not part.compatible and part not in seen:
                    seen.add(part)
                    pending.append(part)
        return list(found.values())[:PROBLEMS_MAX]


_COMPATIBLE: Final = Comparison(complete=True)


def compare(reader: Side, writer: Side) -> list[Finding]:
    """Return why data of the writer's type cannot be decoded with the reader's type.

    Raises:
        InvalidSchema: too many pairs of types, or pairs that nest too deep.
    """
    return _Checker().result(Pair(reader, writer, "")).all_findings()


def branches_of(side: Side) -> Iterator[Side]:
    """Yield the branches of a union; for another type, the side itself."""
    if isinstance(side.node, Union):
        for position, branch in enumerate(side.node.branches):
            yield Side(branch, Slot(side.node.source, position), side)
    else:
        yield side


def side_of_field(part: Field) -> Side:
    return Side(part.node, Slot(part.source, "type", part))


class _Branches(NamedTuple):
    """Branches of a union with their positions, by kind, kind and simple name, kind and alias."""

    nodes: frozenset[Node]
    by_key: Mapping[str, Sequence[tuple[int, Side]]]


class _Checker:
    """Comparison of two schemas, with the results of the compared pairs of types."""

    def __init__(self) -> None:
        self._results: dict[tuple[Node, Node], Comparison] = {}
        self._branches: dict[Node, _Branches] = {}
        self._open: list[tuple[Node, Node]] = []
        self._spent = 0

    def result(self, pair: Pair) -> Comparison:
        """Return the comparison of a pair; one in progress has no findings yet."""
        key = (pair.reader.node, pair.writer.node)
        result = self._results.get(key)
        if result is not None:
            return result
        self._spend(1)
        if key[0].kind in READ_AS.get(key[1].kind, ()):
            return _COMPATIBLE
        result = self._results[key] = Comparison()
        self._open.append(key)
        self._compare(pair, result)
        self._open.pop()
        result.complete = True
        return result

    def _spend(self, comparisons: int) -> None:
        """Count comparisons of types, of symbols and of fields that the writer lacks."""
        self._spent += comparisons
        if self._spent > COMPARISONS_MAX or len(self._open) > PAIRS_DEPTH_MAX:
            raise InvalidSchema(
                f"The schemas are too complex to compare: more than {COMPARISONS_MAX} pairs of"
                f" types, or pairs nested deeper than {PAIRS_DEPTH_MAX} levels."
            )

    def _compare(self, pair: Pair, result: Comparison) -> None:
        reader, writer, path = pair
        readers_union = isinstance(reader.node, Union)
        if isinstance(writer.node, Union):
            for position, branch in enumerate(branches_of(writer)):
                part = Pair(reader, branch, f"{path}/{position}")
                if readers_union:
                    self._find_branch(part, path, result)
                else:
                    result.include(self.result(part))
        elif readers_union:
            self._find_branch(pair, path, result)
        elif writer.node.kind in READ_AS or reader.node.kind != writer.node.kind:
            result.report(pair, "TYPE_MISMATCH")
        else:
            self._compare_alike(pair, result)

    def _compare_alike(self, pair: Pair, result: Comparison) -> None:
        """Compare two types of the same kind that are neither primitive nor unions."""
        match pair.reader.node, pair.writer.node:
            case Array(item=ours, source=source), Array(item=theirs, source=others):
                sides = Side(ours, Slot(source, "items")), Side(theirs, Slot(others, "items"))
                result.include(self.result(Pair(*sides, f"{pair.path}/items")))
            case Map(value=ours, source=source), Map(value=theirs, source=others):
                sides = Side(ours, Slot(source, "values")), Side(theirs, Slot(others, "values"))
                result.include(self.result(Pair(*sides, f"{pair.path}/values")))
            case Fixed() as reader, Fixed() as writer:
                _check_names(pair, reader, writer, result)
                if reader.size_bytes != writer.size_bytes:
                    result.report(pair, "FIXED_SIZE_MISMATCH", "/size")
            case Enum() as reader, Enum() as writer:
                _check_names(pair, reader, writer, result)
                self._spend(len(writer.symbols))
                if reader.default is None and _missing_symbols(reader, writer):
                    result.report(pair, "MISSING_ENUM_SYMBOLS", "/symbols")
            case Record() as reader, Record() as writer:
                _check_names(pair, reader, writer, result)
                for position, part in enumerate(reader.fields.values()):
                    self._compare_field(pair, f"/fields/{position}", part, writer, result)

    def _compare_field(
        self, pair: Pair, place: str, part: Field, writer: Record, result: Comparison
    ) -> None:
        names = matched_names(part, writer)
        if len(names) == 1:
            other = side_of_field(writer.fields[names[0]])
            path = f"{pair.path}{place}/type"
            result.include(self.result(Pair(side_of_field(part), other, path)))
            return
        self._spend(1)
        if names:
            result.report(pair, "AMBIGUOUS_FIELD_ALIAS", f"{place}/aliases", part)
        elif part.has_default:
            return
        elif isinstance(part.node, Enum) and part.node.default is not None:
            # The Java library compares the enum with the record, because an enum's default does
            # not replace that of a field.
            result.report(pair, "TYPE_MISMATCH", f"{place}/type", part)
        else:
            result.report(pair, "READER_FIELD_MISSING_DEFAULT_VALUE", place, part)

    def _find_branch(self, pair: Pair, union_path: str, result: Comparison) -> None:
        """Check that a branch of the reader's union decodes a writer's type that is no union."""
        branches = self._branches.get(pair.reader.node)
        if branches is None:
            branches = self._branches[pair.reader.node] = _indexed(pair.reader)
        writer = pair.writer.node
        if any(other is writer and node in branches.nodes for node, other in self._open):
            return  # The comparison in progress reports the violations of this branch.
        nearest: Comparison | None = None
        for position, branch in _candidates(branches, writer):
            part = self.result(Pair(branch, pair.writer, f"{union_path}/{position}"))
            if part.compatible:
                return
            nearest = nearest or part
        result.report(pair, "MISSING_UNION_BRANCH", nearest=nearest)


def matched_names(part: Field, writer: Record) -> list[str]:
    """Return the names of the writer's fields that a reader's field matches."""
    names = (part.name, *part.aliases) if part.aliases else (part.name,)
    return [name for name in dict.fromkeys(names) if name in writer.fields]


def _indexed(union: Side) -> _Branches:
    index: defaultdict[str, list[tuple[int, Side]]] = defaultdict(list)
    branches = list(branches_of(union))
    for position, branch in enumerate(branches):
        node = branch.node
        if isinstance(node, Named):
            for key in _names(node):
                index[f"{node.kind} {key}"].append((position, branch))
        else:
            index[node.kind].append((position, branch))
    return _Branches(frozenset(branch.node for branch in branches), index)


def _names(node: Named) -> set[str]:
    """Return the simple name of a type, and its full name and aliases after an equals sign."""
    return {simple_name(node.name), f"= {node.name}", *(f"= {alias}" for alias in node.aliases)}


def _candidates(branches: _Branches, writer: Node) -> Iterable[tuple[int, Side]]:
    """Yield the branches that may decode a type, first the one of the same full name."""
    if isinstance(writer, Named):
        keys = [f"{writer.kind} = {writer.name}", f"{writer.kind} {simple_name(writer.name)}"]
    else:
        keys = sorted(READ_AS.get(writer.kind, (writer.kind,)))
    for key in keys:
        yield from branches.by_key.get(key, ())


def _check_names(pair: Pair, reader: Named, writer: Named, result: Comparison) -> None:
    if simple_name(reader.name) != simple_name(writer.name) and writer.name not in reader.aliases:
        result.report(pair, "NAME_MISMATCH", "/name")


def _missing_symbols(reader: Enum, writer: Enum) -> list[str]:
    known = set(reader.symbols)
    return [symbol for symbol in writer.symbols if symbol not in known]


def _type_message(finding: Finding) -> str:
    return (
        f"The reader's type {describe(finding.reader.node)} cannot decode the writer's type"
        f" {describe(finding.writer.node)}."
    )


def _name_message(finding: Finding) -> str:
    return (
        f"The reader's {describe(finding.reader.node)} has neither the name nor an alias of the"
        f" writer's {describe(finding.writer.node)}."
    )


def _size_message(finding: Finding) -> str:
    reader, writer = finding.reader.node, finding.writer.node
    sizes = [node.size_bytes for node in (reader, writer) if isinstance(node, Fixed)]
    return (
        f"The reader's {describe(reader)} has {sizes[0]} bytes, but the writer's has {sizes[-1]}."
    )


def _symbols_message(finding: Finding) -> str:
    reader, writer = finding.reader.node, finding.writer.node
    missing: list[str] = []
    if isinstance(reader, Enum) and isinstance(writer, Enum):
        missing = _missing_symbols(reader, writer)
    return (
        f"The reader's {describe(reader)} has no default and lacks symbols of the writer's enum:"
        f" {shown(', '.join(missing))}."
    )


def _field_message(finding: Finding) -> str:
    name = finding.field.name if finding.field else ""
    return (
        f"The reader's field {shown(name)} has no default, and the writer's"
        f" {describe(finding.writer.node)} has no such field."
    )


def _alias_message(finding: Finding) -> str:
    part, writer = finding.field, finding.writer.node
    names = matched_names(part, writer) if part and isinstance(writer, Record) else [""]
    return (
        f"The reader's field {shown(part.name if part else '')} matches several fields of the"
        f" writer's {describe(writer)} by its name and aliases: {shown(', '.join(names))}."
    )


def _union_message(finding: Finding) -> str:
    text = (
        f"No branch of the reader's union {describe(finding.reader.node)} can decode the writer's"
        f" type {describe(finding.writer.node)}."
    )
    nearest, seen = finding.nearest, set[Comparison]()
    while nearest is not None and nearest not in seen:
        seen.add(nearest)
        inner = nearest.all_findings()[0]
        nearest = inner.nearest
        if nearest is None:
            text += f" In the most similar branch, at {shown(inner.path)}: {inner.message}"
    return text


_MESSAGES: Final[Mapping[str, Callable[[Finding], str]]] = {
    "TYPE_MISMATCH": _type_message,
    "NAME_MISMATCH": _name_message,
    "FIXED_SIZE_MISMATCH": _size_message,
    "MISSING_ENUM_SYMBOLS": _symbols_message,
    "READER_FIELD_MISSING_DEFAULT_VALUE": _field_message,
    "MISSING_UNION_BRANCH": _union_message,
    "AMBIGUOUS_FIELD_ALIAS": _alias_message,
}
