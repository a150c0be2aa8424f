"""What can be wrong with a frame."""

from __future__ import annotations

from penstock.base.errors import CorruptError


class MalformedFrame(CorruptError):
    """Bytes that are no frame: the stream cannot be trusted any more and has to be closed."""
