"""Removal of secrets from texts of a support bundle.

Two rules remove a secret independently. A value that is known to be secret, because a setting or an
option says so, is removed wherever it occurs. In addition, patterns remove what looks like a
secret: credentials and queries of URLs, values of names such as `password` and `token`, private
keys, tokens of the form JWT, and access keys of AWS.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import quote, unquote

from penstock.base.settings import HIDDEN
from penstock.base.urls import without_credentials_in

SECRET_CHARS_MIN: Final = 4
"""Shortest known secret that is removed from texts; shorter ones would remove ordinary words."""

_WORDS: Final = (
    r"pass(?:word|wd|phrase)?|pwd|secret|token|credentials?|signature|private[-_. ]?key"
    r"|access[-_.]?key(?:[-_.]?id)?|account[-_.]?key|api[-_.]?key|jaas[-_.]?config"
    r"|authorization|sas"
)
_NAME: Final = re.compile(rf"(?i)(?:^|[-_. ])(?:{_WORDS})(?:$|[-_. ])")
_PAIR: Final = re.compile(
    rf"""(?ix)
    (?P<name> (?:{_WORDS}) ["']? \s* [:=] \s* )
    (?: "(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*' | ["'][^\n]*
      | (?:basic|bearer|digest) \s+ \S+ | \$\{{[^}}\n]*\}} | [^\s,;"'}}\]]+ )
    """
)
_SCHEME: Final = re.compile(r"(?i)\b(basic|bearer)\s+[A-Za-z0-9+/=._~-]{8,}")
_PEM: Final = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL
)
_JWT: Final = re.compile(r"\beyJ[\w-]{5,}\.[\w-]+\.?[\w-]*")
_AWS: Final = re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b")
_USER_INFO: Final = re.compile(r"(?<=://)[^\s/@:\"']{1,4096}:[^\s@\"']{0,4096}@")


def names_secret(name: str) -> bool:
    """Return whether the name of a setting or option says that its value is secret."""
    return _NAME.search(name) is not None


class Redactor:
    """Function that removes secrets from texts, and from values of JSON.

    Args:
        secrets: values that are known to be secret.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms = {form for secret in secrets for form in _forms(secret)}
        longest_first = sorted(filter(_is_long, forms), key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def __call__(self, text: str) -> str:
        if self._known is not None:
            text = self._known.sub(HIDDEN, text)
        text = _PEM.sub(HIDDEN, text)
        text = _USER_INFO.sub("", text)
        text = without_credentials_in(text)
        text = _PAIR.sub(lambda found: f"{found['name']}{_quoted(found[0])}", text)
        text = _SCHEME.sub(lambda found: f"{found[1]} {HIDDEN}", text)
        return _AWS.sub(HIDDEN, _JWT.sub(HIDDEN, text))

    def value(self, value: Any) -> Any:
        """Return a value of JSON without secrets: in texts, and below names of secrets."""
        if isinstance(value, str):
            return self(value)
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        if isinstance(value, dict):
            return {
                self(name): HIDDEN if names_secret(name) and isinstance(item, str)
                else self.value(item)
                for name, item in value.items()
            }  # fmt: skip
        return value


def _quoted(pair: str) -> str:
    """Return the hidden text, in the quotation marks of a pair's value, so that JSON stays JSON."""
    return f'"{HIDDEN}"' if pair.endswith('"') else HIDDEN


def _is_long(form: str) -> bool:
    return len(form) >= SECRET_CHARS_MIN


def _forms(secret: str) -> set[str]:
    """Return the forms in which a secret occurs in texts: plain, in JSON, in URLs, and encoded."""
    plain = secret.strip()
    escaped = plain.encode("unicode_escape").decode()
    in_json = plain.replace("\\", "\\\\").replace('"', '\\"')
    encoded = b64encode(plain.encode()).decode()
    return {secret, plain, escaped, in_json, quote(plain, safe=""), unquote(plain), encoded}
