"""Master keys: the key that wraps all other keys of a ring.

A master key has 32 bytes, written in base64, in a file or in an environment variable. During a
rotation there are two: the present one and the next one. The ring stores the id of the one that
wraps its keys. A reader therefore uses the right one at every moment, even after a crash:

    file          FILE, FILE.next             the rotation creates FILE.next and finally renames it
    environment   NAME, NAME_NEXT             the operator sets NAME_NEXT and later moves it to NAME
"""

from __future__ import annotations

import binascii
import hashlib
import os
from base64 import b64decode, b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from msgspec import Struct

from penstock.base.files import MACHINE_FILES, read_file, sync_directory
from penstock.security.data.key_ring import (
    ENVIRONMENT,
    KEY_BYTES,
    KEY_ID_BYTES,
    KeyRingUnusable,
)
from penstock.security.data.secret_files import check_private, write_private

_TEXT_BYTES_MAX: Final = 256


class MasterKey(Struct, frozen=True):
    """Master key, as a cipher that wraps and unwraps keys."""

    key_id: bytes
    cipher: AESGCM


class MasterKeys(Protocol):
    """Port of the store of a ring's master keys."""

    def read(self) -> list[MasterKey]:
        """Return the present master key and, during a rotation, the next one.

        Raises:
            KeyRingUnusable: no key exists, or a key is invalid or other users can read it.
        """
        ...

    def make(self) -> None:
        """Create the first key, if this store can create keys and has none."""
        ...

    def prepare(self) -> MasterKey:
        """Return the next master key of a rotation, durably stored.

        It is created if this store can create keys.
        """
        ...

    def promote(self) -> str:
        """Finish a rotation: make the next key the present one.

        Returns the step that the operator still has to do.
        """
        ...


def generated() -> bytes:
    """Return a new random master key in base64."""
    return b64encode(AESGCM.generate_key(8 * KEY_BYTES)) + b"\n"


def master_keys(place: str) -> MasterKeys:
    """Return the store for a location: the path of a file, or `env:` and a variable's name."""
    if place.startswith(ENVIRONMENT):
        return EnvironmentMasterKeys(place.removeprefix(ENVIRONMENT))
    return FileMasterKeys(Path(place))


def _key(text: bytes, where: object) -> MasterKey:
    try:
        key = b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        raise KeyRingUnusable(f"{where} must contain a master key of {KEY_BYTES} bytes in base64")
    digest = hashlib.sha256(b"penstock master key\0" + key).digest()
    return MasterKey(digest[:KEY_ID_BYTES], AESGCM(key))


class FileMasterKeys:
    """Master keys in a file and, during a rotation, in a second file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._next = path.with_name(f"{path.name}.next")

    def read(self) -> list[MasterKey]:
        found = list(self._found())
        if not found:
            raise KeyRingUnusable(f"the master key file {self._path} does not exist")
        return found

    def _found(self) -> Iterator[MasterKey]:
        for path in (self._path, self._next):
            if path.exists():
                check_private(path)
                yield _key(read_file(MACHINE_FILES, path, _TEXT_BYTES_MAX), path)

    def make(self) -> None:
        if not list(self._found()):
            write_private(self._path, generated())

    def prepare(self) -> MasterKey:
        write_private(self._next, generated())
        return self.read()[-1]

    def promote(self) -> str:
        if self._next.exists():
            MACHINE_FILES.rename(self._next, self._path)
            sync_directory(MACHINE_FILES, self._path.parent)
        return ""


class EnvironmentMasterKeys:
    def __init__(self, name: str) -> None:
        self._name = name
        self._next = f"{name}_NEXT"

    def read(self) -> list[MasterKey]:
        found = [
            _key(os.environ[name].encode(), name)
            for name in (self._name, self._next)
            if os.environ.get(name)
        ]
        if not found:
            raise KeyRingUnusable(
                f"the environment variable {self._name} with the master key is not set"
            )
        return found

    def make(self) -> None:
        self.read()

    def prepare(self) -> MasterKey:
        if not os.environ.get(self._next):
            raise KeyRingUnusable(
                f"the environment variable {self._next} with the next master key is not set. "
                "Generate a key with `openssl rand -base64 32`"
            )
        return self.read()[-1]

    def promote(self) -> str:
        return f"set {self._name} to the new key for every process, and unset {self._next}"
