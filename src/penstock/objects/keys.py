"""Rules for object keys, equal for all stores.

A key is a relative path of parts between `/`; every part begins with a letter, a digit, `_`, `=` or
`-` and continues with these or dots. So no part is empty, `.`, `..`, or hidden like the files that
a directory store keeps beside the objects.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.objects.errors import InvalidKey, InvalidRange

KEY_BYTES_MAX: Final = 512
"""S3 allows 1,024 bytes, including the store's prefix."""
KEY_NAME_BYTES_MAX: Final = 255
"""Each part of a key is a file name in a directory store (Linux's NAME_MAX)."""

_PART: Final = r"[A-Za-z0-9_=-][A-Za-z0-9._=-]*"
_KEY: Final = re.compile(rf"{_PART}(?:/{_PART})*", re.ASCII)
_PREFIX: Final = re.compile(rf"(?:{_PART}/)*(?:{_PART})?", re.ASCII)


def check_key(key: str) -> None:
    """Reject an invalid key; raises InvalidKey."""
    if len(key) > KEY_BYTES_MAX:
        limit = KEY_BYTES_MAX
        raise InvalidKey(key, f"has {len(key)} characters, the limit is {limit}")
    if _KEY.fullmatch(key) is None:
        raise InvalidKey(key, "must be parts of A-Z a-z 0-9 . _ = - between /, none led by a dot")
    if max(map(len, key.split("/"))) > KEY_NAME_BYTES_MAX:
        limit = KEY_NAME_BYTES_MAX
        raise InvalidKey(key, f"has a part of more than {limit} characters")


def check_prefix(prefix: str) -> None:
    """Reject a prefix that no key can begin with; the empty prefix is valid; raises InvalidKey."""
    if len(prefix) > KEY_BYTES_MAX or _PREFIX.fullmatch(prefix) is None:
        raise InvalidKey(prefix, "is not what a key can begin with")


def check_range(key: str, start: int, size_bytes: int) -> None:
    """Reject an invalid key or range; raises InvalidKey, InvalidRange."""
    check_key(key)
    if start < 0 or size_bytes < 1:
        raise InvalidRange(key, start, size_bytes)
