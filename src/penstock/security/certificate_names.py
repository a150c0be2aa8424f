"""Principal of a client's certificate: its distinguished name, through the mapping rules.

The name is written as Java writes it (RFC 2253): the last part first, `CN=alice,OU=data,O=acme`;
parts without a name in RFC 2253 are written by number and in hexadecimal.

`ssl.principal.mapping.rules` is a list of rules, tried in order:

    RULE:pattern/replacement/[LU]   the pattern has to match the whole name; $1 is what its first
                                    group matched; L or U makes the outcome lower or upper case
    DEFAULT                         the name as it is

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
"""A name is a sequence of sets of sequences of a number and a value."""
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
    """Mapping rules of one listener."""

    def __init__(self, rules: str) -> None:
        """Raises InvalidSetting: a rule is invalid."""
        self._rules = list(_parse(rules))

    def name(self, distinguished: str) -> str:
        """Return the principal's name for a distinguished name.

        Raises:
            NobodysName: no rule matches the name, or it is too long.
        """
        if len(distinguished) > NAME_CHARACTERS_MAX:
            raise NobodysName(f"a certificate's name of {len(distinguished)} characters")
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
                SETTING, text[position:], "must read DEFAULT or RULE:pattern/replacement/[LU]"
            )
        position = found.end()
        yield None if found["pattern"] is None else _rule(found)


def _rule(found: re.Match[str]) -> _Rule:
    try:
        pattern = re.compile(found["pattern"].replace(r"\/", "/"))
    except re.error as error:
        raise InvalidSetting(SETTING, found["pattern"], f"is no pattern: {error}") from error
    groups = [int(part[2]) for part in _GROUP.finditer(found["replacement"]) if part[2]]
    if max(groups, default=0) > pattern.groups:
        raise InvalidSetting(
            SETTING, found["replacement"], f"the pattern has only {pattern.groups} groups"
        )
    return _Rule(pattern, found["replacement"], found["case"])


def distinguished_name(certificate: bytes) -> str:
    """Return the subject of a certificate (DER), as Java writes it.

    Raises:
        NobodysName: the certificate is invalid or has no subject.
    """
    try:
        subject = x509.load_der_x509_certificate(certificate).subject
    except (ValueError, TypeError, x509.InvalidVersion) as error:
        raise NobodysName(f"the name of a certificate cannot be read: {error}") from None
    return ",".join(["+".join(map(_part, rdn)) for rdn in reversed(subject.rdns)])


def _part(attribute: x509.NameAttribute[str | bytes]) -> str:
    word = _WORDS.get(attribute.oid)
    value = attribute.value
    if word is not None and isinstance(value, str):
        return f"{word}={_escape(value)}"
    return f"{attribute.oid.dotted_string}=#{_encoded(attribute).hex()}"


def _escape(value: str) -> str:
    """Escape a value as Java does, with all spaces at both ends."""
    escaped = _ESCAPED.sub(r"\\\1", value).replace("\0", "\\00")
    inner = escaped.strip(" ")
    before = len(escaped) - len(escaped.lstrip(" "))
    after = len(escaped) - len(inner) - before
    return "\\ " * before + inner + "\\ " * after


def _encoded(attribute: x509.NameAttribute[str | bytes]) -> bytes:
    """Return an attribute's value in DER."""
    data = x509.Name([attribute]).public_bytes()
    for _ in range(_NESTED):
        data = data[2 if data[1] < _LONG else 2 + data[1] - _LONG :]
    return data[2 + data[1] :]  # behind its number, which is short
