"""Encryption and authentication of a client's connections, by Kafka's option names.

`ClientSecurity` is created once from options, and used by every connection. It holds the TLS
context, and begins a SASL exchange for each connection. `authentication` yields the calls of an
exchange without I/O. The blocking connection and the pipelined one send these calls.

Options are those of Kafka's Java client and of librdkafka; if their names differ, both are
accepted. Files are PEM. A server's certificate is always verified.

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
from penstock.security.credentials import MECHANISMS, OAUTHBEARER, PLAIN
from penstock.security.files import UnusableFile, read_file
from penstock.security.sasl import new_nonce
from penstock.security.tls_settings import PROTOCOLS, TlsSettings

if TYPE_CHECKING:
    import ssl

    from penstock.security.sasl import ClientExchange


# References in option values to files and environment variables, and parsing of option files.
#
# `parse_properties` reads Java's properties format: `:` or a blank in place of `=`, continued
# lines, escapes. `${file:PATH:KEY}` is the value of a key in such a file, as for Kafka's clients.
# `${file:PATH}` is the text of a whole file. It is the usual form for a password file, but Apache
# Kafka does not support it. `${env:NAME}` is an environment variable. A relative path starts at the
# working directory, as in other options.
#
# Source: `java.util.Properties.load`; Kafka's `FileConfigProvider` (KIP-297) and
# `EnvVarConfigProvider` (KIP-887).


REFERENCE_BYTES_MAX: Final = 1 << 20
_REFERENCE: Final = re.compile(r"\$\{(?P<kind>file|env):(?P<name>[^:}]+)(?::(?P<key>[^}]+))?\}")
_FORMS: Final = (
    "may refer to a file as ${file:PATH}, to a key of a properties file as"
    " ${file:PATH:KEY}, and to an environment variable as ${env:NAME}; if the value itself"
    " contains ${, write it to a file"
)
_BLANKS: Final = " \t\f"
_PROPERTY: Final = re.compile(
    rf"((?:[^\\=:{_BLANKS}]|\\.)*)[{_BLANKS}]*[=:]?[{_BLANKS}]*(.*)", re.DOTALL
)
_ESCAPE: Final = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|(.))", re.DOTALL)
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def resolve(name: str, value: str) -> str:
    """Return an option's value with each `${…}` replaced by the text to which it refers.

    `${file:PATH}` is a file's text, `${file:PATH:KEY}` a key of a properties file, `${env:NAME}` an
    environment variable. So passwords need not be in the options themselves.

    Args:
        name: the option's name, for messages.
        value: the option's text; without `${` it is returned unchanged.

    Raises:
        InvalidSetting: a reference is invalid, or a key or variable does not exist. The message
            never contains the value.
        UnusableFile: a file cannot be read.
    """
    if "${" not in value:
        return value
    if "${" in _REFERENCE.sub("", value):
        raise InvalidSetting(name, "[hidden]", _FORMS)
    return _REFERENCE.sub(lambda found: _named(name, found), value)


def referenced_files(value: str) -> list[str]:
    return [found["name"] for found in _REFERENCE.finditer(value) if found["kind"] == "file"]


def _named(option: str, found: re.Match[str]) -> str:
    name, key = found["name"], found["key"]
    if found["kind"] == "env":
        if key is not None or name not in os.environ:
            raise InvalidSetting(option, found[0], f"the environment has no variable {name}")
        return os.environ[name]
    data = read_file(name, REFERENCE_BYTES_MAX)
    if key is None:
        return data.decode(errors="surrogateescape").removesuffix("\n").removesuffix("\r")
    properties = parse_properties(name, data)
    if key not in properties:
        raise InvalidSetting(option, found[0], f"{name} has no key {key}")
    return properties[key]


def parse_properties(path: str, data: bytes) -> dict[str, str]:
    r"""Decode a properties file to names and values; the last value of a repeated name counts.

    Args:
        path: the file's name, for messages.
        data: the file's bytes; bytes that are not UTF-8 are decoded as Latin-1, as in Java.

    Raises:
        UnusableFile: a `\u` is not followed by four hexadecimal digits.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    try:
        return dict(map(_property, _logical_lines(text)))
    except ValueError:
        raise UnusableFile(
            f"{path} has a \\u without four hexadecimal digits: write \\u00fc for ü"
        ) from None


