"""Certificates' names as Java writes them, and the rules that make principals of them."""

from __future__ import annotations

import re

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from penstock.base.errors import InvalidSetting
from penstock.security.development_ca import common_name
from penstock.security.listeners.certificate_names import (
    NAME_CHARACTERS_MAX,
    PrincipalMapper,
    distinguished_name,
)
from penstock.security.sasl import NobodysName
from tests.security.certificates import authority, now_ms

TITLE = "".join(["78"] * 200)
NAMES = [
    ([], r"CN=al\,ice é"),
    (
        [(NameOID.COUNTRY_NAME, "DE"), (NameOID.ORGANIZATION_NAME, "acme, inc")],
        r"CN=al\,ice é,O=acme\, inc,C=DE",
    ),
    (
        [(NameOID.EMAIL_ADDRESS, "a@b.c"), (NameOID.SERIAL_NUMBER, "12")],
        r"CN=al\,ice é,2.5.4.5=#13023132,1.2.840.113549.1.9.1=#16056140622e63",
    ),
    (
        [
            (NameOID.ORGANIZATION_NAME, '  x+"y\\<>;=# '),
            (NameOID.DOMAIN_COMPONENT, "org"),
            (NameOID.USER_ID, "u1"),
            (NameOID.TITLE, "x" * 200),
            (NameOID.STREET_ADDRESS, "#1"),
            (NameOID.LOCALITY_NAME, "Köln"),
            (NameOID.GIVEN_NAME, "é"),
            (NameOID.STATE_OR_PROVINCE_NAME, " "),
        ],
        r"CN=al\,ice é,ST=\ ,2.5.4.42=#0c02c3a9,L=Köln,STREET=\#1,"
        rf"2.5.4.12=#0c81c8{TITLE},"
        r"UID=u1,DC=org,O=\ \ x\+\"y\\\<\>\;\=\#\ ",
    ),
]
"""Names, and what Java 21's `X500Principal.getName()` makes of them."""


@pytest.mark.parametrize(("more", "expected"), NAMES)
def test_names_are_written_as_java_writes_them(
    more: list[tuple[x509.ObjectIdentifier, str]], expected: str
) -> None:
    pem = authority().issue(common_name("al,ice é", *more), now_ms())
    certificate = x509.load_pem_x509_certificates(pem)[0]
    assert distinguished_name(certificate.public_bytes(Encoding.DER)) == expected


@pytest.mark.parametrize(
    ("rules", "name", "expected"),
    [
        ("", "CN=a,O=b", "CN=a,O=b"),
        ("DEFAULT", "CN=a,O=b", "CN=a,O=b"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,DEFAULT", "CN=sv,OU=ServiceUsers,C=x", "sv"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,DEFAULT", "CN=sv,OU=Other", "CN=sv,OU=Other"),
        (
            "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L,DEFAULT",
            "CN=Adminuser,OU=Admin,O=U,L=U,ST=U,C=U",
            "adminuser@admin",
        ),
        ("RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U", "cn=kafka.x,o=y", "KAFKA.X"),
        (r"RULE:^CN=(a)\/(b)$/$2\/\$1/", "CN=a/b", "b/$1"),
        (r"RULE:^CN=a\,b$/ab/ , DEFAULT", r"CN=a\,b", r"CN=a\,b"),
        ("RULE:^CN=(x)?(.*)$/$1$2/", "CN=abc", "abc"),
    ],
)
def test_rules(rules: str, name: str, expected: str) -> None:
    assert PrincipalMapper(rules).name(name) == expected


def test_a_name_without_a_rule_has_no_principal() -> None:
    mapper = PrincipalMapper("RULE:^CN=(a*)$/$1/")
    for name in ("CN=b", "xCN=a", "CN=a,O=b", "CN=", "CN=" + "a" * NAME_CHARACTERS_MAX):
        with pytest.raises(NobodysName):
            mapper.name(name)


@pytest.mark.parametrize(
    "rules", ["default", "RULE:a", "RULE:a/b", "RULE:(/b/", "RULE:a/$1/", "RULE:a/b/X", "a/b/L"]
)
def test_what_is_no_rule(rules: str) -> None:
    with pytest.raises(InvalidSetting, match=re.escape("ssl.principal.mapping.rules")):
        PrincipalMapper(rules)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x0f"),
        (b"\x55\x04\x03\x0c", b"\x55\x04\x03\x03"),
    ],
    ids=["a version that there is not", "a name that is no text"],
)
def test_an_unreadable_certificate_has_no_principal(old: bytes, new: bytes) -> None:
    certificate = x509.load_pem_x509_certificate(authority().pem).public_bytes(Encoding.DER)
    assert old in certificate
    with pytest.raises(NobodysName, match="cannot read the name"):
        distinguished_name(certificate.replace(old, new))
