"""Reader of Avro's binary encoding into columns, which runs a program made from the schema.

Avro data has no tags: the writer's schema determines which value comes next. A program is an array
of steps with these columns:

    OPERATION      operation
    COLUMN         column to write to
    FIRST          a size, a count, or the step to jump to; 1 if a number to convert is an int
    SECOND, THIRD  low and high word of the bound that a decimal's absolute value must not reach;
                   SECOND of a BLOCK is the smallest size of an item in bytes, that of a BRANCH the
                   problem of a wrong branch

A union is a BRANCH followed by one JUMP for each of its branches; an enum whose symbols have other
numbers in the reader's schema is one too. The items of an array and the entries of a map are read
by the steps between a BLOCK and a JUMP back to it. The count of a block is limited by the bytes
that are left, so that a wrong count cannot cause a large allocation.

Values that the reader's schema lacks are skipped. A CALL continues at another step until a RETURN,
so the steps of a recursive type occur once. Values that the writer's schema lacks are constants:
the number or the pair of words in the step, or SECOND bytes from FIRST on in the program's pool of
texts. A FAIL rejects the value.

Source: the Avro 1.12 specification, "Binary Encoding".
"""

from __future__ import annotations

from typing import Any, Final

from penstock.kernels.columns import (
    AT,
    COLUMNS,
    COUNT,
    ROOM,
    TEXT_AT,
    TEXT_ROOM,
    USED,
    mark_row,
    put_items,
    put_nothing,
    put_pair,
    put_parts,
    put_text,
    put_word,
    undo_row,
)
from penstock.kernels.compiling import kernel
from penstock.kernels.memory import load_word
from penstock.kernels.numbers import (
    ENDS_EARLY,
    double_bits,
    float_bits,
    load_half,
    read_decimal,
    read_zigzag,
    widened,
)
from penstock.kernels.types import READ, int64
from penstock.kernels.utf8 import is_utf8

_BYTES: Final = 16
_TEXT_BYTES: Final = 36


@kernel("int64(int64)", inlined=True)
def _hex(digit: int) -> int:
    return digit + (0x30 if digit < 10 else 0x57)


@kernel(f"boolean({COLUMNS}, int64, {READ}, int64)")
def put_uuid(
    table: Any, valid: Any, words: Any, octets: Any, column: int, data: Any, at: int
) -> bool:
    """Append sixteen bytes as the 36 characters of a UUID; return False if there is no room."""
    used = table[column, USED]
    if used + _TEXT_BYTES > table[column, TEXT_ROOM]:
        return False
    to = table[column, TEXT_AT] + used
    for number in range(_BYTES):
        if 4 <= number <= 10 and number % 2 == 0:
            octets[to] = 0x2D
            to += 1
        byte = int64(data[at + number])
        octets[to] = _hex(byte >> 4)
        octets[to + 1] = _hex(byte & 15)
        to += 2
    entry = table[column, AT] + table[column, COUNT]
    valid[entry] = 1
    words[entry + 1] = used + _TEXT_BYTES
    table[column, USED] = used + _TEXT_BYTES
    table[column, COUNT] += 1
    return True


OPERATION, COLUMN, FIRST, SECOND, THIRD = range(5)
STEP_WIDTH: Final = 5
INT, LONG, MILLIS, ENUM, TO_FLOAT, TO_DOUBLE = range(6)
BOOLEAN, FLOAT, WIDE_FLOAT, DOUBLE = range(6, 10)
BYTES, STRING, UUID, DECIMAL = range(10, 14)
NOTHING, JUMP, BRANCH, BLOCK, END = range(14, 19)
LIST, CALL, RETURN, SKIP_NUMBER, SKIP_BYTES, SKIP_BLOCK = range(19, 25)
ITEM, STRUCT, WORD, PAIR, TEXT, ITEMS, FAIL = range(25, 32)
NESTING_MAX: Final = 1_024
"""Most lists and calls that are open at once. Only values of recursive types can reach it."""

