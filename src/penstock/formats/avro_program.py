"""Programs that read values of a writer's Avro schema into the columns of a reader's schema.

`kernels/avro.py` describes the steps of a program. They follow the writer's schema, because Avro
data has no tags. Values that the reader lacks are skipped, values that the writer lacks are the
reader's defaults, and numbers and texts are promoted. A value that no rule resolves fails with the
place and the rule:

    TYPE_MISMATCH                       the types differ, and there is no promotion
    NAME_MISMATCH                       names differ without their namespaces, and there is no alias
    FIXED_SIZE_MISMATCH                 the sizes differ
    LOGICAL_TYPE_MISMATCH               the logical types have different meanings
    MISSING_ENUM_SYMBOLS                the reader lacks the symbol, and has no default
    MISSING_UNION_BRANCH                no branch of the reader's union reads the type
    READER_FIELD_MISSING_DEFAULT_VALUE  the writer lacks the field, and it has no default
    AMBIGUOUS_FIELD_ALIAS               a field matches several fields of the writer
    INVALID_DEFAULT                     the default does not fit the type of its field

Branches of unions and symbols fail only for the values that have them. Logical types convert as
follows. Times are read in the unit of the writer. A decimal keeps its scale; its digits must fit
the reader's precision. If only one side has a logical type, the number or bytes are read as the
reader's type.

Source: the Avro 1.12 specification, "Schema Resolution".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from penstock.formats.avro import (
    NULL,
    Decimal,
    Enum,
    Field,
    Fixed,
    Items,
    Named,
    Node,
    Primitive,
    Record,
    Reference,
    Union,
    WriterSchema,
    column_of_schema,
    plain_union,
    size_fixed,
    size_min,
    valued,
)
from penstock.formats.avro_constants import (
    MILLIS,
    Misfit,
    matches,
    text_of,
    word_of,
    words_of_decimal,
)
from penstock.formats.columns import Column
from penstock.formats.framing import PLACES, WORDS
from penstock.formats.value_format import InvalidFormat
from penstock.kernels import avro as kernel

T = TypeVar("T")

STEPS_MAX: Final = 200_000
"""Most steps of a program."""
_PLAIN: Final[Mapping[tuple[str, str], tuple[int, ...]]] = {
    ("null", "null"): (kernel.NOTHING,),
    ("boolean", "boolean"): (kernel.BOOLEAN,),
    ("int", "int"): (kernel.INT,),
    ("int", "long"): (kernel.INT,),
    ("int", "float"): (kernel.TO_FLOAT, 1),
    ("int", "double"): (kernel.TO_DOUBLE, 1),
    ("long", "long"): (kernel.LONG,),
    ("long", "float"): (kernel.TO_FLOAT,),
    ("long", "double"): (kernel.TO_DOUBLE,),
    ("float", "float"): (kernel.FLOAT,),
    ("float", "double"): (kernel.WIDE_FLOAT,),
    ("double", "double"): (kernel.DOUBLE,),
    ("string", "string"): (kernel.STRING,),
    ("string", "bytes"): (kernel.BYTES,),
    ("bytes", "bytes"): (kernel.BYTES,),
    ("bytes", "string"): (kernel.STRING,),
}
"""Steps that read a writer's primitive type as a reader's: without logical types, or with the same
ones.
"""
_UNITS: Final[Mapping[tuple[str, str], int]] = {
    ("timestamp-millis", "timestamp-millis"): kernel.MILLIS,
    ("timestamp-millis", "timestamp-micros"): kernel.MILLIS,
    ("timestamp-micros", "timestamp-millis"): kernel.LONG,
    ("local-timestamp-millis", "local-timestamp-millis"): kernel.MILLIS,
    ("local-timestamp-millis", "local-timestamp-micros"): kernel.MILLIS,
    ("local-timestamp-micros", "local-timestamp-millis"): kernel.LONG,
    ("time-millis", "time-micros"): kernel.MILLIS,
}
"""Steps that read a time in the writer's unit. Columns of timestamps have microseconds."""
_STRING: Final = Primitive(kind="string")
_WORDS: Final = {
    **dict(enumerate(WORDS)),
    kernel.NO_BOOLEAN: "is not a boolean",
    kernel.NO_INT: "does not fit an int",
    kernel.NO_TIMESTAMP: "does not fit a timestamp",
    kernel.NO_SYMBOL: "no such symbol",
    kernel.NO_BRANCH: "no such branch of the union",
    kernel.BELOW_ZERO: "a length below zero",
    kernel.NO_TEXT: "text is not UTF-8",
    kernel.NO_DECIMAL: "has more digits than ",
    kernel.EMPTY: "is a decimal without bytes",
    kernel.FOLLOWS: "bytes follow the value",
    kernel.TOO_DEEP: f"nests deeper than {kernel.NESTING_MAX} levels",
    kernel.UNRESOLVED: "",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Steps for a kernel, with the column tree that they fill and the texts of their errors.

    `reasons` has the second part of an error for each step with one: the violated rule of a failing
    step, and the type of a decimal.
    """

    root: Column
    steps: npt.NDArray[np.int64]
    texts: npt.NDArray[np.uint8]
    labels: tuple[str, ...]
    reasons: Mapping[int, str]

    def words(self, place: int, reason: int) -> str:
        more = ""
        if reason in (kernel.NO_DECIMAL, kernel.UNRESOLVED):
            more = self.reasons[place - len(PLACES)]
        return f"{self.labels[place]}{_WORDS[reason]}{more}"


def program(writer: WriterSchema, reader: Node) -> Program:
    """Return the program for values of one schema as values of another.

    Raises:
        InvalidFormat: the program would have more than `STEPS_MAX` steps.
    """
    compiler = _Compiler(writer.records)
    compiler.read(writer.root, reader, 0, "")
    compiler.add("", kernel.END, 0)
    compiler.define_skips()
    return Program(
        root=column_of_schema(reader),
        steps=np.array(compiler.steps, np.int64),
        texts=np.frombuffer(bytes(compiler.texts), np.uint8),
        labels=(*PLACES, *compiler.labels),
        reasons=compiler.reasons,
    )


class _Mismatch(Exception):
    def __init__(self, rule: str, message: str) -> None:
        super().__init__(message)
        self.rule = rule


@dataclass(slots=True)
class _Compiler:
    records: Mapping[str, Record]
    steps: list[tuple[int, ...]] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    texts: bytearray = field(default_factory=bytearray)
    reasons: dict[int, str] = field(default_factory=dict)
    _sizes: dict[int, tuple[Node, int]] = field(default_factory=dict)
    _skips: dict[str, list[int]] = field(default_factory=dict)
    """Steps that call the skip of a record, by its name."""

    def add(self, where: str, operation: int, column: int, *more: int) -> int:
        if len(self.steps) >= STEPS_MAX:
            raise InvalidFormat(
                "schema", where or "the schema", f"needs more than {STEPS_MAX} steps to be read"
            )
        self.steps.append((operation, column, *more, *[0] * (kernel.STEP_WIDTH - 2 - len(more))))
        self.labels.append(f"field {where}: " if where else "")
        return len(self.steps) - 1

    def _jump(self, step: int) -> None:
        self.add("", kernel.JUMP, 0, step)

    def _aim(self, step: int, target: int) -> None:
        """Set the step at which an earlier jump or call continues."""
        operation, column, _, *more = self.steps[step]
        self.steps[step] = (operation, column, target, *more)

    def _fail(self, where: str, rule: str, message: str) -> None:
        self.reasons[self.add(where, kernel.FAIL, 0)] = f"{message} ({rule})"

    def _size(self, node: Node) -> int:
        """Return the number of columns of a reader's type."""
        known = self._sizes.get(id(node))
        if known is None:
            known = self._sizes[id(node)] = (node, column_of_schema(node).size)
        return known[1]

    def read(self, writer: Node, reader: Node, column: int, where: str) -> None:
        """Add the steps that read a writer's value into a column of the reader."""
        if isinstance(writer, Reference):
            writer = self.records[writer.name]
        if isinstance(writer, Union):
            self._read_union(writer, reader, column, where)
            return
        try:
            if isinstance(reader, Union):
                self._member(writer, reader, _branch(writer, reader), column, where)
            else:
                self._read_alike(writer, reader, column, where)
        except _Mismatch as mismatch:
            self._fail(where, mismatch.rule, str(mismatch))

    def _read_alike(self, writer: Node, reader: Node, column: int, where: str) -> None:
        match writer, reader:
            case Items(item=theirs), Items(item=ours):
                block = self._list(where, kernel.BLOCK, column + 1, size_min(theirs))
                self.read(theirs, ours, column + 1, f"{where}[]")
                self._end_list(block)
            case Named(value=theirs), Named(value=ours):
                block = self._list(where, kernel.BLOCK, column + 1, 1 + size_min(theirs))
                self.add("", kernel.STRUCT, column + 1)
                self.add(f"{where}{{}}", kernel.STRING, column + 2)
                self.read(theirs, ours, column + 3, f"{where}{{}}")
                self._end_list(block)
            case Record(), Record():
                _check_names(writer, reader)
                self._record(writer, reader, column, where)
            case Enum(), Enum():
                _check_names(writer, reader)
                self._enum(writer, reader, column, where)
            case _:
                step = self.add(where, *_leaf_step(writer, reader, column))
                if isinstance(reader, Decimal):
                    self.reasons[step] = f"decimal({reader.precision},{reader.scale})"

    # Lists

    def _list(self, where: str, operation: int, item: int, item_bytes: int) -> int:
        """Add the steps before the items of a list, whose column is `item`; return the last one."""
        self.add(where, kernel.LIST, 0)
        return self.add(where, operation, item, 0, max(1, item_bytes))

    def _end_list(self, block: int) -> None:
        self._jump(block)
        self._aim(block, len(self.steps))

    # Unions

    def _choose(
        self, where: str, column: int, choices: Sequence[T], problem: int,
        add: Callable[[int, T], None],
    ) -> None:  # fmt: skip
        """Add the steps that read a number and continue with the steps of that choice.

        Args:
            problem: the problem of values with another number.
            add: adds the steps of a choice, given its number.
        """
        self.add(where, kernel.BRANCH, column, len(choices), problem)
        jumps = [self.add("", kernel.JUMP, 0) for _ in choices]
        ends = []
        for number, choice in enumerate(choices):
            self._aim(jumps[number], len(self.steps))
            add(number, choice)
            ends.append(self.add("", kernel.JUMP, 0))
        for end in ends:
            self._aim(end, len(self.steps))

    def _read_union(self, writer: Union, reader: Node, column: int, where: str) -> None:
        same = writer == reader

        def read(number: int, branch: Node) -> None:
            if same and isinstance(reader, Union):
                self._member(branch, reader, number, column, where)
            else:
                self.read(branch, reader, column, where)

        self._choose(where, column, writer.branches, kernel.NO_BRANCH, read)

    def _member(self, writer: Node, reader: Union, number: int, column: int, where: str) -> None:
        """Add the steps that read a value as a branch of the reader's union.

        A union of several types is a struct with a member per branch. The members of the other
        branches become null.
        """
        target = self._target(reader, number, column)
        if target is not None:
            self.read(writer, *target, where)

    def _target(self, reader: Union, number: int, column: int) -> tuple[Node, int] | None:
        """Add the steps before a union's value; return its type and column, or None for null."""
        branch, branches = reader.branches[number], valued(reader)
        plain = plain_union(branches)
        if branch == NULL:
            self.add("", kernel.NOTHING, column)
            return None
        if plain is not None or len(branches) == 1:
            return plain or branch, column
        self.add("", kernel.STRUCT, column)
        place, behind = -1, column + 1
        for other, member in enumerate(reader.branches):
            if member == NULL:
                continue
            if other == number:
                place = behind
            else:
                self.add("", kernel.NOTHING, behind)
            behind += self._size(member)
        return branch, place

    # Enums and records

    def _enum(self, writer: Enum, reader: Enum, column: int, where: str) -> None:
        count = len(writer.symbols)
        if reader.symbols[:count] == writer.symbols:
            self.add(where, kernel.ENUM, column, count)
            return
        numbers = {symbol: number for number, symbol in enumerate(reader.symbols)}
        default = numbers.get(reader.default or "")

        def read(_: int, symbol: str) -> None:
            number = numbers.get(symbol, default)
            if number is None:
                self._fail(where, "MISSING_ENUM_SYMBOLS", f"the reader has no symbol {symbol}")
            else:
                self.add(where, kernel.WORD, column, number)

        self._choose(where, column, writer.symbols, kernel.NO_SYMBOL, read)

    def _record(self, writer: Record, reader: Record, column: int, where: str) -> None:
        places: dict[str, tuple[Field, int]] = {}
        behind = column + 1
        for ours in reader.fields:
            places[ours.name] = (ours, behind)
            behind += self._size(ours.node)
        sources = _sources(writer, reader)
        self.add("", kernel.STRUCT, column)
        for ours, place in places.values():
            if sources.get(ours.name) is None:
                self._default(ours, place, _inner(where, ours.name), writer)
        targets = {source: name for name, source in sources.items() if source is not None}
        for theirs in writer.fields:
            if theirs.name in targets:
                ours, place = places[targets[theirs.name]]
                self.read(theirs.node, ours.node, place, _inner(where, ours.name))
            else:
                self._skip(theirs.node, _inner(where, theirs.name))

    # Defaults

    def _default(self, ours: Field, column: int, where: str, writer: Record) -> None:
        if ours.default is None:
            message = f"the writer's record {writer.name} lacks it, and it has no default"
            self._fail(where, "READER_FIELD_MISSING_DEFAULT_VALUE", message)
            return
        try:
            self._constant(ours.node, json.loads(ours.default), column, where)
        except Misfit as misfit:
            self._fail(where, "INVALID_DEFAULT", str(misfit))

    def _constant(self, node: Node, value: Any, column: int, where: str) -> None:
        """Add the steps that append a JSON value to a column.

        Raises:
            Misfit: the value is not of this type.
        """
        match node:
            case Union(branches=branches):
                fitting = (n for n, branch in enumerate(branches) if matches(branch, value))
                number = next(fitting, None)
                if number is None:
                    raise Misfit(node, value)
                target = self._target(node, number, column)
                if target is not None:
                    self._constant(target[0], value, target[1], where)
            case Record(fields=fields):
                self._constant_record(fields, node, value, column, where)
            case Items(item=item):
                for part in _parts(node, value, list):
                    self.add(where, kernel.ITEM, column + 1)
                    self._constant(item, part, column + 1, where)
                self.add("", kernel.ITEMS, column)
            case Named(value=item):
                for name, part in _parts(node, value, dict).items():
                    self.add(where, kernel.ITEM, column + 1)
                    self.add("", kernel.STRUCT, column + 1)
                    self._constant(_STRING, name, column + 2, where)
                    self._constant(item, part, column + 3, where)
                self.add("", kernel.ITEMS, column)
            case _:
                self._constant_leaf(node, value, column, where)

    def _constant_record(
        self, fields: tuple[Field, ...], node: Node, value: Any, column: int, where: str
    ) -> None:
        given = _parts(node, value, dict)
        self.add("", kernel.STRUCT, column)
        behind = column + 1
        for part in fields:
            if part.name not in given and part.default is None:
                raise Misfit(node, value)
            inner = given[part.name] if part.name in given else json.loads(part.default or "null")
            self._constant(part.node, inner, behind, _inner(where, part.name))
            behind += self._size(part.node)

    def _constant_leaf(self, node: Node, value: Any, column: int, where: str) -> None:
        if node == NULL and value is None:
            self.add("", kernel.NOTHING, column)
        elif isinstance(node, Decimal):
            self.add(where, kernel.PAIR, column, *words_of_decimal(node, value))
        elif (text := text_of(node, value)) is not None:
            self.add(where, kernel.TEXT, column, len(self.texts), len(text))
            self.texts += text
        else:
            self.add(where, kernel.WORD, column, word_of(node, value))

    # Values that the reader lacks

    def _skip(self, node: Node, where: str) -> None:
        match node:
            case Primitive(kind="null"):
                pass
            case Primitive(kind="int" | "long") | Enum():
                self.add(where, kernel.SKIP_NUMBER, 0)
            case Items(item=item):
                self._skip_list((item,), where, f"{where}[]")
            case Named(value=value):
                self._skip_list((_STRING, value), where, f"{where}{{}}")
            case Union(branches=branches):
                self._choose(
                    where, 0, branches, kernel.NO_BRANCH, lambda _, part: self._skip(part, where)
                )
            case Record(name=name) | Reference(name=name):
                self._skips.setdefault(name, []).append(self.add(where, kernel.CALL, 0))
            case _:
                self.add(where, kernel.SKIP_BYTES, 0, size_fixed(node) or 0)

    def _skip_list(self, parts: tuple[Node, ...], where: str, within: str) -> None:
        block = self._list(where, kernel.SKIP_BLOCK, 0, sum(map(size_min, parts)))
        for part in parts:
            self._skip(part, within)
        self._end_list(block)

    def define_skips(self) -> None:
        """Add the steps that skip each called record, and set the targets of the calls."""
        starts: dict[str, int] = {}
        while waiting := self._skips.keys() - starts.keys():
            for name in sorted(waiting):
                starts[name] = len(self.steps)
                for part in self.records[name].fields:
                    self._skip(part.node, f"{name}.{part.name}")
                self.add("", kernel.RETURN, 0)
        for name, calls in self._skips.items():
            for call in calls:
                self._aim(call, starts[name])


def _inner(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _parts(node: Node, value: Any, kind: type[Any]) -> Any:
    if not isinstance(value, kind):
        raise Misfit(node, value)
    return value


def _sources(writer: Record, reader: Record) -> dict[str, str | None]:
    """Return the writer's field for each field of the reader; None for a missing field.

    Raises:
        _Mismatch: a field matches several fields of the writer.
    """
    names = {theirs.name for theirs in writer.fields}
    taken: set[str] = set()
    found: dict[str, str | None] = {}
    for ours in reader.fields:
        same = [name for name in dict.fromkeys((ours.name, *ours.aliases)) if name in names]
        if len(same) > 1:
            message = f"field {ours.name} matches the writer's fields {' and '.join(same)}"
            raise _Mismatch("AMBIGUOUS_FIELD_ALIAS", message)
        source = same[0] if same and same[0] not in taken else None
        found[ours.name] = source
        taken.update(same)
    return found


def _check_names(
    writer: Record | Enum | Fixed | Decimal, reader: Record | Enum | Fixed | Decimal
) -> None:
    if not _is_named_alike(writer, reader):
        raise _Mismatch(
            "NAME_MISMATCH",
            f"the reader's type is named {reader.name}, and has no alias {writer.name}",
        )


def _is_named_alike(writer: Any, reader: Any) -> bool:
    simple = [side.name.rpartition(".")[2] for side in (writer, reader)]
    return simple[0] == simple[1] or writer.name in reader.aliases


def _leaf_step(writer: Node, reader: Node, column: int) -> tuple[int, ...]:
    """Return operation, column and arguments of the step that reads a value without parts.

    Raises:
        _Mismatch: the reader's type cannot read the writer's.
    """
    if _kind(writer) == _kind(reader) == "fixed":
        _check_names(writer, reader)  # type: ignore[arg-type]
        if size_fixed(writer) != size_fixed(reader):
            message = (
                f"the writer's size is {size_fixed(writer)}, the reader's {size_fixed(reader)}"
            )
            raise _Mismatch("FIXED_SIZE_MISMATCH", message)
    elif (_kind(writer), _kind(reader)) not in _PLAIN:
        raise _Mismatch("TYPE_MISMATCH", f"{_shown(writer)} cannot be read as {_shown(reader)}")
    size = size_fixed(writer) or 0
    match writer, reader:
        case Primitive(), Primitive():
            found = _primitive_step(writer, reader)
            return found[0], column, *found[1:]
        case Decimal(scale=scale), Decimal() if scale == reader.scale:
            return kernel.DECIMAL, column, size, *_bound(reader)
        case ((Primitive(kind="bytes") | Fixed(logical=None)), Decimal()):
            return kernel.DECIMAL, column, size, *_bound(reader)
        case Decimal() | Fixed(logical=None), Primitive(kind="bytes") | Fixed(logical=None):
            return kernel.BYTES, column, size
        case Fixed(logical=logical), Fixed() if logical in (None, reader.logical):
            return kernel.UUID, column, size
        case Fixed(), Fixed(logical=None):
            return kernel.BYTES, column, size
    raise _other_meaning(writer, reader)


def _primitive_step(writer: Primitive, reader: Primitive) -> tuple[int, ...]:
    theirs, ours = writer.logical, reader.logical
    if theirs is None and ours in MILLIS:
        return (kernel.MILLIS,)
    if theirs is None or ours is None or (theirs == ours and theirs not in MILLIS):
        return _PLAIN[writer.kind, reader.kind]
    if (theirs, ours) in _UNITS:
        return (_UNITS[theirs, ours],)
    raise _other_meaning(writer, reader)


def _other_meaning(writer: Node, reader: Node) -> _Mismatch:
    message = f"{_shown(writer)} has another meaning than {_shown(reader)}"
    return _Mismatch("LOGICAL_TYPE_MISMATCH", message)


def _bound(reader: Decimal) -> tuple[int, int]:
    high, low = np.array(divmod(10**reader.precision, 2**64), np.uint64).view(np.int64).tolist()
    return low, high


def _branch(writer: Node, reader: Union) -> int:
    """Return the branch of a reader's union that reads a type.

    It is the first one of the same type, or else the first one to which the type can be promoted.

    Raises:
        _Mismatch: there is no such branch.
    """
    kind = _kind(writer)
    alike = [number for number, part in enumerate(reader.branches) if _kind(part) == kind]
    if isinstance(writer, Record | Enum | Fixed | Decimal) and kind != "bytes":
        named: list[tuple[int, Any]] = [(number, reader.branches[number]) for number in alike]
        same = [n for n, part in named if writer.name in (part.name, *part.aliases)]
        alike = same or [n for n, part in named if _is_named_alike(writer, part)]
    promoted = [n for n, part in enumerate(reader.branches) if (kind, _kind(part)) in _PLAIN]
    found = [*alike, *promoted]
    if not found:
        names = ", ".join(map(_shown, reader.branches))
        message = f"no branch of [{names}] reads {_shown(writer)}"
        raise _Mismatch("MISSING_UNION_BRANCH", message)
    return found[0]


def _kind(node: Node) -> str:
    match node:
        case Primitive(kind=kind):
            return kind
        case Decimal(size_bytes=size):
            return "bytes" if size is None else "fixed"
        case Record() | Reference():
            return "record"
    return _KINDS[type(node)]


_KINDS: Final[Mapping[type, str]] = {
    Fixed: "fixed", Enum: "enum", Items: "array", Named: "map", Union: "union",
}  # fmt: skip


def _shown(node: Node) -> str:
    """Return a type for an error message."""
    kind = _kind(node)
    match node:
        case Primitive(logical=str(logical)):
            return f"{kind} ({logical})"
        case Decimal(precision=precision, scale=scale):
            return f"{kind} (decimal({precision},{scale}))"
        case Record(name=name) | Enum(name=name) | Fixed(name=name) | Reference(name=name):
            return f"{kind} {name}"
    return kind
