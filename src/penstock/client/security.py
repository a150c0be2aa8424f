"""Encryption and authentication of a client's connections, by Kafka's option names.

`ClientSecurity` is made once from options and used by every connection: it has the TLS context, and
begins a SASL exchange for each. `authentication` yields the calls of an exchange, without I/O; the
blocking connection and the pipelined one send them.

Options are those of Kafka's Java client and of librdkafka; where their names differ, both work.
Files are PEM. A server's certificate is always verified.

Source: Kafka's `SslConfigs`, `SaslConfigs`; librdkafka's CONFIGURATION.md; KIP-152, KIP-368.
"""

from __future__ import annotations

import os
import re
from base64 import b64encode
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import unquote, urlsplit

from penstock.base.errors import InvalidSetting
from penstock.base.settings import by_name, load, setting
from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS, Randomness
from penstock.base.urls import without_credentials
from penstock.client.admin_http import AdminSecurity
from penstock.client.errors import BrokerRefused, broker_error
from penstock.client.references import parse_properties, resolve
from penstock.security.credentials import MECHANISMS, OAUTHBEARER, PLAIN
from penstock.security.files import read_file
from penstock.security.sasl import new_nonce
from penstock.security.tls_settings import PROTOCOLS, TlsSettings

if TYPE_CHECKING:
    import ssl

    from penstock.security.sasl import ClientExchange

TOKEN_BYTES_MAX: Final = 16 << 10
AUTHENTICATION_FAILED: Final = 58
SYNONYMS: Final[Mapping[str, str]] = {
    "sasl.mechanisms": "sasl.mechanism",
    "ssl.ca.location": "ssl.truststore.location",
    "ssl.certificate.location": "ssl.keystore.location",
}
"""Kafka's names of librdkafka's options."""
_JAAS: Final = re.compile(
    r"\s*(?:org\.apache\.kafka\.common\.security\.(?:plain\.PlainLoginModule|scram\.ScramLoginModule)"
    r")\s+required(?P<options>(?:\s+\w+\s*=\s*(?:\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|[^\s;]+))*)\s*;\s*"
)
_JAAS_OPTION: Final = re.compile(
    r"(?P<name>\w+)\s*=\s*(?:\"(?P<double>(?:[^\"\\]|\\.)*)\"|'(?P<single>(?:[^'\\]|\\.)*)'"
    r"|(?P<bare>[^\s;]+))"
)


class NotAuthenticated(BrokerRefused):
    code: ClassVar[str] = "sasl_authentication_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSecuritySettings(TlsSettings):
    """Options of a client; without a truststore the system's authorities verify servers."""

    security_protocol: str = setting(
        "PLAINTEXT", "Protocol of the connections to brokers.",
        choices=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    )  # fmt: skip
    sasl_mechanism: str = setting(
        "SCRAM-SHA-512", "SASL mechanism of the client.", choices=MECHANISMS
    )
    sasl_username: str = setting("", "The user's name, for PLAIN and SCRAM.")
    sasl_password: str = setting("", "The user's password.", secret=True)
    sasl_jaas_config: str = setting(
        "", "Username and password in the form of Kafka's Java client: PlainLoginModule or"
        " ScramLoginModule with both.", secret=True,
    )  # fmt: skip
    sasl_oauthbearer_token: str = setting("", "A token, for OAUTHBEARER.", secret=True)
    sasl_oauthbearer_token_endpoint_url: str = setting(
        "", "File of the token as file:///path, which is read again for each connection."
    )
    ssl_truststore_type: str = setting("PEM", "Format of the truststore.", choices=("PEM",))
    ssl_keystore_type: str = setting("PEM", "Format of the keystore.", choices=("PEM",))
    ssl_endpoint_identification_algorithm: str = setting(
        "https", "Whether a server's certificate must be for its host: https, or none.",
        choices=("https", "none", ""),
    )  # fmt: skip
    ssl_enabled_protocols: tuple[str, ...] = setting(
        PROTOCOLS, "Allowed versions of TLS.", choices=PROTOCOLS
    )

    def __post_init__(self) -> None:
        if not self.security_protocol.startswith("SASL_"):
            return
        if self.sasl_mechanism == OAUTHBEARER:
            url = self.sasl_oauthbearer_token_endpoint_url
            if not self.sasl_oauthbearer_token and urlsplit(url).scheme != "file":
                raise InvalidSetting(
                    "sasl.oauthbearer.token.endpoint.url",
                    without_credentials(url),
                    "must be a file:// URL of the token",
                )
        else:
            _credentials(self)