def _logical_lines(text: str) -> Iterator[str]:
    line = ""
    for part in re.split(r"\r\n|\r|\n", text):
        natural = part.lstrip(_BLANKS)
        if not line and natural[:1] in ("", "#", "!"):
            continue
        continues = (len(natural) - len(natural.rstrip("\\"))) % 2
        line += natural[: len(natural) - continues]
        if not continues:
            yield line
            line = ""
    if line:
        yield line


def _property(line: str) -> tuple[str, str]:
    """Split a line into name and value; raise ValueError for an invalid escape."""
    name, value = re.fullmatch(_PROPERTY, line).groups()  # type: ignore[union-attr]
    return _unescaped(name), _unescaped(value)


def _unescaped(text: str) -> str:
    def replaced(found: re.Match[str]) -> str:
        if found[1]:
            return chr(int(found[1], 16))
        if found[2] == "u":
            raise ValueError(text)
        return _ESCAPES.get(found[2], found[2])

    units = _ESCAPE.sub(replaced, text)
    return units.encode("utf-16-le", "surrogatepass").decode("utf-16-le")


TOKEN_BYTES_MAX: Final = 16 << 10
AUTHENTICATION_FAILED: Final = 58
SYNONYMS: Final[Mapping[str, str]] = {
    "sasl.mechanisms": "sasl.mechanism",
    "ssl.ca.location": "ssl.truststore.location",
    "ssl.certificate.location": "ssl.keystore.location",
}
"""Kafka's option names by librdkafka's names."""
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
    """Security options of a client; without a truststore the system's authorities count."""

    security_protocol: str = setting(
        "PLAINTEXT", "Protocol of the connections to brokers.",
        choices=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    )  # fmt: skip
    sasl_mechanism: str = setting(
        "SCRAM-SHA-512", "SASL mechanism with which the client authenticates.", choices=MECHANISMS
    )
    sasl_username: str = setting("", "The user's name, for PLAIN and SCRAM.")
    sasl_password: str = setting("", "The user's password.", secret=True)
    sasl_jaas_config: str = setting(
        "", "Username and password in the form of Kafka's Java client: a PlainLoginModule or"
        " ScramLoginModule with both.", secret=True,
    )  # fmt: skip
    sasl_oauthbearer_token: str = setting("", "A token, for OAUTHBEARER.", secret=True)
    sasl_oauthbearer_token_endpoint_url: str = setting(
        "",
        "URL of the token's file, such as file:///path. The file is read again for each"
        " connection.",
    )
    ssl_truststore_type: str = setting("PEM", "Format of the truststore.", choices=("PEM",))
    ssl_keystore_type: str = setting("PEM", "Format of the keystore.", choices=("PEM",))
    ssl_endpoint_identification_algorithm: str = setting(
        "https", "Whether a server's certificate must match its host name: https, or none.",
        choices=("https", "none", ""),
    )  # fmt: skip
    ssl_enabled_protocols: tuple[str, ...] = setting(
        PROTOCOLS, "TLS versions that the client may use.", choices=PROTOCOLS
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
                    "must be a file:// URL of the file with the token",
                )
        else:
            _credentials(self)


@dataclass(frozen=True, slots=True)
class ClientSecurity:
    """Security of a client's connections; both fields are None for PLAINTEXT.

    It cannot be passed to other processes; pass the options instead.
    """

    tls: ssl.SSLContext | None = None
    begin: Callable[[], tuple[str, ClientExchange]] | None = field(default=None, repr=False)
    """Function that begins a SASL exchange, and returns its mechanism and the exchange."""

    def server_name(self, host: str) -> str | None:
        """Return the host name for which the server's certificate is checked; None without TLS."""
        return None if self.tls is None else host


NO_SECURITY: Final = ClientSecurity()


CONFIG_VARIABLE: Final = "PENSTOCK_CLIENT_CONFIG"
"""Environment variable with the path of an options file, for clients that are given no options.

With it, passwords are not in command lines or Spark plans.
"""
CONFIG_BYTES_MAX: Final = 1 << 20


def is_option(name: str) -> bool:
    return SYNONYMS.get(name, name) in by_name(ClientSecuritySettings)


