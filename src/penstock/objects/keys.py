"""Rules for object keys, the same for all stores.

A key is a relative path of parts, separated by `/`. Every part begins with a letter, a digit, `_`,
`=` or `-`, and continues with these or dots. No part is therefore empty, `.` or `..`, or begins
with a dot, like the directory `.partial` of a directory store.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.objects.errors import InvalidKey, InvalidRange

KEY_BYTES_MAX: Final = 512
"""Characters of a key. S3 allows 1,024 bytes, including the prefix in the store's URL."""
KEY_NAME_BYTES_MAX: Final = 255
"""Characters of a part of a key, which is a file name in a directory store (NAME_MAX)."""

_PART: Final = r"[A-Za-z0-9_=-][A-Za-z0-9._=-]*"
_KEY: Final = re.compile(rf"{_PART}(?:/{_PART})*", re.ASCII)
_PREFIX: Final = re.compile(rf"(?:{_PART}/)*(?:{_PART})?", re.ASCII)


def check_key(key: str) -> None:
    """Reject an invalid key. Raises InvalidKey."""
    if len(key) > KEY_BYTES_MAX:
        limit = KEY_BYTES_MAX
        raise InvalidKey(key, f"has {len(key)} characters, the limit is {limit}")
    if _KEY.fullmatch(key) is None:
        raise InvalidKey(key, "must be parts of A-Z a-z 0-9 . _ = - between /, not led by a dot")
    if max(map(len, key.split("/"))) > KEY_NAME_BYTES_MAX:
        limit = KEY_NAME_BYTES_MAX
        raise InvalidKey(key, f"has a part of more than {limit} characters")


def check_prefix(prefix: str) -> None:
    """Reject a prefix with which no key can begin. Raises InvalidKey. It may be empty."""
    if len(prefix) > KEY_BYTES_MAX or _PREFIX.fullmatch(prefix) is None:
        raise InvalidKey(prefix, "cannot be the beginning of a key")


def check_range(key: str, start: int, size_bytes: int) -> None:
    """Reject an invalid key or byte range. Raises InvalidKey or InvalidRange."""
    check_key(key)
    if start < 0 or size_bytes < 1:
        raise InvalidRange(key, start, size_bytes)
