"""Interface of keyrings.

A *subject* is the person or thing that data is about: a customer, a patient, a device. Each has its
own data key, created when something of the subject is first encrypted. Deleting that key
(*shredding*) makes every copy of what it encrypted unreadable. A shredded subject gets no new key,
so that reading a topic with the data in clear again does not restore it.

Keys leave a ring as ciphers, which cannot be printed; implementations decide where keys are stored.
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
"""What a master key's place begins with where it is a variable, and no file."""


class KeyRingUnusable(InvalidError):
    """The keyring is missing, readable by others, or has another master key."""

    code: ClassVar[str] = "invalid_config"


class KeyRingBusy(UnavailableError):
    """Another process has held the keyring for longer than the timeout."""


class SubjectTooLong(InvalidError):
    """A subject's id is above `SUBJECT_BYTES_MAX`; the message does not show it."""

    code: ClassVar[str] = "invalid_record"


@dataclass(frozen=True, slots=True)
class SubjectKey:
    """The data key of one subject.

    Attributes:
        key_id: `KEY_ID_BYTES`, random, never used for another key.
        subject: UTF-8.
        cipher: AES-256-GCM with the key in it.
    """

    key_id: bytes
    subject: bytes = field(repr=False)
    cipher: AESGCM = field(repr=False)


class KeyRing(Protocol):
    """Thread-safe source of subjects' keys and of one constant secret."""

    def secret(self, purpose: str) -> bytes:
        """Return a key of `KEY_BYTES` for a purpose, constant for the ring's lifetime."""
        ...

    def for_encryption(self, subjects: Sequence[str]) -> list[SubjectKey | None]:
        """Return keys of subjects, durable if new; None for shredded ones."""
        ...

    def for_decryption(self, subjects: Sequence[str]) -> list[SubjectKey | None]:
        """Return keys of subjects; None for those without one."""
        ...

    def known(self, key_ids: Collection[bytes]) -> set[bytes]:
        """Return the given key ids that belong to a subject now."""
        ...