def client_security(
    options: Mapping[str, str], randomness: Randomness = SYSTEM_RANDOMNESS
) -> ClientSecurity:
    """Return the security that options describe; files that they name are read now.

    Raises:
        InvalidSetting: an option is unknown, invalid, or missing.
        UnusableFile: a file with keys or certificates cannot be used.
    """
    settings = settings_of(options)
    return ClientSecurity(tls=_context(settings), begin=_begin(settings, randomness))


def admin_security(options: Mapping[str, str]) -> AdminSecurity:
    """Return the security of admin addresses that options describe; files are read now.

    A username and password are used for basic authentication, a token for bearer authentication.
    The scheme of an address decides whether TLS is used.

    Raises:
        InvalidSetting, UnusableFile: as for `client_security`.
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
    """Return `given` if it is a `ClientSecurity`, or else the security that the options describe.

    For None, the options are read from the file that the variable `CONFIG_VARIABLE` names.

    Raises:
        UnusableFile: the file cannot be read.
    """
    if given is None:
        given = environment_options()
    return given if isinstance(given, ClientSecurity) else client_security(given)


def environment_options() -> dict[str, str]:
    """Return the options in the file that the variable `CONFIG_VARIABLE` names; empty if it is
    unset.

    Raises:
        UnusableFile: the file cannot be read.
    """
    path = os.environ.get(CONFIG_VARIABLE, "")
    return read_properties(path) if path else {}


def read_properties(path: str) -> dict[str, str]:
    """Return the security options in a file for Kafka's tools; other options are ignored.

    Raises:
        UnusableFile: the file cannot be read.
    """
    found = parse_properties(path, read_file(path, CONFIG_BYTES_MAX))
    return {name: value for name, value in found.items() if is_option(name)}


def settings_of(options: Mapping[str, str]) -> ClientSecuritySettings:
    """Return options as checked settings; references such as `${file:PATH}` are resolved.

    Raises:
        InvalidSetting: an option is unknown, invalid, or missing.
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
                "must have the form ….PlainLoginModule required username=… password=…; or the"
                " same with ScramLoginModule",
            )  # fmt: skip
        options = {
            option["name"]: _value(option) for option in _JAAS_OPTION.finditer(found["options"])
        }
        user, password = options.get("username", user), options.get("password", password)
    if not user or not password:
        raise InvalidSetting(
            "sasl.username",
            user,
            f"{settings.sasl_mechanism} requires sasl.username and sasl.password",
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
        raise NotAuthenticated(f"the token file {path} cannot be read: {error.strerror}") from None


RENEW_SHARE: Final = 0.85
"""Share of a session's lifetime after which a connection authenticates again, as in Kafka."""
RECORD_BYTES: Final = 16 << 10


def gathered(pieces: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """Yield pieces with small ones joined, because TLS makes a record of each write."""
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
"""Generator that yields the name and body of each call and receives the response.

It returns the session's lifetime in milliseconds, or 0 for no limit.
"""


def authentication(security: ClientSecurity, where: str) -> Authenticating:
    """Yield the calls that authenticate one connection; the caller sends back each response.

    The return value is the lifetime of the SASL session in milliseconds, 0 for no limit. Between
    two calls it may compute for milliseconds, because it hashes a password.

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
        raise NotAuthenticated(
            f"{where} does not support SASL mechanism {mechanism}; it supports {offered}"
        )
    message = exchange.respond(b"")
    while True:
        answer = yield "SaslAuthenticate", {"auth_bytes": message}
        if answer.error_code == AUTHENTICATION_FAILED:
            raise NotAuthenticated(f"{where} rejected the authentication: {answer.error_message}")
        if answer.error_code:
            raise broker_error(int(answer.error_code), f"authenticating at {where}")
        if not exchange.done:
            message = exchange.respond(answer.auth_bytes)
        if exchange.done:
            lifetime = getattr(answer, "session_lifetime", None)
            return 0 if lifetime is None else int(lifetime.total_seconds() * 1000)


def next_call(calls: Authenticating, answer: Any) -> tuple[str, Mapping[str, Any]] | int:
    """Pass a response to an `authentication`, or None to begin it; return its next call.

    After the last call, it returns the lifetime of the SASL session in milliseconds.
    """
    try:
        return calls.send(answer)
    except StopIteration as end:
        return int(end.value)
