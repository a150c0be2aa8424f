"""TLS contexts of servers and clients, from PEM files.

A keystore is one file with a private key and its certificate chain, or two files. A truststore has
the certificates of authorities. Invalid files are rejected when a context is built. Files are
reloaded when they change (`files.Reloading`); open connections keep the context that they were made
with.

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
    """Files of a TLS context; the path is empty if there is no such file.

    `keystore` has the private key and the certificate chain. If it has only the chain, `key` is the
    file with the private key.
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
    """Protocol versions and ciphers of a TLS context.

    `ciphers` is an OpenSSL cipher list for TLS 1.2; empty is OpenSSL's default.
    """

    protocols: tuple[str, ...] = PROTOCOLS
    ciphers: str = ""


class CertificateFacts(Struct, frozen=True, kw_only=True):
    """Facts about the first certificate of a keystore; times are seconds since 1970."""

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
    """Return the TLS context of a listener.

    Sessions are never resumed, because that would skip the check of client certificates.

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
            raise UnusableFile(
                "ssl.truststore.location is not set, but client certificates must be verified"
            )
        _load_authorities(context, files.truststore)
    return context


def client_context(
    files: TlsFiles, options: TlsOptions, *, check_host: bool, now_ms: int
) -> ssl.SSLContext:
    """Return the TLS context of a client.

    It verifies the server's certificate and, with `check_host`, the server's name. Without a
    truststore, the system's authorities are used.

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
            raise UnusableFile(f"OpenSSL knows no cipher of {options.ciphers!r}") from None


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
    """Return the facts of a keystore's first certificate, after checking it and its private key.

    Raises:
        UnusableFile: a file cannot be used, the key belongs to another certificate, or the
            certificate has expired or is not valid yet.
    """
    if not files.keystore:
        raise UnusableFile(
            "ssl.keystore.location is not set. Set it to a file with a private key and certificates"
        )
    certificate = load_chain(files.keystore)[0]
    key_path = files.key or files.keystore
    password = files.key_password.encode() or None
    try:
        key = load_pem_private_key(read_file(key_path), password)
    except (ValueError, TypeError) as error:
        locked = isinstance(error, TypeError) and not password
        why = "needs a password" if locked else "is missing or invalid"
        raise UnusableFile(f"{key_path}: the private key in PEM {why}") from None
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    own = key.public_key().public_bytes(*form)
    if certificate.public_key().public_bytes(*form) != own:
        raise UnusableFile(f"{key_path}: the private key does not match the first certificate")
    facts = facts_of(files.keystore, certificate)
    if facts.not_after <= now_ms / 1000:
        day = certificate.not_valid_after_utc.date()
        raise UnusableFile(f"{files.keystore}: the certificate expired on {day}")
    if facts.not_before > now_ms / 1000:
        first = certificate.not_valid_before_utc.isoformat(timespec="seconds")
        raise UnusableFile(
            f"{files.keystore}: the certificate is not valid before {first}; check the clock"
        )
    return facts


def load_chain(path: str) -> list[x509.Certificate]:
    """Return the certificates of a PEM file, in its order: the own certificate first.

    Raises:
        UnusableFile: the file has no certificates.
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


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or getattr(error, "strerror", None) or "invalid content"
