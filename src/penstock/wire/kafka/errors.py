"""Errors of the wire: what a frame can do wrong, and what a value to be sent can do wrong."""

from __future__ import annotations

from typing import ClassVar

from penstock.base.errors import BugError, InvalidError


class MalformedRequest(InvalidError):
    """The bytes of a message do not follow its schema."""

    code: ClassVar[str] = "invalid_request"


class UnsupportedVersion(InvalidError):
    """An API key or version that is not served."""

    code: ClassVar[str] = "unsupported_version"


class UnencodableResponse(BugError):
    """A value that does not fit the schema it is to be written by."""
