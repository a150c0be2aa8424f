"""SCRAM credentials: salted hashes, from which the password cannot be computed.

A credential belongs to one SCRAM mechanism. The password is salted and hashed `iterations` times
(PBKDF2), which gives two keys. The client proves that it knows the first key, of which only a hash
is stored (`stored_key`). The server proves its identity with the second key (`server_key`). PLAIN
uses the same credentials: the password is hashed again, and the keys are compared.

Hashing is slow on purpose: it takes milliseconds and must not run on an event loop. It releases the
interpreter's lock.

The text form is PostgreSQL's: `SCRAM-SHA-256$4096:salt$stored_key:server_key`, with base64 values.

Source: RFC 5802, RFC 7677; KIP-84 (least iterations, passwords as they are in UTF-8), KIP-554 (most
iterations); PostgreSQL's `pg_authid.rolpassword`.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import itertools
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, NoReturn, Protocol

from penstock.base.errors import InvalidError

if TYPE_CHECKING:
    from penstock.base.system import Randomness


SCRAM_SHA_256: Final = "SCRAM-SHA-256"
SCRAM_SHA_512: Final = "SCRAM-SHA-512"
HASHES: Final[dict[str, str]] = {SCRAM_SHA_256: "sha256", SCRAM_SHA_512: "sha512"}
"""Name of each mechanism's hash in hashlib, from the weakest to the strongest."""
NUMBERS: Final[dict[str, int]] = {SCRAM_SHA_256: 1, SCRAM_SHA_512: 2}
"""Number of each mechanism in Kafka's protocol (KIP-554)."""
BY_NUMBER: Final = {number: mechanism for mechanism, number in NUMBERS.items()}
PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
MECHANISMS: Final = (PLAIN, *HASHES, OAUTHBEARER)
"""Supported SASL mechanisms."""
HASH_BYTES: Final[dict[str, int]] = {SCRAM_SHA_256: 32, SCRAM_SHA_512: 64}

ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 16_384
"""Limit of stored credentials, as in Kafka; it keeps verification fast enough."""
ITERATIONS: Final = 4096
"""Default number of iterations."""
SALT_BYTES: Final = 16
SALT_BYTES_MIN: Final = 8
SALT_BYTES_MAX: Final = 1024
SHAPES_USERS_MAX: Final = 1000
"""Most users whose credentials are counted to choose the shapes of decoys."""
PASSWORD_BYTES_MAX: Final = 1024
"""Longest password; hashing megabytes would only waste time."""


class InvalidCredential(InvalidError):
    """Text that is not a valid credential; the message never contains the text."""

    code: ClassVar[str] = "unacceptable_credential"


class Shape(NamedTuple):
    """Shape of a credential: the properties that a client can observe or measure.

    Decoys for unknown users have the shapes of real credentials, so that they look alike.
    A SCRAM server sends salt and iterations to the client, and both determine its response time.
    """

    mechanism: str
    salt_bytes: int
    iterations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramCredential:
    """Credential of one user for one mechanism; salt and keys are excluded from `repr`.

    Raises:
        InvalidCredential: the mechanism is unknown, or a size or the iterations are out of bounds.
    """

    mechanism: str
    salt: bytes = field(repr=False)
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    def __post_init__(self) -> None:
        size = HASH_BYTES[_known(self.mechanism)]
        _check_iterations(self.iterations)
        if not SALT_BYTES_MIN <= len(self.salt) <= SALT_BYTES_MAX:
            raise InvalidCredential(
                f"the salt must have {SALT_BYTES_MIN} to {SALT_BYTES_MAX} bytes, not"
                f" {len(self.salt)}"
            )
        for name, key in (("stored", self.stored_key), ("server", self.server_key)):
            if len(key) != size:
                raise InvalidCredential(
                    f"the {name} key of {self.mechanism} must have {size} bytes, not {len(key)}"
                )

    @property
    def shape(self) -> Shape:
        return Shape(self.mechanism, len(self.salt), self.iterations)

    def text(self) -> str:
        """Return the text form. Keep it secret, because it allows dictionary attacks."""
        salt, stored, server = [
            b64encode(value).decode() for value in (self.salt, self.stored_key, self.server_key)
        ]
        return f"{self.mechanism}${self.iterations}:{salt}${stored}:{server}"


class Credentials(Protocol):
    """Port of a credential store; it is called on the event loop and must answer from memory."""

    def credential(self, mechanism: str, user: str) -> ScramCredential | None:
        """Return the credential of a user for a mechanism; None if the user has none."""
        ...

    def shapes(self, mechanism: str) -> Mapping[Shape, int]:
        """Return the number of users by the shape of their credential for a mechanism.

        For PLAIN, a user's first credential in the order of `HASHES` counts.
        """
        ...


def shapes_of(kept: Iterable[Mapping[str, ScramCredential]]) -> Mapping[str, Mapping[Shape, int]]:
    """Count the shapes of users' credentials, by mechanism.

    `kept` has one item per user: the credentials by mechanism. Only the first `SHAPES_USERS_MAX`
    users are counted.
    """
    counts: dict[str, Counter[Shape]] = {mechanism: Counter() for mechanism in (PLAIN, *HASHES)}
    for credentials in itertools.islice(kept, SHAPES_USERS_MAX):
        shapes = {name: credentials[name].shape for name in HASHES if name in credentials}
        for mechanism, shape in shapes.items():
            counts[mechanism][shape] += 1
        counts[PLAIN].update(list(shapes.values())[:1])
    return counts


