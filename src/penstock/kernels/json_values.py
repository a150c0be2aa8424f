"""Reader of JSON values of one schema into columns; the slow reader reads uncertain values.

A value is read once, from its first byte to its last, with open objects, lists and maps on a stack.
The name of the next field in the schema is compared first, so fields in the order of the schema are
found at once. Names outside the schema are noted while their object is open, because a name must
not occur twice. A function returns LOOK if the slow reader must read the value, and ROOM if an
array is full.
"""

from __future__ import annotations

from typing import Any

from penstock.kernels.compiling import kernel
from penstock.kernels.json_layout import (
    ANY,
    CAPACITY,
    CLOSED,
    CLOSING,
    COUNT,
    EXPECTED,
    FIELD_COUNT,
    FIELDS,
    FLAGS,
    GOOD,
    HEAP,
    HEAP_BIT,
    HELD,
    INDEX,
    ITEM,
    ITEM_LEVEL,
    KEPT,
    KEY_FLAGS,
    KEY_WORDS,
    KIND,
    LACKING,
    LIST,
    LOOK,
    MAP,
    MARKS,
    NAME,
    NAME_SIZE,
    NAMES,
    NODE,
    NOTED,
    OPEN,
    RECORD,
    REQUIRED,
    REQUIRED_COUNT,
    ROOM,
    SAVED,
    SEEN,
    SERIAL,
    SERIALS,
    SIZE_MASK,
    SKIPPED,
    SKIPPED_LIST,
    SLOW,
    START,
    START_SHIFT,
    TABLE,
    WORDS,
)
from penstock.kernels.json_leaves import byte_at, plain_end, read_leaf, skip_blanks, skip_scalar
from penstock.kernels.memory import copy_bytes
from penstock.kernels.types import READ, int64
from penstock.kernels.utf8 import is_utf8


@kernel(f"boolean({READ}, int64, int64, {READ}, int64, int64)", inlined=True)
def is_name(data: Any, at: int, end: int, names: Any, start: int, size: int) -> bool:
    if at + size >= end or data[at + size] != 34:
        return False
    for step in range(size):
        if data[at + step] != names[start + step]:
            return False
    return True


@kernel(f"int64({READ}, int64, int64, {TABLE}, {TABLE}, {READ}, {TABLE}, int64)", inlined=True)
def find_field(
    data: Any, at: int, end: int, nodes: Any, fields: Any, names: Any, stack: Any, depth: int
) -> Any:
    """Return the field with the name at `at`, comparing the expected field first; -1 if none."""
    node = stack[depth, OPEN]
    first, count = nodes[node, FIELDS], nodes[node, FIELD_COUNT]
    expected = stack[depth, EXPECTED]
    for step in range(count):
        field = expected + step
        if field >= count:
            field -= count
        field += first
        if is_name(data, at, end, names, fields[field, NAME], fields[field, NAME_SIZE]):
            stack[depth, EXPECTED] = field + 1 - first
            return field
    return -1


@kernel(f"int64({READ}, int64, int64, {TABLE}, {TABLE}, int64, int64[::1])")
def note_name(
    data: Any, at: int, size: int, noted: Any, stack: Any, depth: int, state: Any
) -> Any:  # fmt: skip
    """Store a name of the open object; return LOOK if it is a duplicate or `noted` is full."""
    count = state[NOTED]
    if count == noted.shape[0]:
        return LOOK
    for other in range(stack[depth, NAMES], count):
        if noted[other, 1] == size:
            start, step = noted[other, 0], 0
            while step < size and data[start + step] == data[at + step]:
                step += 1
            if step == size:
                return LOOK
    noted[count, 0] = at
    noted[count, 1] = size
    state[NOTED] = count + 1
    return 0


@kernel(
    f"Tuple((int64, int64))({READ}, int64, int64, {TABLE}, {TABLE}, {READ}, {TABLE}, int64,"
    f" {TABLE}, int64[::1])",
    inlined=True,
)
def read_name(
    data: Any, at: int, end: int, nodes: Any, fields: Any, names: Any, stack: Any, depth: int,
    noted: Any, state: Any,
) -> Any:  # fmt: skip
    """Return the position after the name (or LOOK), and the node of its value."""
    node = stack[depth, OPEN]
    if node >= 0 and nodes[node, KIND] == RECORD:
        field = find_field(data, at, end, nodes, fields, names, stack, depth)
        if field >= 0:
            if fields[field, SEEN] == stack[depth, SERIAL]:
                return LOOK, SKIPPED
            fields[field, SEEN] = stack[depth, SERIAL]
            stack[depth, HELD] += fields[field, REQUIRED]
            return at + fields[field, NAME_SIZE] + 1, fields[field, NODE]
        if nodes[node, CLOSED]:
            return LOOK, SKIPPED
    stop = plain_end(data, at, end)
    # A name with an escape could be equal to one without.
    if byte_at(data, stop, end) != 34:
        return LOOK, SKIPPED
    if note_name(data, at, stop - at, noted, stack, depth, state) < 0:
        return LOOK, SKIPPED
    in_map = node >= 0 and nodes[node, KIND] == MAP
    return stop + 1, nodes[node, ITEM] if in_map else SKIPPED


