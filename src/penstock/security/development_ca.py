"""Certificate authority for development and tests. Do not use it in production.

Keys are EC P-256, in files that only their owner can read.

Source: RFC 5280.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from msgspec import Struct

from penstock.security.data.secret_files import write_private

DAYS: Final = 90
_EARLIER: Final = datetime.timedelta(hours=1)
"""Certificates are valid from this much earlier, because clocks differ."""
CA_FILE: Final = "ca.pem"
CA_KEY_FILE: Final = "ca-key.pem"


class Authority(Struct, frozen=True):
    """Certificate authority: its certificate and private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> bytes:
        """The authority's certificate in PEM, for truststores."""
        return self.certificate.public_bytes(Encoding.PEM)

    def issue(
        self,
        subject: x509.Name,
        now_ms: int,
        *,
        hosts: Sequence[str] = (),
        days: float = DAYS,
        password: str = "",
    ) -> bytes:
        """Return a keystore in PEM: a new private key and its certificate chain.

        With `hosts` (names and addresses) the certificate is for servers and clients, else only for
        clients.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if hosts:
            usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
        builder = (
            _builder(subject, self.certificate.subject, key, now_ms, days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()),
                critical=False,
            )
        )
        if hosts:
            names = x509.SubjectAlternativeName([*map(_host, hosts)])
            builder = builder.add_extension(names, critical=False)
        signed = builder.sign(self.key, hashes.SHA256())
        return _key_pem(key, password) + signed.public_bytes(Encoding.PEM) + self.pem


def new_authority(
    now_ms: int, name: str = "Penstock development CA", days: int = 3650
) -> Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = common_name(name)
    builder = (
        _builder(subject, subject, key, now_ms, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(_CA_USAGE, critical=True)
    )
    return Authority(builder.sign(key, hashes.SHA256()), key)


def authority_in(directory: Path, now_ms: int) -> Authority:
    """Return the authority in a directory; create one if there is none.

    Raises:
        OSError, ValueError: its files cannot be read or written.
    """
    certificate, key = directory / CA_FILE, directory / CA_KEY_FILE
    if key.exists():
        loaded = load_pem_private_key(key.read_bytes(), None)
        if not isinstance(loaded, ec.EllipticCurvePrivateKey):
            raise ValueError(f"{key} is not an EC key of a development CA")
        return Authority(x509.load_pem_x509_certificate(certificate.read_bytes()), loaded)
    directory.mkdir(parents=True, exist_ok=True)
    made = new_authority(now_ms)
    write_private(key, _key_pem(made.key, ""))
    certificate.write_bytes(made.pem)
    return made


def common_name(name: str, *more: tuple[x509.ObjectIdentifier, str]) -> x509.Name:
    """Return a distinguished name of these parts, with the common name last."""
    parts: Iterable[tuple[x509.ObjectIdentifier, str]] = [*more, (NameOID.COMMON_NAME, name)]
    return x509.Name([x509.NameAttribute(oid, value) for oid, value in parts])


_CA_USAGE: Final = x509.KeyUsage(
    digital_signature=True,
    key_cert_sign=True,
    crl_sign=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    encipher_only=False,
    decipher_only=False,
)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    now_ms: int,
    days: float,
) -> x509.CertificateBuilder:
    now = datetime.datetime.fromtimestamp(now_ms // 1000, datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, now + datetime.timedelta(days=days)) - _EARLIER)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_pem(key: ec.EllipticCurvePrivateKey, password: str) -> bytes:
    kept: KeySerializationEncryption = NoEncryption()
    if password:
        kept = BestAvailableEncryption(password.encode())
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, kept)