(
    NO_BOOLEAN, NO_INT, NO_TIMESTAMP, NO_SYMBOL, NO_BRANCH, BELOW_ZERO, NO_TEXT, NO_DECIMAL,
    EMPTY, FOLLOWS, TOO_DEEP, UNRESOLVED,
) = range(6, 18)  # fmt: skip
REASONS: Final = 32
_FULL: Final = 31
_INT_MAX: Final = 2**31 - 1
_MILLIS_MAX: Final = (2**63 - 1) // 1000
_PROGRAM: Final = "int64[:, ::1]"


@kernel(f"UniTuple(int64, 2)({_PROGRAM}, int64, {READ}, int64, int64)", inlined=True)
def _read_branch(program: Any, step: int, data: Any, at: int, end: int) -> tuple[int, int]:
    value, at = read_zigzag(data, at, end)
    if at < 0:
        return 0, at
    known = 0 <= value < program[step, FIRST]
    return (1 + value, at) if known else (0, -program[step, SECOND])


@kernel(
    f"int64({_PROGRAM}, int64[:, ::1], int64, {READ}, int64, int64, int64[::1], int64)",
    inlined=True,
)
def _next_item(
    program: Any, table: Any, step: int, data: Any, at: int, end: int, left: Any, depth: int
) -> int:  # fmt: skip
    """Begin the next item of a list; return its position, or the negative number of a problem.

    `left[depth]` is the number of items left in the block. It becomes -1 at the end of the list.
    """
    if left[depth] == 0:
        count, at = read_zigzag(data, at, end)
        if at >= 0 and count < 0:
            size, at = read_zigzag(data, at, end)
            # The smallest 64-bit number has no positive counterpart; it stays negative.
            count = -count
            if at >= 0 and (size < 0 or size > end - at or count < 0):
                return -ENDS_EARLY
        if at < 0:
            return at
        if count > (end - at) // program[step, SECOND]:
            return -ENDS_EARLY
        left[depth] = count
    left[depth] -= 1
    item = program[step, COLUMN]
    return at if left[depth] < 0 or table[item, COUNT] < table[item, ROOM] else -_FULL


@kernel("UniTuple(int64, 2)(int64, int64, int64)", inlined=True)
def _checked(operation: int, value: int, count: int) -> tuple[int, int]:
    """Check an integer's range and convert it; return the word, and a problem or 0."""
    whole = operation == INT or (operation >= TO_FLOAT and count == 1)
    if whole and (value > _INT_MAX or value < -_INT_MAX - 1):
        return 0, NO_INT
    if operation >= TO_FLOAT:
        return (float_bits(value) if operation == TO_FLOAT else double_bits(value)), 0
    if operation == MILLIS:
        if value > _MILLIS_MAX or value < -_MILLIS_MAX:
            return 0, NO_TIMESTAMP
        return value * 1000, 0
    if operation == ENUM and (value < 0 or value >= count):
        return 0, NO_SYMBOL
    return value, 0


@kernel(
    f"int64({_PROGRAM}, int64[:, ::1], uint8[::1], int64[::1], int64, {READ}, int64, int64)",
    inlined=True,
)
def _put_plain(
    program: Any, table: Any, valid: Any, words: Any, step: int, data: Any, at: int, end: int
) -> int:
    operation = program[step, OPERATION]
    size = 1 if operation == BOOLEAN else 8 if operation == DOUBLE else 4
    if size > end - at:
        return -ENDS_EARLY
    if operation == BOOLEAN:
        word = int64(data[at])
        if word > 1:
            return -NO_BOOLEAN
    elif operation == DOUBLE:
        word = int64(load_word(data, at))
    else:
        word = load_half(data, at)
        if operation == WIDE_FLOAT:
            word = widened(word)
    put_word(table, valid, words, program[step, COLUMN], word)
    return at + size


