"""How a schema and the columns that are filled lie in arrays of numbers, for the JSON kernels.

A node is a value of the schema: a leaf, an object, a list or a map. Values of a node lie in columns
of words (eight bytes) and of flags; the index in them counts the rows, or the items of the list
that the node is in: its level. Everything starts as zero, which is null, so that what is missing
needs no step.
"""

from __future__ import annotations

from typing import Final

TABLE: Final = "int64[:, ::1]"

LOOK: Final = -1
"""The value is not one that a kernel accepts: read it slowly."""
ROOM: Final = -2
"""An array is full."""

# What a node is.
RECORD, LIST, MAP, TEXT, BOOLEAN, INTEGER, DECIMAL, DOUBLE, FLOAT, TIMESTAMP, NTZ, DATE = range(12)
ANY: Final = 12
"""Any JSON, kept as its text."""
SKIPPED, SKIPPED_LIST = -1, -2
"""The node of what is not in the schema; of such an array."""

# Columns of a node.
KIND, NULLABLE, LEVEL, WORDS, FLAGS, FIELDS, FIELD_COUNT, CLOSED = range(8)
REQUIRED_COUNT: Final = 8
"""Of an object: how many of its fields are required."""
ITEM, ITEM_LEVEL, KEY_WORDS, KEY_FLAGS = 8, 9, 10, 11
"""Of a list or map: its item, the item's level, and the columns of a map's keys."""
LOW, HIGH = 8, 9
"""The range of an integer."""
SCALE, BOUND_HIGH, BOUND_LOW, TEXT_TOO = 8, 9, 10, 11
"""Of a decimal: digits behind the point, 10 to the power of its digits in two words."""
ZONE = 8
"""Of a timestamp: one of these."""
ZONE_UTC, ZONE_NEEDED, ZONE_NAMED = range(3)
"""What a text without a zone is: of UTC, wrong, or of a zone that has rules."""
EXACT: Final = 12
"""Of a decimal and a timestamp: 1 if digits that do not fit are an error."""
NODE_WIDTH: Final = 13

# Columns of a field of an object.
NAME, NAME_SIZE, NODE, REQUIRED, SEEN = range(5)
FIELD_WIDTH: Final = 5

# Columns of a level.
COUNT, CAPACITY, SAVED = range(3)
LEVEL_WIDTH: Final = 3

# Columns of what is open while a value is read.
OPEN, INDEX, EXPECTED, SERIAL, HELD, NAMES, CLOSING, KEPT, START = range(9)
"""The node, the index of its value, the next field, a number of this object, how many required
fields or items it has, how many names were noted before, the byte that closes it, the node that
keeps its text (or -1), and where that text starts."""
STACK_WIDTH: Final = 9
DIGITS_MAX: Final = 1_000
"""How many bytes a number may have here; a slower reader knows the limit exactly."""
NAMES_MAX: Final = 256
"""How many names outside the schema may be open at once."""
NAME_WIDTH: Final = 2

# The state.
SERIALS, NOTED, MARKS, HEAP, LACKING = range(5)
"""Objects so far, names noted, marks set, bytes of texts with escapes, and the level that is full
(or -1 for the marks)."""
STATE_SIZE: Final = 5

# Columns of a mark: a number that is to be converted outside.
MARK_WORD, MARK_TEXT, MARK_ROW, MARK_SINGLE = range(4)
"""The word to fill, where the text is (as a text's word says it), its row, 1 for a single."""
MARK_WIDTH: Final = 4

# What becomes of a row.
GOOD, ABSENT, SLOW = range(3)

HEAP_BIT: Final = 1 << 62
"""In a text's word: its bytes are in the heap."""
SIZE_MASK: Final = (1 << 31) - 1
START_SHIFT: Final = 31
