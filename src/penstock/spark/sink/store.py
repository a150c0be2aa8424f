"""Storage of blobs at brokers: in a staging directory on the same machine, else by HTTP.

If there are several brokers, each blob is stored at the first two that respond, so that one of them
may fail. A worker uses a broker's staging directory directly if it can write there and the
directory's token file has the token that the broker returned. A blob is durable when `put` returns:
the file is written under a temporary name, synced and renamed, and its directory is synced.
"""

from __future__ import annotations

import contextlib
import http
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from penstock.base.files import MACHINE_FILES, sync_directory, write_all
from penstock.client.admin_http import Answer, Body
from penstock.client.errors import AdminUnavailable
from penstock.spark.admin_http import ATTEMPT_SECONDS, BrokerAdmins
from penstock.spark.errors import NotPenstock, StagingRefused

STAGED_COPIES: Final = 2
"""Number of brokers that store each blob, if there are several admin addresses."""
COPY_TIMEOUT_SECONDS: Final = 10.0
"""Longest time to store a blob at one of several brokers, including retries."""
STAGING_TIMEOUT_SECONDS: Final = 60.0
"""Longest time to store a blob at the only broker or to request locations, including retries."""

TOKEN_FILE: Final = ".penstock-staging"  # noqa: S105  (a file's name)
_TOKEN_CHARS_MAX: Final = 4_096
_STAGING: Final = "/v1/staging"


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingLocation:
    """Staging directory of a broker; `url` is the broker's admin address."""

    url: str
    directory: str
    token: str
    blob_bytes_max: int

    @property
    def here(self) -> bool:
        """Whether the broker's staging directory is on this machine and writable."""
        try:
            with open(os.path.join(self.directory, TOKEN_FILE), encoding="utf-8") as file:
                found = file.read(_TOKEN_CHARS_MAX).strip()
        except (OSError, UnicodeDecodeError):
            return False
        return bool(found) and found == self.token and os.access(self.directory, os.W_OK)


def staging_locations(admins: BrokerAdmins) -> tuple[StagingLocation, ...]:
    """Return the staging locations of the first brokers that respond, at most `STAGED_COPIES`.

    Raises:
        NotPenstock: the response is not from a Penstock broker with this sink.
        AdminUnavailable: no broker responds.
    """
    timeout_seconds = STAGING_TIMEOUT_SECONDS
    if len(admins.addresses) == 1:
        answer = admins.call("GET", _STAGING, timeout_seconds=timeout_seconds)
        return (_location(admins.addresses[0].url, answer),)
    found: list[StagingLocation] = []
    for address in admins.in_order:
        with contextlib.suppress(AdminUnavailable):
            answer = address.ask("GET", _STAGING, timeout_seconds=ATTEMPT_SECONDS)
            if answer.status < http.HTTPStatus.INTERNAL_SERVER_ERROR:
                found.append(_location(address.url, answer))
        if len(found) == STAGED_COPIES:
            break
    if not found:  # `call` waits until a broker responds
        admins.call("GET", _STAGING, timeout_seconds=timeout_seconds)
        return staging_locations(admins)
    return tuple(found)


def _location(url: str, answer: Answer) -> StagingLocation:
    try:
        if answer.status != http.HTTPStatus.OK:
            raise NotPenstock(url, f"GET {_STAGING}: {answer.status} {answer.error}")
        return StagingLocation(
            url=url,
            directory=str(answer.body["directory"]),
            token=str(answer.body["token"]),
            blob_bytes_max=int(answer.body["blob_max_bytes"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise NotPenstock(url, f"invalid response to GET {_STAGING}: {error!r}") from error


class BlobStore:
    """Client that stores blobs at the brokers of the given staging locations."""

    def __init__(self, admins: BrokerAdmins, locations: Sequence[StagingLocation]) -> None:
        self._admins = admins
        self._locations = locations

    def put(self, name: str, pieces: list[Any], size_bytes: int) -> tuple[str, ...]:
        """Store a blob under a unique name, and return the addresses of the brokers that have it.

        The blob is durable at these brokers; at least one of several must store it.

        Raises:
            OSError: the staging directory cannot be written to, for example because the disk is
                full.
            StagingRefused: the broker rejects the blob.
            AdminUnavailable: no broker responds.
        """
        if len(self._locations) == 1:
            self._put(self._locations[0], name, pieces, size_bytes, STAGING_TIMEOUT_SECONDS)
            return (self._locations[0].url,)
        holders: list[str] = []
        for place in self._locations:
            with contextlib.suppress(AdminUnavailable, StagingRefused, OSError):
                self._put(place, name, pieces, size_bytes, COPY_TIMEOUT_SECONDS)
                holders.append(place.url)
        if not holders:
            self._put(self._locations[0], name, pieces, size_bytes, STAGING_TIMEOUT_SECONDS)
            holders.append(self._locations[0].url)
        return tuple(holders)

    def _put(
        self,
        place: StagingLocation,
        name: str,
        pieces: list[Any],
        size_bytes: int,
        timeout_seconds: float,
    ) -> None:
        if place.here:
            self._write(Path(place.directory), name, pieces)
        else:
            self._upload(
                place.url, name, Body(pieces=pieces, size_bytes=size_bytes), timeout_seconds
            )

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

    def _upload(self, url: str, name: str, body: Body, timeout_seconds: float) -> None:
        answer = self._admins.call(
            "PUT", f"{_STAGING}/{name}", body, timeout_seconds=timeout_seconds, among=(url,)
        )
        # The name is unique. If it exists, an earlier attempt succeeded but its response was lost.
        if answer.status not in {http.HTTPStatus.CREATED, http.HTTPStatus.CONFLICT}:
            raise StagingRefused(
                f"{url} rejected blob {name} of {body.size_bytes} bytes:"
                f" {answer.status} {answer.error}: {answer.message}"
            )