@dataclass(frozen=True, slots=True)
class ClientSecurity:
    """Security of connections, empty for PLAINTEXT; other processes need the options instead."""

    tls: ssl.SSLContext | None = None
    begin: Callable[[], tuple[str, ClientExchange]] | None = field(default=None, repr=False)
    """Function that returns a mechanism and begins an exchange by it."""

    def server_name(self, host: str) -> str | None:
        """Return the name that a server's certificate must have; None for no check."""
        return None if self.tls is None else host


NO_SECURITY: Final = ClientSecurity()


CONFIG_VARIABLE: Final = "PENSTOCK_CLIENT_CONFIG"
"""Variable with the path of an options file, for clients without options. It keeps passwords out of
command lines and Spark plans."""
CONFIG_BYTES_MAX: Final = 1 << 20


def is_option(name: str) -> bool:
    return SYNONYMS.get(name, name) in by_name(ClientSecuritySettings)


def client_security(
    options: Mapping[str, str], randomness: Randomness = SYSTEM_RANDOMNESS
) -> ClientSecurity:
    """Read options, and the files that they name.

    Raises:
        InvalidSetting: an unknown option, an invalid value, or a missing option.
        UnusableFile: a file of keys or certificates cannot be used.
    """
    settings = settings_of(options)
    return ClientSecurity(tls=_context(settings), begin=_begin(settings, randomness))


def admin_security(options: Mapping[str, str]) -> AdminSecurity:
    """Read options for admin addresses: name and password for basic, a token for bearer
    authentication.

    The address decides about TLS; files are read now.

    Raises:
        InvalidSetting, UnusableFile: as `client_security`.
    """
    settings = settings_of(options)
    named = settings.ssl_truststore_location or settings.ssl_keystore_location
    return AdminSecurity(
        tls=_new_context(settings) if named else None, authorization=_authorization(settings)
    )


def _authorization(settings: ClientSecuritySettings) -> Callable[[], str] | None:
    if not settings.security_protocol.startswith("SASL_"):
        return None
    if settings.sasl_mechanism == OAUTHBEARER:
        return lambda: f"Bearer {_token(settings)}"
    said = "Basic " + b64encode(":".join(_credentials(settings)).encode()).decode()
    return lambda: said


def read_security(given: Mapping[str, str] | ClientSecurity | None) -> ClientSecurity:
    """Return existing security, or read options; None reads the file of `CONFIG_VARIABLE`.

    Raises:
        UnusableFile: that file cannot be read.
    """
    if given is None:
        given = environment_options()
    return given if isinstance(given, ClientSecurity) else client_security(given)


def environment_options() -> dict[str, str]:
    """Return the options of the file that `CONFIG_VARIABLE` names; none without it.

    Raises:
        UnusableFile: it cannot be read.
    """
    path = os.environ.get(CONFIG_VARIABLE, "")
    return read_properties(path) if path else {}


def read_properties(path: str) -> dict[str, str]:
    """Return the security options in a file of Kafka's tools; other options are ignored.

    Raises:
        UnusableFile: it cannot be read.
    """
    found = parse_properties(path, read_file(path, CONFIG_BYTES_MAX))
    return {name: value for name, value in found.items() if is_option(name)}


def settings_of(options: Mapping[str, str]) -> ClientSecuritySettings:
    """Read options, and the files that values refer to (`references.py`).

    Raises:
        InvalidSetting: an unknown option, an invalid value, or a missing option.
        UnusableFile: a file that a value refers to cannot be read.
    """
    named = {SYNONYMS.get(name, name): resolve(name, text) for name, text in options.items()}
    return load(ClientSecuritySettings, named)


def _context(settings: ClientSecuritySettings) -> ssl.SSLContext | None:
    return _new_context(settings) if settings.security_protocol.endswith("SSL") else None


def _new_context(settings: ClientSecuritySettings) -> ssl.SSLContext:
    from penstock.security.tls import TlsOptions, client_context, files_of

    return client_context(
        files_of(settings),
        TlsOptions(protocols=settings.ssl_enabled_protocols),
        check_host=settings.ssl_endpoint_identification_algorithm == "https",
        now_ms=SYSTEM_CLOCK.now_ms(),
    )