@kernel(f"int64({_PROGRAM}, {COLUMNS}, int64, {READ}, int64, int64)", inlined=True)
def _put_sized(
    program: Any, table: Any, valid: Any, words: Any, octets: Any, step: int,
    data: Any, at: int, end: int,
) -> int:  # fmt: skip
    """Read a step's text, bytes, UUID or decimal into its column; return the position after it.

    The result is negative if there is a problem. The size is FIRST of the step; if that is 0, the
    size is encoded before the bytes.
    """
    operation, column = program[step, OPERATION], program[step, COLUMN]
    size = program[step, FIRST]
    if size == 0:
        size, at = read_zigzag(data, at, end)
        if at < 0 or size < 0:
            return at if at < 0 else -BELOW_ZERO
    if size > end - at:
        return -ENDS_EARLY
    if operation == DECIMAL:
        if size == 0:
            return -EMPTY
        low, high, fits = read_decimal(data, at, size, program[step, SECOND], program[step, THIRD])
        put_pair(table, valid, words, column, low, high)
        return at + size if fits else -NO_DECIMAL
    if operation == UUID:
        fits = put_uuid(table, valid, words, octets, column, data, at)
    elif operation == STRING and not is_utf8(data, at, at + size):
        return -NO_TEXT
    else:
        fits = put_text(table, valid, words, octets, column, data, at, size)
    return at + size if fits else -_FULL


@kernel(f"int64({_PROGRAM}, {COLUMNS}, int64, {READ}, int64, int64)", inlined=True)
def _put(
    program: Any, table: Any, valid: Any, words: Any, octets: Any, step: int,
    data: Any, at: int, end: int,
) -> int:  # fmt: skip
    operation = program[step, OPERATION]
    if operation <= TO_DOUBLE:
        value, at = read_zigzag(data, at, end)
        if at >= 0:
            value, problem = _checked(operation, value, program[step, FIRST])
            put_word(table, valid, words, program[step, COLUMN], value)
            return -problem if problem else at
        return at
    if operation <= DOUBLE:
        return _put_plain(program, table, valid, words, step, data, at, end)
    return _put_sized(program, table, valid, words, octets, step, data, at, end)


@kernel(f"int64({_PROGRAM}, int64, {READ}, int64, int64, int64[::1], int64)", inlined=True)
def _next_skipped(
    program: Any, step: int, data: Any, at: int, end: int, left: Any, depth: int
) -> int:
    """Find the next item of a list that is skipped, as `_next_item` does.

    Blocks with a size in bytes are skipped as a whole.
    """
    while at >= 0 and left[depth] == 0:
        count, at = read_zigzag(data, at, end)
        if at >= 0 and count < 0:
            size, at = read_zigzag(data, at, end)
            inside = at >= 0 and 0 <= size <= end - at
            at = at + size if inside else min(at, -ENDS_EARLY)
        elif at >= 0 and count > (end - at) // program[step, SECOND]:
            at = -ENDS_EARLY
        else:
            left[depth] = count or -1
    return at


@kernel(
    f"UniTuple(int64, 3)({_PROGRAM}, int64, {READ}, int64, int64, int64[::1], int64)", inlined=True
)
def _enter(
    program: Any, step: int, data: Any, at: int, end: int, left: Any, depth: int
) -> tuple[int, int, int]:
    """Begin a list or a call, or end a call or an item; return step, position and depth."""
    operation = program[step, OPERATION]
    if operation == RETURN:
        return left[depth], at, depth - 1
    if operation == SKIP_BLOCK:
        at = _next_skipped(program, step, data, at, end, left, depth)
        if at >= 0 and left[depth] < 0:
            return program[step, FIRST], at, depth - 1
        left[depth] -= 1
        return step + (at >= 0), at, depth
    if depth + 1 >= left.size:
        return step, -TOO_DEEP, depth
    left[depth + 1] = 0 if operation == LIST else step + 1
    return (step + 1 if operation == LIST else program[step, FIRST]), at, depth + 1


@kernel(
    f"UniTuple(int64, 3)({_PROGRAM}, int64, {READ}, int64, int64, int64[::1], int64)", inlined=True
)
def _skip(
    program: Any, step: int, data: Any, at: int, end: int, left: Any, depth: int
) -> tuple[int, int, int]:
    """Run a step that writes nothing; return the next step, position and depth.

    The position is the negative number of a problem if there is one; then the step stays.
    """
    operation, size = program[step, OPERATION], program[step, FIRST]
    if operation == SKIP_NUMBER:
        _, at = read_zigzag(data, at, end)
        return step + (at >= 0), at, depth
    if operation == SKIP_BYTES:
        if size == 0:
            size, at = read_zigzag(data, at, end)
            if at < 0 or size < 0:
                return step, at if at < 0 else -BELOW_ZERO, depth
        fits = size <= end - at
        return step + fits, at + size if fits else -ENDS_EARLY, depth
    return _enter(program, step, data, at, end, left, depth)


