"""Master keys: the key that wraps all others of a ring.

It is 32 bytes, written in base64, in a file or in an environment variable. During a rotation there
are two, the present and the next one; the ring stores which of them wraps its keys, so that a
reader uses the right one at every moment of a rotation and after a crash in it:

    file          FILE, FILE.next             made by a rotation, which renames it at its end
    environment   NAME, NAME_NEXT             set by the operator, and moved afterwards
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
    """Master key that wraps and unwraps keys; excluded from `repr`."""

    key_id: bytes
    cipher: AESGCM


class MasterKeys(Protocol):
    """Store of a ring's master keys."""

    def read(self) -> list[MasterKey]:
        """Return the present master key, and the next one if there is one.

        Raises:
            KeyRingUnusable: a key is missing, invalid or readable by others.
        """
        ...

    def make(self) -> None:
        """Create the first key, if this store creates keys and has none."""
        ...

    def prepare(self) -> MasterKey:
        """Return the next key, durable; create it if this store creates keys."""
        ...

    def promote(self) -> str:
        """Make the next key the present one; return what is left for the operator to do."""
        ...


def generated() -> bytes:
    """Return a new master key in its written form."""
    return b64encode(AESGCM.generate_key(8 * KEY_BYTES)) + b"\n"


def master_keys(place: str) -> MasterKeys:
    """Return the master keys of a file's path, or of `env:` and a variable's name."""
    if place.startswith(ENVIRONMENT):
        return EnvironmentMasterKeys(place.removeprefix(ENVIRONMENT))
    return FileMasterKeys(Path(place))


def _key(text: bytes, where: object) -> MasterKey:
    try:
        key = b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        raise KeyRingUnusable(f"{where} does not hold a master key: {KEY_BYTES} bytes in base64")
    digest = hashlib.sha256(b"penstock master key\0" + key).digest()
    return MasterKey(digest[:KEY_ID_BYTES], AESGCM(key))


class FileMasterKeys:
    """Master keys in a file and, during a rotation, in a second one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._next = path.with_name(f"{path.name}.next")

    def read(self) -> list[MasterKey]:
        found = list(self._found())
        if not found:
            raise KeyRingUnusable(f"there is no master key in {self._path}")
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
            raise KeyRingUnusable(f"there is no master key in the environment, as {self._name}")
        return found

    def make(self) -> None:
        self.read()

    def prepare(self) -> MasterKey:
        if not os.environ.get(self._next):
            raise KeyRingUnusable(
                f"the next master key is not in the environment, as {self._next}; "
                "`openssl rand -base64 32` makes one"
            )
        return self.read()[-1]

    def promote(self) -> str:
        return f"give every process the new key as {self._name}, and {self._next} no more"