def _begin(
    settings: ClientSecuritySettings, randomness: Randomness
) -> Callable[[], tuple[str, ClientExchange]] | None:
    mechanism = settings.sasl_mechanism
    if not settings.security_protocol.startswith("SASL_"):
        return None
    if mechanism == OAUTHBEARER:
        from penstock.security.sasl.oauthbearer import OAuthBearerClient

        return lambda: (mechanism, OAuthBearerClient(lambda: _token(settings)))
    user, password = _credentials(settings)
    if mechanism == PLAIN:
        from penstock.security.sasl.plain import PlainClient

        return lambda: (mechanism, PlainClient(user, password))

    from penstock.security.sasl.scram import ScramClient

    def begin() -> tuple[str, ClientExchange]:
        return mechanism, ScramClient(mechanism, user, password, nonce=new_nonce(randomness))

    return begin


def _credentials(settings: ClientSecuritySettings) -> tuple[str, str]:
    user, password = settings.sasl_username, settings.sasl_password
    if settings.sasl_jaas_config:
        found = _JAAS.fullmatch(settings.sasl_jaas_config)
        if found is None:
            raise InvalidSetting(
                "sasl.jaas.config", "[hidden]",
                "must read ….PlainLoginModule required username=… password=…; or ScramLoginModule",
            )  # fmt: skip
        options = {
            option["name"]: _value(option) for option in _JAAS_OPTION.finditer(found["options"])
        }
        user, password = options.get("username", user), options.get("password", password)
    if not user or not password:
        raise InvalidSetting(
            "sasl.username",
            user,
            f"{settings.sasl_mechanism} needs sasl.username and sasl.password",
        )
    return user, password


def _value(found: re.Match[str]) -> str:
    quoted = found["double"] if found["double"] is not None else found["single"]
    return found["bare"] if quoted is None else re.sub(r"\\(.)", r"\1", quoted)


def _token(settings: ClientSecuritySettings) -> str:
    if settings.sasl_oauthbearer_token:
        return settings.sasl_oauthbearer_token
    path = Path(unquote(urlsplit(settings.sasl_oauthbearer_token_endpoint_url).path))
    try:
        with path.open("rb") as file:
            return file.read(TOKEN_BYTES_MAX).decode("ascii", "replace").strip()
    except OSError as error:
        raise NotAuthenticated(f"the token {path} cannot be read: {error.strerror}") from None


RENEW_SHARE: Final = 0.85
"""Share of a session's length after which a connection authenticates again, as in Kafka."""
RECORD_BYTES: Final = 16 << 10


def gathered(pieces: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """Yield pieces with the small ones joined, since TLS makes a record of each write."""
    small: list[bytes | memoryview] = []
    size = 0
    for piece in pieces:
        if size and size + len(piece) > RECORD_BYTES:
            yield b"".join(small)
            small, size = [], 0
        if len(piece) >= RECORD_BYTES:
            yield piece
        else:
            small.append(piece)
            size += len(piece)
    if small:
        yield b"".join(small)


Authenticating = Generator[tuple[str, Mapping[str, Any]], Any, int]
"""Generator of calls by name and body, which receives their responses; returns the session's length
in milliseconds, or 0."""


def authentication(security: ClientSecurity, where: str) -> Authenticating:
    """Authenticate one connection; may compute for milliseconds between two calls.

    Raises:
        NotAuthenticated: the broker rejected the client, or does not support the mechanism.
        ServerUntrusted: the broker failed to prove its identity.
    """
    if security.begin is None:
        return 0
    mechanism, exchange = security.begin()
    agreed = yield "SaslHandshake", {"mechanism": mechanism}
    if agreed.error_code:
        offered = ", ".join(agreed.mechanisms) or "none"
        raise NotAuthenticated(f"{where} does not support mechanism {mechanism}, only {offered}")
    message = exchange.respond(b"")
    while True:
        answer = yield "SaslAuthenticate", {"auth_bytes": message}
        if answer.error_code == AUTHENTICATION_FAILED:
            raise NotAuthenticated(f"{where} did not authenticate: {answer.error_message}")
        if answer.error_code:
            raise broker_error(int(answer.error_code), f"authenticating at {where}")
        if not exchange.done:
            message = exchange.respond(answer.auth_bytes)
        if exchange.done:
            lifetime = getattr(answer, "session_lifetime", None)
            return 0 if lifetime is None else int(lifetime.total_seconds() * 1000)


def next_call(calls: Authenticating, answer: Any) -> tuple[str, Mapping[str, Any]] | int:
    """Return the next call of an authentication, or its result when it has ended."""
    try:
        return calls.send(answer)
    except StopIteration as end:
        return int(end.value)
