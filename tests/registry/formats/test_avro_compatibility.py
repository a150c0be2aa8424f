"""Compatibility of Avro schemas against Avro's Java library, and edits that restore it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pytest

from penstock.registry.formats.avro import AvroSchema, parse_avro
from penstock.registry.formats.schema import PROBLEMS_MAX, Dependency, InvalidSchema
from tests.formats.drawn import EXAMPLES, drawn
from tests.registry.formats.avro_reference import AvroReference
from tests.registry.formats.avro_schemas import versions

PAIRS = EXAMPLES * 5 // 2
SECONDS_MAX = 10
"""Generous on a busy machine; the slowest takes two thirds of a second alone."""


@pytest.fixture(scope="module")
def java() -> Iterator[AvroReference]:
    with AvroReference() as reference:
        yield reference


@pytest.fixture(scope="module")
def pairs() -> list[tuple[str, str]]:
    """Texts of two versions each."""
    return drawn(versions, PAIRS)


def parse(document: Any) -> AvroSchema:
    return parse_avro(json.dumps(document), [])


def order(*fields: Any, name: str = "Order", **attributes: Any) -> dict[str, Any]:
    """Return a record with fields given as names and types, or as objects."""
    made = [
        field if isinstance(field, dict) else {"name": field[0], "type": field[1]}
        for field in fields
    ]
    return {"type": "record", "name": name, "namespace": "shop", "fields": made, **attributes}


def state(*symbols: str, **attributes: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "State", "symbols": list(symbols), **attributes}


def array(item: Any) -> dict[str, Any]:
    return {"type": "array", "items": item}


def with_default(name: str, kind: Any, default: Any, **attributes: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "default": default, **attributes}


ADDRESS = order(("street", "string"), name="Address")
ADDRESS_WITH_ZIP = order(("street", "string"), ("zip", "string"), name="Address")
TREE = order(("a", ["null", "Order"]), ("b", array("Order")))


class Case(NamedTuple):
    """Reader and writer, the violations, and the edits of the reader and of the writer."""

    reader: Any
    writer: Any
    problems: list[tuple[str, str]]
    reader_edit: Any
    writer_edit: Any


MISSING_FIELD = "READER_FIELD_MISSING_DEFAULT_VALUE"
CASES = {
    "field added": Case(
        order(("a", "int"), ("b", "string")), order(("a", "int")),
        [(MISSING_FIELD, "/fields/1")],
        order(("a", "int"), with_default("b", ["null", "string"], None)),
        order(("a", "int"), ("b", "string")),
    ),
    "field of a union added": Case(
        order(("b", ["string", "null"])), order(),
        [(MISSING_FIELD, "/fields/0")],
        order(with_default("b", ["null", "string"], None)),
        order(("b", ["string", "null"])),
    ),
    "array added": Case(
        order(("b", array(ADDRESS))), order(),
        [(MISSING_FIELD, "/fields/0")],
        order(with_default("b", array(ADDRESS), [])),
        order(("b", array({**ADDRESS, "name": "shop.Address"}))),
    ),
    "enum with a default added": Case(
        order(("s", state("P", "Q", default="Q"))), order(),
        [("TYPE_MISMATCH", "/fields/0/type")],
        order(with_default("s", state("P", "Q", default="Q"), "Q")),
        order(("s", state("P", "Q", default="Q"))),
    ),
    "field in the middle removed": Case(
        order(("a", "int"), {"name": "b", "type": "int", "doc": "d"}, ("c", "int")),
        order(with_default("a", "int", 1), ("c", "int")),
        [(MISSING_FIELD, "/fields/1")],
        order(("a", "int"), with_default("b", ["null", "int"], None, doc="d"), ("c", "int")),
        order(with_default("a", "int", 1), {"name": "b", "type": "int", "doc": "d"}, ("c", "int")),
    ),
    "field renamed with an alias, read by the old name": Case(
        order(("a", "int")), order({"name": "b", "type": "int", "aliases": ["a", "z"]}),
        [(MISSING_FIELD, "/fields/0")],
        order({"name": "a", "type": "int", "aliases": ["b"]}),
        order({"name": "a", "type": "int", "aliases": ["z"]}),
    ),
    "promotion": Case(order(("a", "double")), order(("a", "int")), [], None, None),
    "narrowed": Case(
        order(("a", "int")), order(("a", "long")),
        [("TYPE_MISMATCH", "/fields/0/type")],
        order(("a", "long")), order(("a", "int")),
    ),
    "default of the old type": Case(
        order(with_default("a", "int", 3)), order(with_default("a", "string", "x")),
        [("TYPE_MISMATCH", "/fields/0/type")],
        order(with_default("a", "string", "x")), order(with_default("a", "int", 3)),
    ),
    "null not expected": Case(
        order(("a", "string")), order(with_default("a", ["null", "string"], None)),
        [("TYPE_MISMATCH", "/fields/0/type/0")],
        order(("a", ["null", "string"])), order(with_default("a", "string", "")),
    ),
    "null not expected, with a default": Case(
        order(with_default("a", "string", "x")), order(with_default("a", ["null", "string"], None)),
        [("TYPE_MISMATCH", "/fields/0/type/0")],
        order(with_default("a", ["string", "null"], "x")), order(with_default("a", "string", "x")),
    ),
    "branch missing": Case(
        order(("a", ["null", "string"])), order(("a", ["null", "string", "boolean"])),
        [("MISSING_UNION_BRANCH", "/fields/0/type/2")],
        order(("a", ["null", "string", "boolean"])), order(("a", ["null", "string"])),
    ),
    "type not in the union": Case(
        order(("a", ["null", "string"])), order(("a", "int")),
        [("MISSING_UNION_BRANCH", "/fields/0/type")],
        order(("a", ["null", "string", "int"])), order(("a", ["null", "string"])),
    ),
    "record in a union": Case(
        order(("a", ["null", ADDRESS_WITH_ZIP])), order(("a", ["null", ADDRESS])),
        [("MISSING_UNION_BRANCH", "/fields/0/type/1")],
        order(("a", ["null", order(("street", "string"),
                                   with_default("zip", ["null", "string"], None),
                                   name="Address")])),
        order(("a", ["null", ADDRESS_WITH_ZIP])),
    ),
    "record in a union renamed": Case(
        order(("a", ["null", {**ADDRESS, "name": "Place"}])),
        order(("a", ["null", ADDRESS_WITH_ZIP])),
        [("MISSING_UNION_BRANCH", "/fields/0/type/1")],
        order(("a", ["null", {**ADDRESS, "name": "Place", "aliases": ["Address"]}])),
        order(("a", ["null", {**ADDRESS_WITH_ZIP, "name": "Place"}])),
    ),
    "symbol missing": Case(
        state("P", "R"), state("P", "Q", "R"),
        [("MISSING_ENUM_SYMBOLS", "/symbols")],
        state("P", "Q", "R"), state("P", "R"),
    ),
    "symbol missing, with a default": Case(
        state("P", "R", default="P"), state("P", "Q", "R"), [], None, None
    ),
    "fixed": Case(
        {"type": "fixed", "name": "F", "size": 2}, {"type": "fixed", "name": "F", "size": 1},
        [("FIXED_SIZE_MISMATCH", "/size")],
        {"type": "fixed", "name": "F", "size": 1}, {"type": "fixed", "name": "F", "size": 2},
    ),
    "renamed": Case(
        order(("a", ["null", "Order"])), order(("a", ["null", "Sale"]), name="Sale"),
        [("NAME_MISMATCH", "/name")],
        order(("a", ["null", "Order"]), aliases=["Sale"]), order(("a", ["null", "shop.Order"])),
    ),
    "other namespace": Case(order(), order(namespace="z"), [], None, None),
    "alias": Case(order(aliases=["z.Sale"]), order(name="z.Sale"), [], None, None),
    "decimal of another scale": Case(
        {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 4}, [], None, None,
    ),
    "recursive": Case(
        order(*TREE["fields"], ("c", "int")), TREE,
        [(MISSING_FIELD, "/fields/2")],
        order(*TREE["fields"], with_default("c", ["null", "int"], None)),
        order(*TREE["fields"], ("c", "int")),
    ),
    "definition moves to its next use": Case(
        order(("a", "string"), ("b", ADDRESS)), order(("a", ADDRESS), ("b", "Address")),
        [("TYPE_MISMATCH", "/fields/0/type")],
        order(("a", {**ADDRESS, "name": "shop.Address", "namespace": None}),
              ("b", "shop.Address")),
        order(("a", "string"), ("b", {**ADDRESS, "name": "shop.Address", "namespace": None})),
    ),
    "several": Case(
        array(order(("a", "int"), ("b", "bytes"), ("c", "null"))),
        array(order(("b", "int"), ("c", "float"))),
        [(MISSING_FIELD, "/items/fields/0"), ("TYPE_MISMATCH", "/items/fields/1/type"),
         ("TYPE_MISMATCH", "/items/fields/2/type")],
        array(order(with_default("a", ["null", "int"], None), ("b", "int"), ("c", "float"))),
        array(order(("a", "int"), ("b", "bytes"), ("c", "null"))),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_rules_and_edits(case: Case) -> None:
    reader, writer = parse(case.reader), parse(case.writer)
    problems = reader.check_reads(writer)
    assert [(problem.rule, problem.path) for problem in problems] == case.problems
    for edited in (
        reader.edited(writer, problems, reads=True),
        writer.edited(reader, problems, reads=False),
    ):
        assert (edited is None) == (not problems)
    if problems:
        edited = reader.edited(writer, problems, reads=True)
        assert edited is not None
        assert edited.check_reads(writer) == []
        assert edited.identity == parse(case.reader_edit).identity
        edited = writer.edited(reader, problems, reads=False)
        assert edited is not None
        assert reader.check_reads(edited) == []
        assert edited.identity == parse(case.writer_edit).identity


@pytest.mark.interop
def test_java_has_the_same_rules(java: AvroReference) -> None:
    for case in CASES.values():
        assert java.problems(json.dumps(case.reader), json.dumps(case.writer)) == case.problems


def test_edits_keep_the_rest_of_the_text() -> None:
    text = (
        '{"name":"Order","x":[1],"fields":[{"doc":"d","type":"string","name":"a"}],"type":"record"}'
    )
    new, old = parse_avro(text, []), parse(order())
    edited = new.edited(old, new.check_reads(old), reads=True)
    assert edited is not None
    assert edited.text == text.replace(
        '"string","name":"a"', '["null","string"],"name":"a","default":null'
    )


def test_messages_name_both_sides() -> None:
    case = CASES["record in a union"]
    problems = parse(case.reader).check_reads(parse(case.writer))
    assert problems[0].message == (
        "No branch of the reader's union [null, shop.Address] can decode the writer's type record"
        " shop.Address. In the most similar branch, at /fields/0/type/1/fields/1: The reader's"
        " field zip has no default, and the writer's record shop.Address has no such field."
    )
    problems = parse(state("P")).check_reads(parse(state("P", "Q", "R")))
    assert "lacks symbols of the writer's enum: Q, R" in problems[0].message


def test_ambiguous_aliases() -> None:
    """The Java library fails; a reader cannot decode data with two fields of one name."""
    reader = parse(order({"name": "a", "type": "int", "aliases": ["b", "c"]}))
    writer = parse(order(("a", "int"), ("b", "int")))
    problems = reader.check_reads(writer)
    assert [(problem.rule, problem.path) for problem in problems] == [
        ("AMBIGUOUS_FIELD_ALIAS", "/fields/0/aliases")
    ]
    edited = reader.edited(writer, problems, reads=True)
    assert edited is not None
    assert json.loads(edited.text)["fields"][0]["aliases"] == ["c"]
    edited = writer.edited(reader, problems, reads=False)
    assert edited is not None
    assert json.loads(edited.text)["fields"] == [{"name": "a", "type": "int"}]


def test_only_the_named_problems_are_edited() -> None:
    new, old = parse(order(("a", "int"), ("b", "int"))), parse(order())
    problems = new.check_reads(old)
    edited = new.edited(old, problems[1:], reads=True)
    assert edited is not None
    assert edited.check_reads(old) == problems[:1]
    assert new.edited(old, [], reads=True) is None


def test_types_of_references_are_not_edited() -> None:
    old = Dependency(name="shop.Address", text=json.dumps(ADDRESS))
    new = Dependency(name="shop.Address", text=json.dumps(ADDRESS_WITH_ZIP))
    text = json.dumps(order(("a", "Address"), ("n", "int")))
    reader, writer = parse_avro(text, [new]), parse_avro(text.replace("int", "long"), [old])
    problems = reader.check_reads(writer)
    assert [problem.path for problem in problems] == ["/fields/0/type/fields/1", "/fields/1/type"]
    edited = reader.edited(writer, problems, reads=True)
    assert edited is not None
    assert edited.text == writer.text
    assert edited.edited(writer, edited.check_reads(writer), reads=True) is None


def problems_match(ours: set[tuple[str, str]], java: set[tuple[str, str]]) -> bool:
    """Return whether each problem has a counterpart.

    The Java library gives some locations relative to the branch of a union where it compared the
    same types before, and names a type only once that several new fields have. Only the rest of
    such a location, below the last named type, is the same here.
    """

    def same(our: tuple[str, str], their: tuple[str, str]) -> bool:
        tail = their[1].rpartition("/type")[2]
        return our[0] == their[0] and (tail == "/" or our[1].endswith(tail))

    return all(any(same(our, their) for our in ours) for their in java) and all(
        any(same(our, their) for their in java) for our in ours
    )


@pytest.mark.interop
def test_generated_pairs(java: AvroReference, pairs: list[tuple[str, str]]) -> None:
    exact = compared = incompatible = 0
    for pair in pairs:
        for reader, writer in (pair, pair[::-1]):
            theirs = java.problems(reader, writer)
            problems = parse_avro(reader, []).check_reads(parse_avro(writer, []))
            ours = {(problem.rule, problem.path) for problem in problems}
            if theirs is None:
                continue
            assert problems_match(ours, set(theirs)), (reader, writer)
            compared += 1
            exact += ours == set(theirs)
            incompatible += bool(theirs)
    assert compared > len(pairs) * 1.5
    assert incompatible > compared // 4
    assert exact > compared * 0.98


def repaired(new: AvroSchema, checks: Sequence[tuple[AvroSchema, bool]]) -> AvroSchema | None:
    """Return the schema after check and edit in turn, as the registry does; None if it fails."""
    for _ in range(20):
        found = ((old, reads, violations(new, old, reads)) for old, reads in checks)
        first = next(((old, reads, problems) for old, reads, problems in found if problems), None)
        if first is None:
            return new
        edited = new.edited(first[0], first[2], reads=first[1])
        if edited is None:
            return None
        new = edited
    return None


def violations(new: AvroSchema, old: AvroSchema, reads: bool) -> Sequence[Any]:
    return new.check_reads(old) if reads else old.check_reads(new)


@pytest.mark.parametrize("directions", [(True,), (False,), (True, False)])
def test_edits_converge(directions: tuple[bool, ...], pairs: list[tuple[str, str]]) -> None:
    """Almost all pairs of versions become compatible.

    Pairs that cannot are those whose unions have several types of one simple name.
    """
    failed = edited = 0
    for old_text, new_text in pairs:
        old, new = parse_avro(old_text, []), parse_avro(new_text, [])
        if old.check_reads(old) or new.check_reads(new):
            continue  # Ambiguous aliases: the schema cannot read its own data.
        checks = [(old, reads) for reads in directions]
        if any(violations(new, old, reads) for reads in directions):
            edited += 1
            failed += repaired(new, checks) is None
    assert edited > len(pairs) // 8
    assert failed <= edited // 100


@pytest.mark.interop
def test_java_accepts_repaired_schemas(java: AvroReference, pairs: list[tuple[str, str]]) -> None:
    for old_text, new_text in pairs[PAIRS // 2 :]:
        old, new = parse_avro(old_text, []), parse_avro(new_text, [])
        for reads in (True, False):
            fixed = repaired(new, [(old, reads)])
            if fixed is not None:
                pair = (fixed.text, old_text) if reads else (old_text, fixed.text)
                assert java.problems(*pair) in ([], None), (old_text, new_text)


def wide(space: str, *fields: Any) -> AvroSchema:
    """Return a union of 1,000 records of one simple name in different namespaces."""
    return parse(
        [
            {"type": "record", "name": f"{space}{number}.A", "fields": list(fields)}
            for number in range(1_000)
        ]
    )


def chain(length: int) -> AvroSchema:
    """Return records of one field each that form a ring."""
    document: Any = "R0"
    for number in reversed(range(length)):
        document = {
            "type": "record", "name": f"R{number}", "fields": [{"name": "a", "type": document}]
        }  # fmt: skip
    return parse(document)


def test_wide_unions() -> None:
    begun = time.process_time()
    assert wide("x").check_reads(wide("y")) == []
    assert wide("x").check_reads(wide("x", {"name": "a", "type": "int"})) == []
    with pytest.raises(InvalidSchema, match="too complex to compare: more than 200000 pairs"):
        wide("x", {"name": "a", "type": "int"}).check_reads(wide("y"))
    assert time.process_time() - begun < SECONDS_MAX


def test_rings_of_different_lengths() -> None:
    found = chain(3).check_reads(chain(5))
    assert {problem.rule for problem in found} == {"NAME_MISMATCH"}
    assert len(found) == 12
    with pytest.raises(InvalidSchema, match="nested deeper than 128 levels"):
        chain(50).check_reads(chain(51))


def test_many_problems() -> None:
    reader = parse(order(*((f"f{number}", "int") for number in range(3_000))))
    problems = reader.check_reads(parse(order()))
    assert len(problems) == PROBLEMS_MAX
    assert reader.edited(parse(order()), problems, reads=True) is None, "more than 5,000 types"
