"""Avro schemas as JSON documents: generated ones, changed versions of them, and broken ones."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, NamedTuple

from hypothesis import strategies as st

from penstock.registry.formats.avro import parse_avro
from penstock.registry.formats.schema import InvalidSchema

PRIMITIVES = ["null", "boolean", "int", "long", "float", "double", "bytes", "string"]
LOGICAL = [
    {"type": "int", "logicalType": "date"},
    {"type": "long", "logicalType": "timestamp-millis"},
    {"type": "string", "logicalType": "uuid"},
    {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
    {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 4},
    {"type": "int", "logicalType": "decimal", "precision": 0},
    {"type": "string", "avro.java.string": "String"},
    {"type": "double", "unit": {"of": "m/s", "digits": [1, 2]}, "doc": "dropped"},
]
NAMES = ["A", "B", "C", "D", "E", "int", "record"]
SPACES = ["", "x", "x.y", "z"]
FIELDS = ["a", "b", "c", "d", "e"]
SYMBOLS = ["P", "Q", "R", "S", "T"]


class Grower:
    """Generator of one document, with the named types defined so far."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._named: dict[str, Any] = {}

    def pick(self, items: Any) -> Any:
        return self._random.choice(sorted(items) if isinstance(items, set) else list(items))

    def some(self, items: Sequence[str], least: int = 0) -> list[str]:
        return self._random.sample(items, self._random.randint(least, len(items) - 1))

    def chance(self, of: int) -> bool:
        return self._random.randrange(of) == 0

    def type(self, space: str, depth: int, union: bool = True) -> Any:
        kinds = ["primitive", "primitive", "logical"]
        if self._named:
            kinds += ["reference"] * 2
        if depth:
            kinds += ["array", "map", "record", "record", "enum", "enum", "fixed"]
            kinds += ["union"] * 3 if union else []
        match self.pick(kinds):
            case "primitive":
                kind = self.pick(PRIMITIVES)
                return {"type": kind} if self.chance(6) else kind
            case "logical":
                return copy.deepcopy(self.pick(LOGICAL))
            case "reference":
                return self._reference(space)
            case "array":
                return {"type": "array", "items": self.type(space, depth - 1)}
            case "map":
                return {"type": "map", "values": self.type(space, depth - 1)}
            case "union":
                return self._union(space, depth)
            case kind:
                return self.named_type(kind, space, depth)

    def _reference(self, space: str) -> Any:
        full = self.pick(self._named)
        name = full
        if "." in full and full.rpartition(".")[0] == space and self.chance(2):
            name = full.rpartition(".")[2]
        return {"type": name, "extra": 1} if self.chance(8) else name

    def _union(self, space: str, depth: int) -> list[Any]:
        branches: dict[str, Any] = {}
        for _ in range(self.pick(range(1, 5))):
            branch = "null" if self.chance(3) else self.type(space, depth - 1, union=False)
            kind = branch["type"] if isinstance(branch, dict) else branch
            branches.setdefault(full_name(branch, space) if "name" in branch else kind, branch)
        return list(branches.values())

    def named_type(self, kind: str, space: str, depth: int) -> Any:
        made: dict[str, Any] = {"type": kind, "name": self.pick(NAMES)}
        match self.pick(("inherit", "inherit", "inherit", "namespace", "dotted")):
            case "namespace":
                made["namespace"] = self.pick(SPACES)
            case "dotted":
                made["name"] = f"{self.pick(SPACES[1:])}.{made['name']}"
        full = full_name(made, space)
        if full in self._named or full in PRIMITIVES:
            made["name"] = f"N{len(self._named)}"
            full = full_name(made, space)
        self._named[full] = made
        if self.chance(5):
            made["aliases"] = [self.pick((*NAMES, "x.A", "z.B"))]
        if self.chance(6):
            made["doc"] = 'text\n"ü"\0'
        inner = full.rpartition(".")[0]
        if kind == "record":
            names = self.some(FIELDS)
            made["fields"] = [self.field(name, inner, depth - 1) for name in names]
        elif kind == "enum":
            made["symbols"] = self.some(SYMBOLS, 1)
            if self.chance(3):
                made["default"] = self.pick(made["symbols"])
        else:
            made["size"] = self.pick(range(4))
        return made

    def field(self, name: str, space: str, depth: int) -> dict[str, Any]:
        made: dict[str, Any] = {"name": name, "type": self.type(space, depth)}
        if self.chance(2):
            for value in default_of(made["type"]):
                made["default"] = value
        if self.chance(16):
            # An alias that is the field's own name is an error of the Java library's check.
            made["aliases"] = [self.pick(alias for alias in FIELDS if alias != name)]
        if self.chance(8):
            made["order"] = self.pick(("ascending", "descending", "ignore"))
        if self.chance(8):
            made["x"] = {"b": 1.5, "a": None}
        return dict(sorted(made.items(), reverse=self.chance(2)))

    def document(self) -> Any:
        made = self.type("", 3) if self.chance(8) else self.named_type("record", "", 4)
        if is_usable(made):
            return made
        self._named.clear()
        return self.document()


