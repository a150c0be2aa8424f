"""Locations of a keyring and its master key, from settings; opened once in a process."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from penstock.security.data.file_ring import FileKeyRing
from penstock.security.data.master_keys import master_keys

MASTER_KEY_FILE: Final = "master.key"
_RINGS_MAX: Final = 8
"""Open in one process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPlace:
    """Location of a keyring and of its master key; neither is secret.

    Attributes:
        ring: the directory.
        master: a file's path, or `env:NAME`; without it the file `master.key` of the directory.
    """

    ring: Path
    master: str | None = None

    @property
    def master_place(self) -> str:
        return self.master or str(self.ring / MASTER_KEY_FILE)


@lru_cache(maxsize=_RINGS_MAX)
def ring_at(place: KeyPlace) -> FileKeyRing:
    """Return the keyring of a location, opened once per process.

    Raises:
        KeyRingUnusable: it is not there, others may read it, or its master key does not fit.
    """
    return FileKeyRing(place.ring, master_keys(place.master_place))
