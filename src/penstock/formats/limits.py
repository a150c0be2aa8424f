"""Limits of decoded values."""

from __future__ import annotations

from typing import Final

DEPTH_MAX: Final = 32
"""Deepest nesting of a schema."""
BATCH_BYTES_MAX: Final = (1 << 31) - (1 << 16)
"""Largest size of a batch of values in bytes, because Arrow's offsets have 32 bits."""
JSON_DEPTH_MAX: Final = 500
"""Deepest nesting of objects and arrays of a JSON value."""
JSON_DIGITS_MAX: Final = 1_000
"""Most digits of a number in a JSON value."""