def default_of(kind: Any) -> Iterator[Any]:
    """Yield a valid default of a type without references, if it is easy to find."""
    values: dict[str, Any] = {
        "null": None, "boolean": True, "int": -7, "long": 1 << 40, "float": 1.5, "double": 3,
        "bytes": "\u00ff", "string": "s", "array": [], "map": {}, "fixed": "",
    }  # fmt: skip
    if isinstance(kind, list):
        yield from default_of(kind[-1]) if kind else ()
    elif isinstance(kind, dict) and kind["type"] == "enum":
        yield from kind["symbols"][-1:]
    elif (name := kind["type"] if isinstance(kind, dict) else kind) in values:
        yield values[name]


def full_name(definition: Any, space: str) -> str:
    name: str = definition["name"]
    own = definition.get("namespace", space)
    return name if "." in name or not own else f"{own}.{name}"


def is_usable(document: Any) -> bool:
    """Return whether a document is valid and resolves its names as in the Java library.

    The library prefers a complete type without a namespace to the enclosing record of that name.
    """
    try:
        normal = parse_avro(json.dumps(document), []).normalized()
    except InvalidSchema:
        return False
    names = [definition["name"] for definition in parts_of([json.loads(normal.text)]).named]
    return not any(name.rpartition(".")[2] in names for name in names if "." in name)


class Parts(NamedTuple):
    """Places of a document that a change may concern."""

    slots: list[tuple[Any, Any]]
    """Holders and keys of types."""
    named: list[dict[str, Any]]
    records: list[dict[str, Any]]


def parts_of(holder: list[Any]) -> Parts:
    """Return the parts of the document that is the only item of a list."""
    found = Parts([], [], [])
    pending: list[tuple[Any, Any]] = [(holder, 0)]
    while pending:
        slot = pending.pop()
        found.slots.append(slot)
        node = slot[0][slot[1]]
        if isinstance(node, list):
            pending += [(node, position) for position in range(len(node))]
        elif isinstance(node, dict):
            pending += [(node, key) for key in ("items", "values") if key in node]
            if "name" in node:
                found.named.append(node)
            if "fields" in node:
                found.records.append(node)
                pending += [(field, "type") for field in node["fields"]]
    return found


