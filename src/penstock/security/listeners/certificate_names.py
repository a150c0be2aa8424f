"""Mapping of a client certificate's distinguished name to a principal.

The name is written as Java writes it (RFC 2253), with the last part first:
`CN=alice,OU=data,O=acme`. A part that RFC 2253 does not name is written with its object identifier,
and its value in hexadecimal.

`ssl.principal.mapping.rules` is a list of rules, which are tried in order:

    RULE:pattern/replacement/[LU]   the pattern must match the whole name; $1 is the text of its
                                    first group; L or U converts the result to lower or upper case
    DEFAULT                         the name unchanged

A client whose name matches no rule is rejected.

Source: KIP-371 (rules), Kafka's `SslPrincipalMapper`; Java's `X500Principal.getName()`; RFC 2253.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from cryptography import x509
from cryptography.x509.oid import NameOID, ObjectIdentifier
from msgspec import Struct

from penstock.base.errors import InvalidSetting
from penstock.security.sasl.exchange import NobodysName

SETTING: Final = "ssl.principal.mapping.rules"
NAME_CHARACTERS_MAX: Final = 4096
_WORDS: Final[dict[ObjectIdentifier, str]] = {
    NameOID.COMMON_NAME: "CN",
    NameOID.COUNTRY_NAME: "C",
    NameOID.LOCALITY_NAME: "L",
    NameOID.STATE_OR_PROVINCE_NAME: "ST",
    NameOID.ORGANIZATION_NAME: "O",
    NameOID.ORGANIZATIONAL_UNIT_NAME: "OU",
    NameOID.STREET_ADDRESS: "STREET",
    NameOID.DOMAIN_COMPONENT: "DC",
    NameOID.USER_ID: "UID",
}
_NESTED: Final = 3
"""DER structures around an attribute: a name is a sequence of sets of (identifier, value) pairs."""
_LONG: Final = 0x80
_ESCAPED: Final = re.compile(r'([,=+<>#;"\\])')
_UNESCAPED: Final = r"(?:\\.|[^\\/])*"
_RULE: Final = re.compile(
    rf"\s*(?:DEFAULT|RULE:(?P<pattern>{_UNESCAPED})/(?P<replacement>{_UNESCAPED})/(?P<case>[LU]?))"
    r"\s*(?:,|$)"
)
_GROUP: Final = re.compile(r"\\(.)|\$([0-9])")


class _Rule(Struct, frozen=True):
    pattern: re.Pattern[str]
    replacement: str
    case: str

    def apply(self, name: str) -> str | None:
        found = self.pattern.fullmatch(name)
        if found is None:
            return None
        made = _GROUP.sub(lambda part: part[1] or found[int(part[2])] or "", self.replacement)
        return made.lower() if self.case == "L" else made.upper() if self.case == "U" else made


class PrincipalMapper:
    """Mapping rules of one listener, from distinguished names to principals."""

    def __init__(self, rules: str) -> None:
        """Parse the rules.

        Raises:
            InvalidSetting: a rule is invalid.
        """
        self._rules = list(_parse(rules))

    def name(self, distinguished: str) -> str:
        """Return the principal's name for a distinguished name.

        Raises:
            NobodysName: no rule matches the distinguished name, or it is too long.
        """
        if len(distinguished) > NAME_CHARACTERS_MAX:
            raise NobodysName(
                f"the certificate's name has {len(distinguished)} characters; the limit is"
                f" {NAME_CHARACTERS_MAX}"
            )
        for rule in self._rules:
            found = distinguished if rule is None else rule.apply(distinguished)
            if found:
                return found
        raise NobodysName(f"no rule of {SETTING} matches {distinguished}")


def _parse(rules: str) -> Iterator[_Rule | None]:
    position, text = 0, rules.strip() or "DEFAULT"
    while position < len(text):
        found = _RULE.match(text, position)
        if found is None:
            raise InvalidSetting(
                SETTING, text[position:], "must be DEFAULT or RULE:pattern/replacement/[LU]"
            )
        position = found.end()
        yield None if found["pattern"] is None else _rule(found)


def _rule(found: re.Match[str]) -> _Rule:
    try:
        pattern = re.compile(found["pattern"].replace(r"\/", "/"))
    except re.error as error:
        raise InvalidSetting(
            SETTING, found["pattern"], f"must be a regular expression: {error}"
        ) from error
    groups = [int(part[2]) for part in _GROUP.finditer(found["replacement"]) if part[2]]
    if max(groups, default=0) > pattern.groups:
        raise InvalidSetting(
            SETTING, found["replacement"], f"must use only the pattern's {pattern.groups} groups"
        )
    return _Rule(pattern, found["replacement"], found["case"])


def distinguished_name(certificate: bytes) -> str:
    """Return the subject of a certificate (in DER), in Java's notation.

    Raises:
        NobodysName: the certificate is invalid.
    """
    try:
        subject = x509.load_der_x509_certificate(certificate).subject
    except (ValueError, TypeError, x509.InvalidVersion) as error:
        raise NobodysName(f"cannot read the name in the certificate: {error}") from None
    return ",".join(["+".join(map(_part, rdn)) for rdn in reversed(subject.rdns)])


def _part(attribute: x509.NameAttribute[str | bytes]) -> str:
    word = _WORDS.get(attribute.oid)
    value = attribute.value
    if word is not None and isinstance(value, str):
        return f"{word}={_escape(value)}"
    return f"{attribute.oid.dotted_string}=#{_encoded(attribute).hex()}"


def _escape(value: str) -> str:
    """Escape a value as Java does, including all leading and trailing spaces."""
    escaped = _ESCAPED.sub(r"\\\1", value).replace("\0", "\\00")
    inner = escaped.strip(" ")
    before = len(escaped) - len(escaped.lstrip(" "))
    after = len(escaped) - len(inner) - before
    return "\\ " * before + inner + "\\ " * after


def _encoded(attribute: x509.NameAttribute[str | bytes]) -> bytes:
    """Return an attribute's value, encoded in DER."""
    data = x509.Name([attribute]).public_bytes()
    for _ in range(_NESTED):
        data = data[2 if data[1] < _LONG else 2 + data[1] - _LONG :]
    return data[2 + data[1] :]  # skips the identifier, whose length has one byte