@kernel(f"int64({TABLE}, int64, {TABLE}, {TABLE}, int64, int64[::1])", inlined=True)
def add_item(nodes: Any, node: int, levels: Any, stack: Any, depth: int, state: Any) -> Any:
    """Add an item to the open list or map; return its index, or ROOM."""
    level = nodes[node, ITEM_LEVEL]
    index = levels[level, COUNT]
    if index == levels[level, CAPACITY]:
        state[LACKING] = level
        return ROOM
    levels[level, COUNT] = index + 1
    stack[depth, HELD] += 1
    return index


@kernel(
    f"Tuple((int64, int64, int64))({READ}, int64, int64, {TABLE}, {TABLE}, {READ}, {TABLE},"
    f" {TABLE}, int64, {TABLE}, int64[::1], uint8[::1], int64[::1])",
    inlined=True,
)
def read_slot(
    data: Any, at: int, end: int, nodes: Any, fields: Any, names: Any, levels: Any, stack: Any,
    depth: int, noted: Any, words: Any, flags: Any, state: Any,
) -> Any:  # fmt: skip
    """Find the next member or item: return its position (or LOOK or ROOM), node and index."""
    node, index, target = stack[depth, OPEN], stack[depth, INDEX], int64(SKIPPED)
    listed = node >= 0 and nodes[node, KIND] != RECORD
    if listed:
        index = add_item(nodes, node, levels, stack, depth, state)
        if index < 0:
            return ROOM, SKIPPED, 0
    if stack[depth, CLOSING] == 93:
        return at, nodes[node, ITEM] if listed else target, index
    if byte_at(data, at, end) != 34:
        return LOOK, SKIPPED, 0
    name = at + 1
    at, target = read_name(data, name, end, nodes, fields, names, stack, depth, noted, state)
    if at < 0:
        return LOOK, SKIPPED, 0
    if listed:
        words[nodes[node, KEY_WORDS] + index] = name << START_SHIFT | at - 1 - name
        flags[nodes[node, KEY_FLAGS] + index] = 1
    at = skip_blanks(data, at, end)
    if byte_at(data, at, end) != 58:
        return LOOK, SKIPPED, 0
    return skip_blanks(data, at + 1, end), target, index


@kernel(f"int64(int64, int64, int64, int64, {TABLE}, {TABLE}, int64, int64[::1])", inlined=True)
def open_value(
    byte: int, at: int, node: int, index: int, nodes: Any, stack: Any, depth: int, state: Any
) -> Any:
    """Push an object, list or map on the stack; return LOOK if the schema has another kind here."""
    if depth == stack.shape[0]:
        return LOOK
    kept = int64(-1)
    if node >= 0 and nodes[node, KIND] == ANY:
        kept, node = node, int64(-1)
    if node >= 0:
        kind = nodes[node, KIND]
        if kind > MAP or (kind == LIST) != (byte == 91):
            return LOOK
    else:
        node = int64(SKIPPED if byte == 123 else SKIPPED_LIST)
    state[SERIALS] += 1
    stack[depth, KEPT] = kept
    stack[depth, START] = at
    stack[depth, OPEN] = node
    stack[depth, INDEX] = index
    stack[depth, EXPECTED] = 0
    stack[depth, SERIAL] = state[SERIALS]
    stack[depth, HELD] = 0
    stack[depth, NAMES] = state[NOTED]
    stack[depth, CLOSING] = byte + 2
    return 0


@kernel(f"int64(int64, {TABLE}, {TABLE}, int64, int64[::1], uint8[::1], int64[::1])", inlined=True)
def close_value(
    behind: int, nodes: Any, stack: Any, depth: int, words: Any, flags: Any, state: Any
) -> Any:
    """Write the object, list or map that ends; return LOOK if a required field is missing."""
    node, index, held = stack[depth, OPEN], stack[depth, INDEX], stack[depth, HELD]
    state[NOTED] = stack[depth, NAMES]
    if node < 0:
        node = stack[depth, KEPT]
        if node < 0:
            return 0
        start = stack[depth, START]
        words[nodes[node, WORDS] + index] = start << START_SHIFT | behind - start
    elif nodes[node, KIND] == RECORD:
        if held != nodes[node, REQUIRED_COUNT]:
            return LOOK
    else:
        words[nodes[node, WORDS] + index] = held
    flags[nodes[node, FLAGS] + index] = 1
    return 0


@kernel(
    f"Tuple((int64, int64, boolean))({READ}, int64, int64, {TABLE}, {TABLE}, int64, boolean,"
    " int64[::1], uint8[::1], int64[::1])",
    inlined=True,
)
def leave(
    data: Any, at: int, end: int, nodes: Any, stack: Any, depth: int, fresh: bool, words: Any,
    flags: Any, state: Any,
) -> Any:  # fmt: skip
    """Close the values that end at `at`; return the next position, the depth, and `fresh`.

    The position is that of the next name or item, or LOOK. `fresh` means that the open value has no
    member yet.
    """
    while True:
        at = skip_blanks(data, at, end)
        byte = byte_at(data, at, end)
        if byte != stack[depth, CLOSING]:
            break
        at += 1
        if close_value(at, nodes, stack, depth, words, flags, state) < 0:
            return LOOK, depth, fresh
        depth -= 1
        fresh = False
        if depth < 0:
            return skip_blanks(data, at, end), depth, fresh
    if fresh:
        return at, depth, fresh
    if byte != 44:
        return LOOK, depth, fresh
    return skip_blanks(data, at + 1, end), depth, fresh


