"""Format of an encrypted value, with encryption and decryption.

    offset  bytes  content
    0       1      version, 1
    1       8      key id, random; of one subject's data key
    9       12     nonce, random
    21      n      the value, encrypted by AES-256-GCM
    21+n    16     tag

The associated data are version, key id and subject. A value that was copied into another subject's
row can therefore not be decrypted there. With random nonces, one key may encrypt at most 2³² values
(NIST SP 800-38D, 8.3); this limit is per subject.

Decryption returns the value, or None if the key was deleted. If the bytes were not encrypted for
this subject, decryption fails with a reason.
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
"""Bytes that encryption adds to a value."""


class Undecipherable(CorruptError):
    """Encrypted value that is damaged, or of another subject; the message shows neither of them."""


def seal(
    values: Sequence[bytes | None], keys: Sequence[SubjectKey | None], randomness: Randomness
) -> list[bytes | None]:
    """Encrypt values, each with its key; the result is None if the value or the key is None."""
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
    """Yield the key id of each encrypted value; None if it is not an encrypted value."""
    for value in values:
        whole = value is not None and len(value) >= OVERHEAD_BYTES and value[0] == VERSION
        yield value[1:_PREFIX_BYTES] if value is not None and whole else None


def unseal(value: bytes, key: SubjectKey) -> bytes:
    """Decrypt a value with the key that it names.

    Raises:
        Undecipherable: the value is damaged.
    """
    try:
        return key.cipher.decrypt(
            value[_PREFIX_BYTES:_HEADER_BYTES],
            value[_HEADER_BYTES:],
            value[:_PREFIX_BYTES] + key.subject,
        )
    except InvalidTag:
        raise Undecipherable("it is damaged: its tag does not match") from None


def fault(value: bytes) -> str:
    """Return the reason why bytes are not an encrypted value."""
    if len(value) < OVERHEAD_BYTES:
        return f"it has {len(value)} bytes, but an encrypted value has at least {OVERHEAD_BYTES}"
    return f"it has version {value[0]}, but only {VERSION} is supported"


def unseal_all(
    values: Sequence[bytes | None], keys: Sequence[SubjectKey | None], ring: KeyRing
) -> tuple[list[bytes | None], dict[int, str]]:
    """Decrypt values, each with its key.

    Returns:
        The values, and the reasons of failures by index. A value is None if it was None, if its key
            was deleted, or if it could not be decrypted.
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
    """Encrypt one value for a subject; return None if the subject was shredded."""
    return seal([value], ring.for_encryption([subject]), randomness)[0]


def open_value(ring: KeyRing, subject: str, sealed: bytes) -> bytes | None:
    """Decrypt one value of a subject; return None if its key was deleted.

    Raises:
        Undecipherable: the value is damaged, or was encrypted for another subject.
    """
    found, reasons = unseal_all([sealed], ring.for_decryption([subject]), ring)
    if reasons:
        raise Undecipherable(f"a value cannot be decrypted: {reasons[0]}")
    return found[0]