def parse_credential(text: str) -> ScramCredential:
    """Parse a credential from its text form.

    Raises:
        InvalidCredential: the text is not a valid credential.
    """
    mechanism, _, rest = text.strip().partition("$")
    parameters, _, keys = rest.partition("$")
    iterations, _, salt = parameters.partition(":")
    stored, _, server = keys.partition(":")
    if not (iterations.isascii() and iterations.isdigit() and len(iterations) <= 9):
        _fail_form()
    try:
        decoded = [b64decode(part, validate=True) for part in (salt, stored, server)]
    except (binascii.Error, ValueError):
        _fail_form()
    return ScramCredential(
        mechanism=mechanism,
        iterations=int(iterations),
        salt=decoded[0],
        stored_key=decoded[1],
        server_key=decoded[2],
    )


def _fail_form() -> NoReturn:
    raise InvalidCredential(
        "a credential must have the form MECHANISM$ITERATIONS:SALT$STORED_KEY:SERVER_KEY"
    ) from None


# Deriving


def new_salt(randomness: Randomness) -> bytes:
    """Return a random salt."""
    return randomness.bits(8 * SALT_BYTES).to_bytes(SALT_BYTES)


def salted_password(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    """Return RFC 5802's `SaltedPassword`, computed by PBKDF2; this is slow.

    Raises:
        InvalidCredential: the mechanism is unknown, or the password is empty or too long.
    """
    secret = password.encode("utf-8", "surrogatepass")
    if not 0 < len(secret) <= PASSWORD_BYTES_MAX:
        raise InvalidCredential(f"a password must have 1 to {PASSWORD_BYTES_MAX} bytes")
    return hashlib.pbkdf2_hmac(HASHES[_known(mechanism)], secret, salt, iterations)


def derive(mechanism: str, password: str, *, salt: bytes, iterations: int) -> ScramCredential:
    """Return the credential of a password; this is slow.

    Raises:
        InvalidCredential: the mechanism is unknown, or password, salt or iterations are out of
            bounds.
    """
    _check_iterations(iterations)
    return credential_of(
        mechanism,
        salted_password(mechanism, password, salt, iterations),
        salt=salt,
        iterations=iterations,
    )


def credential_of(
    mechanism: str, salted: bytes, *, salt: bytes, iterations: int
) -> ScramCredential:
    """Return the credential of a salted password, which AlterUserScramCredentials sends.

    Raises:
        InvalidCredential: the salted password has the wrong size, or another argument is invalid as
            in `derive`.
    """
    name = HASHES[_known(mechanism)]
    if len(salted) != HASH_BYTES[mechanism]:
        raise InvalidCredential(
            f"a salted password of {mechanism} must have {HASH_BYTES[mechanism]} bytes, not"
            f" {len(salted)}"
        )
    client_key = hmac.digest(salted, b"Client Key", name)
    return ScramCredential(
        mechanism=mechanism,
        salt=salt,
        iterations=iterations,
        stored_key=hashlib.new(name, client_key).digest(),
        server_key=hmac.digest(salted, b"Server Key", name),
    )


def matches(credential: ScramCredential, password: str) -> bool:
    """Return whether a password matches a credential; this is slow in either case."""
    try:
        derived = derive(
            credential.mechanism,
            password,
            salt=credential.salt,
            iterations=credential.iterations,
        )
    except InvalidCredential:
        return False
    return hmac.compare_digest(derived.stored_key, credential.stored_key)


def credential_or_decoy(
    credentials: Credentials, mechanism: str, user: str, secret: bytes
) -> tuple[ScramCredential, bool]:
    """Return a user's credential for a mechanism, and True; for an unknown user a decoy, and False.

    A decoy matches no password. Neither its salt nor the response time reveals that the user does
    not exist. A decoy has the shape of some user's credential, and a name always gets the same
    decoy. `secret` is the seed of decoys, which only brokers know.
    """
    for name in HASHES if mechanism == PLAIN else (mechanism,):
        found = credentials.credential(name, user)
        if found is not None:
            return found, True
    return _decoy(secret, credentials.shapes(mechanism), mechanism, user), False


def _decoy(
    secret: bytes, shapes: Mapping[Shape, int], mechanism: str, user: str
) -> ScramCredential:
    own = f"{mechanism}\0{user}".encode("utf-8", "surrogatepass")

    def some(purpose: str, count: int) -> bytes:
        return hashlib.shake_256(secret + f"{purpose}\0".encode() + own).digest(count)

    usual = Shape(SCRAM_SHA_256 if mechanism == PLAIN else mechanism, SALT_BYTES, ITERATIONS)
    shape, point = usual, int.from_bytes(some("shape", 8)) * sum(shapes.values()) >> 64
    for shape in sorted(shapes):
        point -= shapes[shape]
        if point < 0:
            break
    size = HASH_BYTES[_known(shape.mechanism)]
    return ScramCredential(
        mechanism=shape.mechanism,
        salt=some(f"salt of {shape.salt_bytes}", shape.salt_bytes),
        iterations=shape.iterations,
        stored_key=some("stored", size),
        server_key=some("server", size),
    )


def _known(mechanism: str) -> str:
    if mechanism not in HASHES:
        raise InvalidCredential(f"mechanism {mechanism!r:.60} must be one of {', '.join(HASHES)}")
    return mechanism


def _check_iterations(iterations: int) -> None:
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise InvalidCredential(
            f"iterations must be from {ITERATIONS_MIN} to {ITERATIONS_MAX}, not {iterations}"
        )


# File of users and their credentials, one per line: `alice:SCRAM-SHA-512$4096:…`.
#
# A user may have one line for each mechanism. Empty lines, and lines that begin with `#`, are
# ignored.


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