@kernel(
    f"int64({READ}, int64, int64, int64, {TABLE}, {TABLE}, {READ}, {TABLE}, {TABLE}, {TABLE},"
    f" int64[::1], float64[::1], uint8[::1], uint8[::1], {TABLE}, int64[::1])"
)
def read_row(
    data: Any, at: int, end: int, row: int, nodes: Any, fields: Any, names: Any, levels: Any,
    stack: Any, noted: Any, words: Any, reals: Any, flags: Any, heap: Any, marks: Any, state: Any,
) -> Any:  # fmt: skip
    """Read one value into row `row` of the columns; return 0, LOOK or ROOM."""
    state[NOTED] = 0
    at, depth, fresh, target, index = skip_blanks(data, at, end), -1, True, 0, row
    byte = byte_at(data, at, end)
    if byte != 123:
        return LOOK
    while True:
        if byte == 123 or byte == 91:
            depth += 1
            if open_value(byte, at, target, index, nodes, stack, depth, state) < 0:
                return LOOK
            at += 1
            fresh = True
        elif target >= 0:
            at = read_leaf(
                data, at, end, nodes, target, index, row, words, reals, flags, heap, marks, state
            )
        else:
            at = skip_scalar(data, at, end, heap, state)
        if at < 0:
            return at
        at, depth, fresh = leave(data, at, end, nodes, stack, depth, fresh, words, flags, state)
        if depth < 0 or at < 0:
            return LOOK if at != end else 0
        at, target, index = read_slot(
            data, at, end, nodes, fields, names, levels, stack, depth, noted, words, flags, state
        )
        if at < 0:
            return at
        fresh = False
        byte = byte_at(data, at, end)


@kernel(f"void(int64, {TABLE}, {TABLE}, int64[::1], int64[::1], uint8[::1])")
def forget(row: int, columns: Any, levels: Any, state: Any, words: Any, flags: Any) -> None:
    """Reset a row to nulls and remove its items, because reading it failed or an array is full."""
    for column in range(columns.shape[0]):
        level = columns[column, 0]
        first, stop = (row, row + 1) if level == 0 else (levels[level, SAVED], levels[level, COUNT])
        width = columns[column, 3]
        for index in range(first, stop):
            flags[columns[column, 2] + index] = 0
            for step in range(width):
                words[columns[column, 1] + index * width + step] = 0
    for level in range(1, levels.shape[0]):
        levels[level, COUNT] = levels[level, SAVED]


@kernel(
    f"int64({READ}, int64[::1], int64[::1], int64, uint8[::1], {TABLE}, {TABLE}, {TABLE},"
    f" {READ}, {TABLE}, {TABLE}, {TABLE}, int64[::1], float64[::1], uint8[::1], uint8[::1],"
    f" {TABLE}, int64[::1])"
)
def read_values(
    data: Any, starts: Any, ends: Any, first: int, status: Any, nodes: Any, fields: Any,
    columns: Any, names: Any, levels: Any, stack: Any, noted: Any, words: Any, reals: Any,
    flags: Any, heap: Any, marks: Any, state: Any,
) -> Any:  # fmt: skip
    """Read the values from number `first` on into their rows; return the number of read values.

    If an array is full, reading ends early, and `state` names the array.
    """
    for row in range(first, starts.size):
        if status[row] != GOOD:
            continue
        if not is_utf8(data, starts[row], ends[row]):
            status[row] = SLOW
            continue
        marked, held = state[MARKS], state[HEAP]
        for level in range(1, levels.shape[0]):
            levels[level, SAVED] = levels[level, COUNT]
        found = read_row(
            data, starts[row], ends[row], row, nodes, fields, names, levels, stack, noted, words,
            reals, flags, heap, marks, state,
        )  # fmt: skip
        if found < 0:
            forget(row, columns, levels, state, words, flags)
            state[MARKS], state[HEAP] = marked, held
        if found == ROOM:
            return row
        if found < 0:
            status[row] = SLOW
    return starts.size


@kernel(f"void({READ}, uint8[::1], int64[::1], int32[::1], uint8[::1])")
def gather_texts(data: Any, heap: Any, words: Any, offsets: Any, target: Any) -> None:
    """Copy texts into one buffer, from the positions and sizes in `words`."""
    for number in range(words.size):
        word = words[number]
        start, size = (word & ~HEAP_BIT) >> START_SHIFT, word & SIZE_MASK
        if word & HEAP_BIT:
            copy_bytes(target, offsets[number], heap, start, size)
        else:
            copy_bytes(target, offsets[number], data, start, size)
