"""Layout of a schema and of its columns in arrays of numbers, for the JSON kernels.

A node is a leaf, an object, a list or a map of the schema. The values of a node are in a column of
words (eight bytes each) and a column of flags (one byte each). A value's index in them is its
number in the node's *level*: level 0 counts the rows, every other level the items of one list or
map. All columns start as zeros, which mean null, so missing values need no step.
"""

from __future__ import annotations

from typing import Final

TABLE: Final = "int64[:, ::1]"

LOOK: Final = -1
"""Result: the value is not certainly valid; the slow reader reads it."""
ROOM: Final = -2
"""Result: an array is full."""

# Kinds of nodes.
RECORD, LIST, MAP, TEXT, BOOLEAN, INTEGER, DECIMAL, DOUBLE, FLOAT, TIMESTAMP, NTZ, DATE = range(12)
ANY: Final = 12
"""Leaf of any JSON, stored as its text."""
SKIPPED, SKIPPED_LIST = -1, -2
"""Node numbers of a value outside the schema, and of an array outside the schema."""

# Columns of a node.
KIND, NULLABLE, LEVEL, WORDS, FLAGS, FIELDS, FIELD_COUNT, CLOSED = range(8)
REQUIRED_COUNT: Final = 8
"""For an object: number of its required fields."""
ITEM, ITEM_LEVEL, KEY_WORDS, KEY_FLAGS = 8, 9, 10, 11
"""For a list or map: node of its items, their level, and the columns of a map's keys."""
LOW, HIGH = 8, 9
"""For an integer: its smallest and largest value."""
SCALE, BOUND_HIGH, BOUND_LOW, TEXT_TOO = 8, 9, 10, 11
"""For a decimal: digits after the point, 10 to the power of its precision as two words, and 1 if
it may be written as a string."""
ZONE = 8
"""For a timestamp: one of the following."""
ZONE_UTC, ZONE_NEEDED, ZONE_NAMED = range(3)
"""Zone of a text without one: UTC, none (it is an error), or a named zone."""
EXACT: Final = 12
"""For a decimal or timestamp: 1 if digits that do not fit are an error."""
NODE_WIDTH: Final = 13

# Columns of a field of an object.
NAME, NAME_SIZE, NODE, REQUIRED, SEEN = range(5)
FIELD_WIDTH: Final = 5

# Columns of a level.
COUNT, CAPACITY, SAVED = range(3)
LEVEL_WIDTH: Final = 3

# Columns of open nodes while a value is read.
OPEN, INDEX, EXPECTED, SERIAL, HELD, NAMES, CLOSING, KEPT, START = range(9)
"""Node, index of its value, next expected field, serial number of this object, number of its
required fields or items so far, number of names noted before it, byte that closes it, node that
stores its text (or -1), and start of that text."""
STACK_WIDTH: Final = 9
DIGITS_MAX: Final = 1_000
"""Most bytes of a number that kernels read; the slow reader has the exact limit."""
NAMES_MAX: Final = 256
"""Most names outside the schema in objects that are open at the same time."""
NAME_WIDTH: Final = 2

# The state.
SERIALS, NOTED, MARKS, HEAP, LACKING = range(5)
"""Numbers of objects, noted names, marks, and bytes of texts with escapes; the level that is full
(-1: the marks)."""
STATE_SIZE: Final = 5

# Columns of a mark: a number that the caller converts.
MARK_WORD, MARK_TEXT, MARK_ROW, MARK_SINGLE = range(4)
"""Word to fill, text of the number (in the form of a text's word), row, and 1 for single
precision."""
MARK_WIDTH: Final = 4

# Results of a row.
GOOD, ABSENT, SLOW = range(3)

HEAP_BIT: Final = 1 << 62
"""Bit of a text's word: its bytes are in the heap."""
SIZE_MASK: Final = (1 << 31) - 1
START_SHIFT: Final = 31
