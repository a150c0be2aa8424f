"""File of users and their credentials, one per line: `alice:SCRAM-SHA-512$4096:…`.

A user may have one line for each mechanism. Empty lines, and lines that begin with `#`, are
ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.security.credentials import (
    InvalidCredential,
    ScramCredential,
    Shape,
    parse_credential,
    shapes_of,
)

USERS_MAX: Final = 100_000
_BETWEEN: Final = ":SCRAM-"


class FileCredentials:
    """Store of the credentials from a file."""

    def __init__(self, kept: Mapping[tuple[str, str], ScramCredential]) -> None:
        self._kept: dict[str, dict[str, ScramCredential]] = {}
        for (mechanism, user), credential in kept.items():
            self._kept.setdefault(user, {})[mechanism] = credential
        self._shapes = shapes_of(self._kept.values())

    def __len__(self) -> int:
        return sum(map(len, self._kept.values()))

    def credential(self, mechanism: str, user: str) -> ScramCredential | None:
        return self._kept.get(user, {}).get(mechanism)

    def shapes(self, mechanism: str) -> Mapping[Shape, int]:
        return self._shapes[mechanism]


def parse_users(data: bytes) -> FileCredentials:
    """Parse a file of users.

    Raises:
        InvalidCredential: a line is not UTF-8 or is invalid; the message has the line's number and
            never a credential.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        raise InvalidCredential(f"line {number} is not UTF-8") from None
    kept: dict[tuple[str, str], ScramCredential] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, separator, rest = line.strip().partition(_BETWEEN)
        if not separator or not name:
            raise InvalidCredential(
                f"line {number} must have the form NAME:MECHANISM$ITERATIONS:SALT$…"
            )
        try:
            credential = parse_credential(_BETWEEN[1:] + rest)
        except InvalidCredential as error:
            raise InvalidCredential(f"line {number}: {error}") from None
        if (credential.mechanism, name) in kept:
            raise InvalidCredential(
                f"line {number}: {name} already has a line for {credential.mechanism}"
            )
        kept[credential.mechanism, name] = credential
        if len(kept) > USERS_MAX:
            raise InvalidCredential(f"the file has more than {USERS_MAX} credentials, the limit")
    return FileCredentials(kept)
