"""URLs for display: without user info, query and fragment, which may contain secrets.

Error messages, log lines and responses use `without_credentials` for a URL, and
`without_credentials_in` for a text of another library, which may contain URLs.

Source: RFC 3986, section 3.2.1 (user information).
"""

from __future__ import annotations

import re
from typing import Final

_HIDDEN: Final = "…"
_PARTS: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://|)([^/?#]*)([^?#]*)(.*)", re.DOTALL)
_HOST: Final = r"(?:\[[0-9A-Fa-f:.]*(?:%[\w.~-]*)?\]|[^\[\]:,@]*)(?::[0-9]*)?"
_HOSTS: Final = re.compile(f"{_HOST}(?:,{_HOST})*")
"""Hosts and ports of a URL without user info. A PostgreSQL URL may have several."""
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,31}://[^\s\"'<>`]+")
"""The scheme is bounded, so that a text with long words takes linear time."""


def without_credentials(url: str) -> str:
    """Return a URL without user info, query and fragment; never raises.

    If `user:password@` may contain an unescaped `/`, `?` or `#`, only the scheme is returned.
    """
    head = _PARTS.match(url)
    scheme, authority, path, rest = head.groups() if head else ("", "", "", "")
    hosts = authority.rpartition("@")[2]
    unescaped = ":" in authority and "@" in path + rest
    if unescaped or not _HOSTS.fullmatch(hosts):
        return f"{scheme}{_HIDDEN}"
    return f"{scheme}{hosts}{path}"


def without_credentials_in(text: str) -> str:
    return _URL.sub(lambda found: without_credentials(found[0]), text)
