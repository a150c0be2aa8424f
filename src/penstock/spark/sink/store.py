"""Where blobs go: into the broker's staging directory when it is on this machine, else by HTTP.

The directory is recognised by a token that the broker tells and keeps in a file there, so a path
that happens to exist on another machine is never written to. A blob is durable when `put` returns:
it is written under a hidden temporary name, flushed, renamed, and its directory flushed.
"""

from __future__ import annotations

import contextlib
import http
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from penstock.base.files import MACHINE_FILES, sync_directory, write_all
from penstock.client.admin_http import Body
from penstock.spark.admin_http import BrokerAdmin
from penstock.spark.errors import NotPenstock
from penstock.spark.sink import limits
from penstock.spark.sink.errors import StagingRefused

TOKEN_FILE: Final = ".penstock-staging"  # noqa: S105  (a file's name)
_TOKEN_CHARS_MAX: Final = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingLocation:
    """What the broker says of its staging directory."""

    directory: str
    token: str
    blob_bytes_max: int

    @property
    def here(self) -> bool:
        """Whether the directory is on this machine and may be written to."""
        try:
            with open(os.path.join(self.directory, TOKEN_FILE), encoding="utf-8") as file:
                found = file.read(_TOKEN_CHARS_MAX).strip()
        except (OSError, UnicodeDecodeError):
            return False
        return bool(found) and found == self.token and os.access(self.directory, os.W_OK)


def staging_location(address: BrokerAdmin) -> StagingLocation:
    """Ask the broker where blobs go.

    Raises:
        NotPenstock: another server, or a broker without this sink, answers.
        AdminUnavailable: nobody answers.
    """
    answer = address.call("GET", "/v1/staging", timeout_seconds=limits.STAGING_TIMEOUT_SECONDS)
    try:
        if answer.status != http.HTTPStatus.OK:
            raise NotPenstock(address.url, f"GET /v1/staging: {answer.status} {answer.error}")
        return StagingLocation(
            directory=str(answer.body["directory"]),
            token=str(answer.body["token"]),
            blob_bytes_max=int(answer.body["blob_max_bytes"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise NotPenstock(address.url, f"GET /v1/staging answered without {error}") from error


class BlobStore:
    """Puts blobs where the broker finds them."""

    def __init__(self, address: BrokerAdmin, place: StagingLocation) -> None:
        self._address = address
        self._local = Path(place.directory) if place.here else None

    def put(self, name: str, pieces: list[Any], size_bytes: int) -> None:
        """Store a blob under a name that nobody else uses; durable on return.

        Raises:
            OSError: the directory cannot be written to (disk full).
            StagingRefused: the broker does not take it.
            AdminUnavailable: the broker is away.
        """
        if self._local is not None:
            self._write(self._local, name, pieces)
        else:
            self._upload(name, pieces, size_bytes)

    def _write(self, directory: Path, name: str, pieces: list[Any]) -> None:
        hidden = directory / f".{name}.part"
        descriptor = MACHINE_FILES.create(hidden, mode=0o660)
        try:
            write_all(MACHINE_FILES, descriptor, 0, [memoryview(piece) for piece in pieces])
            MACHINE_FILES.sync_file(descriptor)
            MACHINE_FILES.rename(hidden, directory / name)
        except BaseException:
            with contextlib.suppress(OSError):
                MACHINE_FILES.remove(hidden)
            raise
        finally:
            MACHINE_FILES.close(descriptor)
        sync_directory(MACHINE_FILES, directory)

    def _upload(self, name: str, pieces: list[Any], size_bytes: int) -> None:
        answer = self._address.call(
            "PUT",
            f"/v1/staging/{name}",
            Body(pieces=pieces, size_bytes=size_bytes),
            timeout_seconds=limits.STAGING_TIMEOUT_SECONDS,
        )
        # The name is ours alone: if it is there, an answer to an earlier attempt was lost.
        if answer.status not in {http.HTTPStatus.CREATED, http.HTTPStatus.CONFLICT}:
            raise StagingRefused(
                f"{self._address.url} does not take blob {name} of {size_bytes} bytes:"
                f" {answer.status} {answer.error}: {answer.message}"
            )
