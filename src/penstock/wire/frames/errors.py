"""Errors of the frame protocol."""

from __future__ import annotations

from penstock.base.errors import CorruptError


class MalformedFrame(CorruptError):
    """Invalid frame: the stream cannot be trusted any more and has to be closed."""
