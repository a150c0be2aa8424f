"""Errors of the wire protocol: malformed frames, and values that cannot be encoded."""

from __future__ import annotations

from typing import ClassVar

from penstock.base.errors import BugError, InvalidError


class MalformedRequest(InvalidError):
    """Message whose bytes do not follow its schema."""

    code: ClassVar[str] = "invalid_request"


class UnsupportedVersion(InvalidError):
    """API key, or version of an API, that the broker does not support."""

    code: ClassVar[str] = "unsupported_version"


class UnencodableResponse(BugError):
    """Value that does not fit its schema."""