class Changer:
    """Changes of one document, each of which keeps it valid or is taken back."""

    def __init__(self, random: Random, document: Any) -> None:
        self._grow = Grower(random)
        self.holder = [copy.deepcopy(document)]

    def change(self) -> None:
        before = copy.deepcopy(self.holder)
        parts = parts_of(self.holder)
        changes = [self._change_type, self._change_type]
        if parts.named:
            changes += [self._change_named] * 2
        if parts.records:
            changes += [self._change_fields] * 4
        self._grow.pick(changes)(parts)
        if not is_usable(self.holder[0]):
            self.holder = before

    def _change_type(self, parts: Parts) -> None:
        grow = self._grow
        holder, key = grow.pick(parts.slots)
        node = holder[key]
        if isinstance(node, list) and node and grow.chance(2):
            if grow.chance(2):
                node.insert(0, grow.pick(PRIMITIVES))
            else:
                del node[grow.pick(range(len(node)))]
        elif isinstance(holder, list) or grow.chance(2):
            holder[key] = grow.pick((*PRIMITIVES, grow.type("", 2)))
        else:
            holder[key] = grow.pick((["null", node], [node, "null"], [node, "string"]))

    def _change_named(self, parts: Parts) -> None:
        grow = self._grow
        node = grow.pick(parts.named)
        match grow.pick(("rename", "rename with alias", "namespace", "own", "own", "own")):
            case "namespace":
                node["namespace"] = grow.pick(SPACES[1:])
            case "own":
                self._change_own(node)
            case how:
                self._rename(node, grow.pick(NAMES), parts, alias="alias" in how)

    def _change_own(self, node: dict[str, Any]) -> None:
        grow = self._grow
        if node["type"] == "fixed":
            node["size"] = grow.pick(range(5))
        elif node["type"] == "enum":
            if grow.chance(2):
                node.pop("default", None)
            elif grow.chance(4) and node["symbols"]:
                node["default"] = grow.pick(node["symbols"])
            elif node["symbols"] and grow.chance(2):
                node["symbols"].pop(0)
            else:
                node["symbols"].append(
                    grow.pick({*SYMBOLS, f"U{len(node['symbols'])}"} - {*node["symbols"]})
                )

    @staticmethod
    def _rename(node: dict[str, Any], name: str, parts: Parts, *, alias: bool) -> None:
        old = node["name"].rpartition(".")[2]
        if alias:
            node.setdefault("aliases", []).append(old)
        node["name"] = node["name"][: len(node["name"]) - len(old)] + name
        for holder, key in parts.slots:
            used = holder[key]
            if isinstance(used, str) and used.rpartition(".")[2] == old and old not in PRIMITIVES:
                holder[key] = used[: len(used) - len(old)] + name

    def _change_fields(self, parts: Parts) -> None:
        grow = self._grow
        fields = grow.pick(parts.records)["fields"]
        if not fields or grow.chance(3):
            fields.insert(grow.pick(range(len(fields) + 1)), grow.field(grow.pick(FIELDS), "", 2))
            return
        field = grow.pick(fields)
        match grow.pick(("remove", "rename", "rename with alias", "default", "move")):
            case "remove":
                fields.remove(field)
            case "default":
                if "default" in field:
                    del field["default"]
                for value in default_of(field["type"]):
                    field["default"] = value
            case "move":
                fields.append(fields.pop(0))
            case how:
                old, field["name"] = field["name"], grow.pick(FIELDS)
                aliases = {*field.pop("aliases", ()), *((old,) if "alias" in how else ())}
                if aliases - {field["name"]}:
                    field["aliases"] = sorted(aliases - {field["name"]})


def versions_of(random: Random) -> tuple[str, str]:
    """Return the texts of two valid schemas, most of which differ in a few places."""
    document = Grower(random).document()
    changer = Changer(random, document)
    for _ in range(random.choice((0, 1, 1, 2, 2, 3, 4, 6))):
        changer.change()
    return json.dumps(document), json.dumps(changer.holder[0])


versions = st.randoms(use_true_random=True).map(versions_of)


JUNK: list[Any] = [
    None, True, 1, -1, 1.5, 1 << 40, "", "A", "int", "x y", "x.A", ".A", "1", "NaN", "P", [],
    ["null"], ["A", "A"], {}, {"type": "int"}, {"type": {"type": "int"}}, {"a": 1},
]  # fmt: skip
KEYS = ["type", "name", "namespace", "fields", "symbols", "size", "items", "values", "default",
        "aliases", "order", "doc", "logicalType", "precision"]  # fmt: skip


def broken_of(random: Random) -> str:
    """Return the text of a document with a few arbitrary values, which is seldom valid."""
    grow = Grower(random)
    holder = [grow.document()]
    for _ in range(grow.pick((1, 1, 2, 3))):
        places = list(_places(holder))
        container, key = grow.pick(places)
        if isinstance(container, dict) and grow.chance(4):
            del container[key]
        elif isinstance(container[key], dict) and grow.chance(2):
            container[key][grow.pick(KEYS)] = copy.deepcopy(grow.pick(JUNK))
        elif grow.chance(3):
            other, name = grow.pick(places)
            container[key] = copy.deepcopy(other[name])
        else:
            container[key] = copy.deepcopy(grow.pick(JUNK))
    return json.dumps(holder[0])


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    keys = value if isinstance(value, dict) else range(len(value))
    for key in keys:
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])


broken = st.randoms(use_true_random=True).map(broken_of)
