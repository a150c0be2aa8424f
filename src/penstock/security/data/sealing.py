"""Format of an encrypted value, and its encryption and decryption.

    offset  bytes  what
    0       1      version, 1
    1       8      key id, random; of one subject's data key
    9       12     nonce, random
    21      n      the value, encrypted by AES-256-GCM
    21+n    16     tag

Associated data are version, key id and subject, so that a value that was copied into another
subject's row does not open there. A key serves at most 2³² values with random nonces (NIST SP
800-38D, 8.3): of one subject.

A value opens to itself; to nothing (None) where its key is gone; and is refused with a reason
where it is not what `seal` wrote for this subject.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from cryptography.exceptions import InvalidTag

from penstock.base.errors import CorruptError
from penstock.base.system import SYSTEM_RANDOMNESS, Randomness
from penstock.security.data.key_ring import KEY_ID_BYTES, KeyRing, SubjectKey

VERSION: Final = 1
NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16
_PREFIX_BYTES: Final = 1 + KEY_ID_BYTES
_HEADER_BYTES: Final = _PREFIX_BYTES + NONCE_BYTES
OVERHEAD_BYTES: Final = _HEADER_BYTES + TAG_BYTES
"""What an encrypted value takes more than the value."""


class Undecipherable(CorruptError):
    """The encrypted value is damaged, or another subject's. The message shows neither."""


def seal(
    values: Sequence[bytes | None], keys: Sequence[SubjectKey | None], randomness: Randomness
) -> list[bytes | None]:
    """Encrypt values, each with its key; None where either is None."""
    size = len(values) * NONCE_BYTES
    nonces = randomness.bits(8 * size).to_bytes(size, "little")
    found: list[bytes | None] = []
    for at, (value, key) in enumerate(zip(values, keys, strict=True)):
        if value is None or key is None:
            found.append(None)
            continue
        nonce = nonces[at * NONCE_BYTES : (at + 1) * NONCE_BYTES]
        prefix = b"\x01" + key.key_id
        sealed = key.cipher.encrypt(nonce, value, prefix + key.subject)
        found.append(prefix + nonce + sealed)
    return found


def key_ids(values: Sequence[bytes | None]) -> Iterator[bytes | None]:
    """Yield the key id of each value; None if it has none."""
    for value in values:
        whole = value is not None and len(value) >= OVERHEAD_BYTES and value[0] == VERSION
        yield value[1:_PREFIX_BYTES] if value is not None and whole else None


def unseal(value: bytes, key: SubjectKey) -> bytes:
    """Decrypt a value that names the key's id.

    Raises:
        Undecipherable: it is damaged.
    """
    try:
        return key.cipher.decrypt(
            value[_PREFIX_BYTES:_HEADER_BYTES],
            value[_HEADER_BYTES:],
            value[:_PREFIX_BYTES] + key.subject,
        )
    except InvalidTag:
        raise Undecipherable("it is damaged: its tag does not fit") from None


def fault(value: bytes) -> str:
    """Return the reason why a value has no key id."""
    if len(value) < OVERHEAD_BYTES:
        return f"it has {len(value)} bytes, an encrypted value has {OVERHEAD_BYTES} and more"
    return f"it has version {value[0]}, known is {VERSION}"


def unseal_all(
    values: Sequence[bytes | None], keys: Sequence[SubjectKey | None], ring: KeyRing
) -> tuple[list[bytes | None], dict[int, str]]:
    """Decrypt values, each with its key; return them, and reasons of failure by position.

    A value is None if it was None, if its subject has no key, or if it failed.
    """
    found: list[bytes | None] = [None] * len(values)
    reasons: dict[int, str] = {}
    others: dict[int, bytes] = {}
    for at, (value, key, key_id) in enumerate(zip(values, keys, key_ids(values), strict=True)):
        if value is None:
            continue
        if key_id is None:
            reasons[at] = fault(value)
        elif key is None or key.key_id != key_id:
            others[at] = key_id
        else:
            try:
                found[at] = unseal(value, key)
            except Undecipherable as error:
                reasons[at] = str(error)
    if others:
        living = ring.known(set(others.values()))
        moved = "it was encrypted for another subject"
        reasons |= {at: moved for at, key_id in others.items() if key_id in living}
    return found, reasons


def seal_value(
    ring: KeyRing, subject: str, value: bytes, *, randomness: Randomness = SYSTEM_RANDOMNESS
) -> bytes | None:
    """Encrypt one value for a subject; None if the subject was shredded."""
    return seal([value], ring.for_encryption([subject]), randomness)[0]


def open_value(ring: KeyRing, subject: str, sealed: bytes) -> bytes | None:
    """Decrypt one value of a subject; None if its key is gone.

    Raises:
        Undecipherable: it is damaged, or another subject's.
    """
    found, reasons = unseal_all([sealed], ring.for_decryption([subject]), ring)
    if reasons:
        raise Undecipherable(f"a value cannot be decrypted: {reasons[0]}")
    return found[0]
