"""Layout of a schema and of its columns in arrays of numbers, for the JSON kernels.

A node is a value of the schema: a leaf, an object, a list or a map. Values of a node are in columns
of words (eight bytes) and of flags; their index counts the node's level: the rows, or the items of
the enclosing list. Everything starts as zero, which is null, so that missing values need no step.
"""

from __future__ import annotations

from typing import Final

TABLE: Final = "int64[:, ::1]"

LOOK: Final = -1
"""The kernel does not accept the value: read it slowly."""
ROOM: Final = -2
"""An array is full."""

# Kinds of nodes.
RECORD, LIST, MAP, TEXT, BOOLEAN, INTEGER, DECIMAL, DOUBLE, FLOAT, TIMESTAMP, NTZ, DATE = range(12)
ANY: Final = 12
"""Any JSON, kept as its text."""
SKIPPED, SKIPPED_LIST = -1, -2
"""Nodes of a value outside the schema, and of such an array."""

# Columns of a node.
KIND, NULLABLE, LEVEL, WORDS, FLAGS, FIELDS, FIELD_COUNT, CLOSED = range(8)
REQUIRED_COUNT: Final = 8
"""Of an object: the number of its required fields."""
ITEM, ITEM_LEVEL, KEY_WORDS, KEY_FLAGS = 8, 9, 10, 11
"""Of a list or map: its item, the item's level, and the columns of a map's keys."""
LOW, HIGH = 8, 9
"""The range of an integer."""
SCALE, BOUND_HIGH, BOUND_LOW, TEXT_TOO = 8, 9, 10, 11
"""Of a decimal: digits behind the point, 10 to the power of its digits in two words."""
ZONE = 8
"""Of a timestamp: one of these."""
ZONE_UTC, ZONE_NEEDED, ZONE_NAMED = range(3)
"""Zone of a text without one: UTC, an error, or a zone with rules."""
EXACT: Final = 12
"""Of a decimal and a timestamp: 1 if digits that do not fit are an error."""
NODE_WIDTH: Final = 13

# Columns of a field of an object.
NAME, NAME_SIZE, NODE, REQUIRED, SEEN = range(5)
FIELD_WIDTH: Final = 5

# Columns of a level.
COUNT, CAPACITY, SAVED = range(3)
LEVEL_WIDTH: Final = 3

# Columns of open nodes while a value is read.
OPEN, INDEX, EXPECTED, SERIAL, HELD, NAMES, CLOSING, KEPT, START = range(9)
"""The node, the index of its value, the next field, a number of this object, how many required
fields or items it has, how many names were noted before, the byte that closes it, the node that
keeps its text (or -1), and where that text starts."""
STACK_WIDTH: Final = 9
DIGITS_MAX: Final = 1_000
"""Most bytes of a number here; the slow reader has the exact limit."""
NAMES_MAX: Final = 256
"""Most names outside the schema that may be open at once."""
NAME_WIDTH: Final = 2

# The state.
SERIALS, NOTED, MARKS, HEAP, LACKING = range(5)
"""Objects, noted names, marks, bytes of texts with escapes, and the full level (-1: the marks)."""
STATE_SIZE: Final = 5

# Columns of a mark: a number that is to be converted outside.
MARK_WORD, MARK_TEXT, MARK_ROW, MARK_SINGLE = range(4)
"""The word to fill, where the text is (as a text's word says it), its row, 1 for a single."""
MARK_WIDTH: Final = 4

# Results of a row.
GOOD, ABSENT, SLOW = range(3)

HEAP_BIT: Final = 1 << 62
"""In a text's word: its bytes are in the heap."""
SIZE_MASK: Final = (1 << 31) - 1
START_SHIFT: Final = 31
