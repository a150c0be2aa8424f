"""Port of keyrings, which store the data keys of subjects.

A *subject* is the person or thing that data is about: a customer, a patient, a device. Each has its
own data key, which is created when data of the subject is first encrypted. Deleting that key
(*shredding*) makes every copy of the encrypted data unreadable. A shredded subject gets no new key.
So, if the original data is read and encrypted again, the subject's values become null.

Keys leave a ring as ciphers, which cannot be printed. Implementations decide where keys are stored.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final, Protocol

from penstock.base.errors import InvalidError, UnavailableError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES: Final = 32
KEY_ID_BYTES: Final = 8
SUBJECT_BYTES_MAX: Final = 1024
ENVIRONMENT: Final = "env:"
"""Prefix of a master key's location that is an environment variable instead of a file."""


class KeyRingUnusable(InvalidError):
    """Keyring that is missing, that other users can read, or that has another master key."""

    code: ClassVar[str] = "invalid_config"


class KeyRingBusy(UnavailableError):
    """Keyring that another process has locked for longer than the timeout."""


class SubjectTooLong(InvalidError):
    """Subject whose id exceeds `SUBJECT_BYTES_MAX`; the message does not contain it."""

    code: ClassVar[str] = "invalid_record"


@dataclass(frozen=True, slots=True)
class SubjectKey:
    """Data key of one subject.

    Attributes:
        key_id: random id of `KEY_ID_BYTES` bytes, unique in the ring.
        subject: the subject's id in UTF-8.
        cipher: AES-256-GCM cipher that contains the key.
    """

    key_id: bytes
    subject: bytes = field(repr=False)
    cipher: AESGCM = field(repr=False)


class KeyRing(Protocol):
    """Thread-safe store of subjects' keys, and of one secret that never changes."""

    def secret(self, purpose: str) -> bytes:
        """Return a key of `KEY_BYTES` bytes for a purpose; it stays the same for the ring's
        lifetime.
        """
        ...

    def for_encryption(self, subjects: Sequence[str]) -> list[SubjectKey | None]:
        """Return the keys of subjects; new keys are durable. None for a shredded subject."""
        ...

    def for_decryption(self, subjects: Sequence[str]) -> list[SubjectKey | None]:
        """Return the keys of subjects; None for a subject without a key."""
        ...

    def known(self, key_ids: Collection[bytes]) -> set[bytes]:
        """Return those of the key ids whose keys exist now.

        Decryption thus distinguishes values of another subject from values whose key was deleted.
        """
        ...
