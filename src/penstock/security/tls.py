"""TLS from PEM files: contexts of servers and clients, and files that are reloaded when they
change.

A keystore is a file with a private key and its certificate chain, or two files; a truststore has
certificates of authorities. Invalid files are rejected when they are loaded. Open connections keep
the context that they were made with.

Source: RFC 8446, RFC 9325 (recommendations); KIP-651 (PEM), KIP-1023; Python's `ssl`.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import Final, Literal

from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)
from msgspec import Struct

from penstock.security.files import UnusableFile, read_file
from penstock.security.tls_settings import PROTOCOLS, TlsSettings

ClientAuth = Literal["none", "requested", "required"]
_VERIFY: Final = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
_VERSIONS: Final = dict(
    zip(PROTOCOLS, (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3), strict=True)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Files of a context; empty paths where there is none.

    `keystore` has the private key and the chain; `key` is a file with the key alone, if `keystore`
    has only the chain.
    """

    keystore: str = ""
    key: str = ""
    key_password: str = field(default="", repr=False)
    truststore: str = ""

    def paths(self) -> list[str]:
        return [path for path in (self.keystore, self.key, self.truststore) if path]


def files_of(settings: TlsSettings) -> TlsFiles:
    return TlsFiles(
        keystore=settings.ssl_keystore_location,
        key=settings.ssl_key_location,
        key_password=settings.ssl_key_password,
        truststore=settings.ssl_truststore_location,
    )


class TlsOptions(Struct, frozen=True, kw_only=True):
    """Options of TLS; `ciphers` are those of TLS 1.2 in OpenSSL's names, empty is the default."""

    protocols: tuple[str, ...] = PROTOCOLS
    ciphers: str = ""


class CertificateFacts(Struct, frozen=True, kw_only=True):
    """Facts about the first certificate of a keystore; times in seconds since the epoch."""

    path: str
    subject: str
    serial: str
    not_before: float
    not_after: float

    def days_left(self, now_ms: int) -> float:
        return (self.not_after - now_ms / 1000) / 86_400


def server_context(
    files: TlsFiles, options: TlsOptions, client_auth: ClientAuth, now_ms: int
) -> ssl.SSLContext:
    """Return a listener's context; sessions are not resumed, since that would skip client
    certificates.

    Raises:
        UnusableFile: a file cannot be used.
    """
    check_keystore(files, now_ms)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _set_options(context, options)
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.num_tickets = 0
    _load_chain(context, files)
    context.verify_mode = _VERIFY[client_auth]
    if client_auth != "none":
        if not files.truststore:
            raise UnusableFile("client certificates are verified by a truststore; there is none")
        _load_authorities(context, files.truststore)
    return context


def client_context(
    files: TlsFiles, options: TlsOptions, *, check_host: bool, now_ms: int
) -> ssl.SSLContext:
    """Return a client's context: verifies the server's certificate and, if set, its name.

    Without a truststore the system's authorities are used.

    Raises:
        UnusableFile: a file cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _set_options(context, options)
    context.check_hostname = check_host
    if files.truststore:
        _load_authorities(context, files.truststore)
    else:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    if files.keystore:
        check_keystore(files, now_ms)
        _load_chain(context, files)
    return context


def _set_options(context: ssl.SSLContext, options: TlsOptions) -> None:
    versions = [_VERSIONS[name] for name in PROTOCOLS if name in options.protocols]
    context.minimum_version, context.maximum_version = versions[0], versions[-1]
    context.options |= ssl.OP_NO_COMPRESSION
    if options.ciphers:
        try:
            context.set_ciphers(options.ciphers)
        except ssl.SSLError:
            raise UnusableFile(f"no cipher is named by {options.ciphers}") from None


def _load_chain(context: ssl.SSLContext, files: TlsFiles) -> None:
    password = files.key_password
    try:
        context.load_cert_chain(
            files.keystore, files.key or None, password=lambda: password.encode()
        )
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        raise UnusableFile(f"{files.keystore} cannot be loaded: {_reason(error)}") from None


def _load_authorities(context: ssl.SSLContext, path: str) -> None:
    text = read_file(path).decode("ascii", "replace")
    try:
        context.load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError) as error:
        raise UnusableFile(f"{path} has no certificates in PEM: {_reason(error)}") from None


def check_keystore(files: TlsFiles, now_ms: int) -> CertificateFacts:
    """Return the facts of a keystore's certificate, after checking that the key belongs to it.

    Raises:
        UnusableFile: a file cannot be used, the key is another one's, or the certificate is not
            valid now.
    """
    if not files.keystore:
        raise UnusableFile("there is no keystore: a file with a private key and certificates")
    certificate = load_chain(files.keystore)[0]
    key_path = files.key or files.keystore
    password = files.key_password.encode() or None
    try:
        key = load_pem_private_key(read_file(key_path), password)
    except (ValueError, TypeError) as error:
        why = "needs its password" if isinstance(error, TypeError) and not password else "is none"
        raise UnusableFile(f"{key_path}: the private key {why}, in PEM") from None
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    own = key.public_key().public_bytes(*form)
    if certificate.public_key().public_bytes(*form) != own:
        raise UnusableFile(f"{key_path}: the private key is not that of the first certificate")
    facts = facts_of(files.keystore, certificate)
    if facts.not_after <= now_ms / 1000:
        raise UnusableFile(f"{files.keystore}: the certificate ended on {_day(certificate)}")
    return facts


def load_chain(path: str) -> list[x509.Certificate]:
    """Return the certificates of a file, the leaf first.

    Raises:
        UnusableFile: the file has none.
    """
    try:
        return x509.load_pem_x509_certificates(read_file(path))
    except ValueError:
        raise UnusableFile(f"{path} has no certificates in PEM") from None


def facts_of(path: str, certificate: x509.Certificate) -> CertificateFacts:
    """Return the facts of a certificate."""
    return CertificateFacts(
        path=path,
        subject=certificate.subject.rfc4514_string(),
        serial=f"{certificate.serial_number:x}",
        not_before=certificate.not_valid_before_utc.timestamp(),
        not_after=certificate.not_valid_after_utc.timestamp(),
    )


def _day(certificate: x509.Certificate) -> str:
    return certificate.not_valid_after_utc.date().isoformat()


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or getattr(error, "strerror", None) or "not as expected"
