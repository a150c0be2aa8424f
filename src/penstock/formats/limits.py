"""How far a value may make the decoder go."""

from __future__ import annotations

from typing import Final

DEPTH_MAX: Final = 32
"""How deep a schema may nest."""
BATCH_BYTES_MAX: Final = (1 << 31) - (1 << 16)
"""Bytes of one batch of values: Arrow's offsets are of 32 bits."""
JSON_DEPTH_MAX: Final = 500
"""How deep objects and arrays of a JSON value may nest."""
JSON_DIGITS_MAX: Final = 1_000
"""Digits of a number in a JSON value."""