@kernel(f"int64({_PROGRAM}, {COLUMNS}, {READ}, int64, int64)", inlined=True)
def _put_constant(
    program: Any, table: Any, valid: Any, words: Any, octets: Any, texts: Any, step: int, at: int
) -> int:
    """Append the constant of a step to its column; return `at`, or the number of a problem."""
    operation, column = program[step, OPERATION], program[step, COLUMN]
    first, second = program[step, FIRST], program[step, SECOND]
    if operation == ITEM:
        return at if table[column, COUNT] < table[column, ROOM] else -_FULL
    if operation == STRUCT:
        put_parts(table, valid, column)
    elif operation == WORD:
        put_word(table, valid, words, column, first)
    elif operation == PAIR:
        put_pair(table, valid, words, column, first, second)
    elif operation == ITEMS:
        put_items(table, valid, words, column)
    elif operation == FAIL:
        return -UNRESOLVED
    elif not put_text(table, valid, words, octets, column, texts, first, second):
        return -_FULL
    return at


@kernel(
    f"UniTuple(int64, 2)({_PROGRAM}, {COLUMNS}, {READ}, {READ}, int64, int64, int64[::1])",
    inlined=True,
)
def _read(
    program: Any, table: Any, valid: Any, words: Any, octets: Any, texts: Any,
    data: Any, at: int, end: int, left: Any,
) -> tuple[int, int]:  # fmt: skip
    step, depth = 0, -1
    while at >= 0:
        operation = program[step, OPERATION]
        if operation < NOTHING:
            at = _put(program, table, valid, words, octets, step, data, at, end)
            step += at >= 0
        elif operation == JUMP:
            step = program[step, FIRST]
        elif operation == BRANCH:
            branch, at = _read_branch(program, step, data, at, end)
            step += branch
        elif operation == BLOCK:
            at = _next_item(program, table, step, data, at, end, left, depth)
            if at >= 0 and left[depth] < 0:
                put_items(table, valid, words, program[step, COLUMN] - 1)
                depth -= 1
                step = program[step, FIRST]
            else:
                step += at >= 0
        elif operation == NOTHING:
            put_nothing(table, valid, words, program[step, COLUMN])
            step += 1
        elif operation >= ITEM:
            at = _put_constant(program, table, valid, words, octets, texts, step, at)
            step += at >= 0
        elif operation > END:
            step, at, depth = _skip(program, step, data, at, end, left, depth)
        else:
            return step, 0 if at == end else FOLLOWS
    return step, -at


@kernel(
    f"UniTuple(int64, 2)({_PROGRAM}, {READ}, {COLUMNS}, int64[:, ::1], {READ}, int64[::1],"
    " int64[::1], int64[::1], int64, int64[::1])"
)
def read_avro(
    program: Any, texts: Any, table: Any, valid: Any, words: Any, octets: Any, marks: Any,
    data: Any, starts: Any, ends: Any, problems: Any, row: int, left: Any,
) -> tuple[int, int]:  # fmt: skip
    """Read the values from row `row` on into columns; return the row to continue at, and a column.

    If a column is full, both name where to continue after the caller has enlarged it. Otherwise the
    row is the number of values. A value with an earlier or a new problem is null.
    """
    while row < starts.size:
        if problems[row] == 0:
            mark_row(table, marks)
            step, problem = _read(
                program, table, valid, words, octets, texts, data, starts[row], ends[row], left
            )
            if problem == _FULL:
                undo_row(table, marks)
                return row, program[step, COLUMN]
            if problem:
                undo_row(table, marks)
                problems[row] = (step + 2) * REASONS + problem
        if problems[row] != 0:
            put_nothing(table, valid, words, 0)
        row += 1
    return row, 0
