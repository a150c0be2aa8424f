"""TLS from PEM files: contexts of servers and clients, and files that are loaded anew.

A keystore is a file with a private key and its certificate chain, a truststore one with the
certificates of authorities; certificate and key may also be two files. What is wrong with them is
said when they are loaded: a key that is not the certificate's, a certificate that has ended, a file
that others may read is for `doctor`.

`Reloading` looks whether files have changed, by their times and by what is in them, and makes a new
context of them. Connections that are open keep the one that they were made with. Files that are
no good leave the former context in use, and `failure` says why.

Source: RFC 8446, RFC 9325 (recommendations); KIP-651 (PEM), KIP-1023; Python's `ssl`.
"""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final, Literal

from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)

from penstock.base.errors import InvalidError

TLS_1_2: Final = "TLSv1.2"
TLS_1_3: Final = "TLSv1.3"
PROTOCOLS: Final = (TLS_1_2, TLS_1_3)
ClientAuth = Literal["none", "requested", "required"]
_VERIFY: Final = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
_VERSIONS: Final = {TLS_1_2: ssl.TLSVersion.TLSv1_2, TLS_1_3: ssl.TLSVersion.TLSv1_3}
FILE_BYTES_MAX: Final = 4 << 20
"""All authorities of a system are a quarter of a megabyte."""


class InvalidTlsFile(InvalidError):
    """A file of keys or certificates that cannot be used; the text has its path, and no secret."""

    code: ClassVar[str] = "invalid_config"


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """What a context is made of; paths, empty where there is none.

    `keystore` has the private key and the chain; `key` is a file of the key alone, where
    `keystore` has only the chain.
    """

    keystore: str = ""
    key: str = ""
    key_password: str = field(default="", repr=False)
    truststore: str = ""

    def paths(self) -> list[str]:
        return [path for path in (self.keystore, self.key, self.truststore) if path]


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions:
    """How TLS is spoken; `ciphers` for TLS 1.2 in OpenSSL's words, empty is the default."""

    protocols: tuple[str, ...] = PROTOCOLS
    ciphers: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateFacts:
    """What is known of the first certificate of a keystore; times in seconds since the epoch."""

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
    """A context for a listener.

    Sessions are not resumed: a resumed one would not ask for the client's certificate again.

    Raises:
        InvalidTlsFile: a file cannot be used.
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
            raise InvalidTlsFile("client certificates are verified by a truststore; there is none")
        _load_authorities(context, files.truststore)
    return context


def client_context(
    files: TlsFiles, options: TlsOptions, *, check_host: bool, now_ms: int
) -> ssl.SSLContext:
    """A context for a client: the server's certificate is always verified, its name if wished.

    Without a truststore the system's authorities count.

    Raises:
        InvalidTlsFile: a file cannot be used.
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
            raise InvalidTlsFile(f"no cipher is named by {options.ciphers}") from None


def _load_chain(context: ssl.SSLContext, files: TlsFiles) -> None:
    password = files.key_password
    try:
        context.load_cert_chain(
            files.keystore, files.key or None, password=lambda: password.encode()
        )
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        raise InvalidTlsFile(f"{files.keystore} cannot be loaded: {_reason(error)}") from None


def _load_authorities(context: ssl.SSLContext, path: str) -> None:
    text = _read(path).decode("ascii", "replace")
    try:
        context.load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError) as error:
        raise InvalidTlsFile(f"{path} has no certificates in PEM: {_reason(error)}") from None


def check_keystore(files: TlsFiles, now_ms: int) -> CertificateFacts:
    """What a keystore's certificate says, once its key has been found to be its own.

    Raises:
        InvalidTlsFile: a file cannot be used, the key is another one's, or the certificate is not
            valid now.
    """
    if not files.keystore:
        raise InvalidTlsFile("there is no keystore: a file with a private key and certificates")
    certificate = load_chain(files.keystore)[0]
    key_path = files.key or files.keystore
    password = files.key_password.encode() or None
    try:
        key = load_pem_private_key(_read(key_path), password)
    except (ValueError, TypeError) as error:
        why = "needs its password" if isinstance(error, TypeError) and not password else "is none"
        raise InvalidTlsFile(f"{key_path}: the private key {why}, in PEM") from None
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    own = key.public_key().public_bytes(*form)
    if certificate.public_key().public_bytes(*form) != own:
        raise InvalidTlsFile(f"{key_path}: the private key is not that of the first certificate")
    facts = facts_of(files.keystore, certificate)
    if facts.not_after <= now_ms / 1000:
        raise InvalidTlsFile(f"{files.keystore}: the certificate ended on {_day(certificate)}")
    return facts


def load_chain(path: str) -> list[x509.Certificate]:
    """The certificates of a file, the own one first.

    Raises:
        InvalidTlsFile: there are none.
    """
    try:
        return x509.load_pem_x509_certificates(_read(path))
    except ValueError:
        raise InvalidTlsFile(f"{path} has no certificates in PEM") from None


def facts_of(path: str, certificate: x509.Certificate) -> CertificateFacts:
    """What a certificate says."""
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


def _read(path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidTlsFile(f"{path} cannot be read: {error.strerror}") from None
    if len(data) > FILE_BYTES_MAX:
        raise InvalidTlsFile(f"{path} has more than {FILE_BYTES_MAX} bytes")
    return data


class Reloading:
    """What is made of files, made anew when they change; reading them blocks.

    `current` is what was made last of good files.
    """

    def __init__(self, files: TlsFiles, make: Callable[[], ssl.SSLContext]) -> None:
        """Raises InvalidTlsFile: the files cannot be used."""
        self._paths = files.paths()
        self._make = make
        self._times = self._look()
        self._digest = self._read_all()
        self.current = make()
        self.failure = ""
        """Why the files as they are now are not in use; empty where they are."""
        self.reloads = 0
        self.failures = 0

    def reload(self, *, look_closely: bool = False) -> bool:
        """Load what has changed; whether there is a new context.

        Files whose times are as they were are only looked into if they should be.
        """
        times = self._look()
        if times == self._times and not look_closely:
            return False
        try:
            digest = self._read_all()
            if digest == self._digest and not self.failure:
                self._times = times
                return False
            self.current = self._make()
        except InvalidTlsFile as error:
            self._times, self.failure = times, str(error)
            self.failures += 1
            return False
        self._times, self._digest, self.failure = times, digest, ""
        self.reloads += 1
        return True

    def _look(self) -> list[tuple[int, int, int]]:
        found = []
        for path in self._paths:
            try:
                status = Path(path).stat()
                found.append((status.st_mtime_ns, status.st_size, status.st_ino))
            except OSError:
                found.append((0, 0, 0))
        return found

    def _read_all(self) -> bytes:
        whole = hashlib.sha256()
        for path in self._paths:
            whole.update(hashlib.sha256(_read(path)).digest())
        return whole.digest()
