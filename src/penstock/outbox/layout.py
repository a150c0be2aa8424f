"""Layout of the outbox's tree: from a batch's identity to its path, and back.

    <root>/<partition id>/year=2026/month=05/day=24/hour=14/batch-<batch id>/
        data.bin                           the payload, complete, after one rename
        data.bin.tmp.<token>.<attempt>     file of an attempt before its rename

The partition comes first, so that readers and retention work on one without walking the others;
then the hour in UTC in Hive's format, so that query engines prune by it and no directory gets
millions of entries; then a directory per batch, with space for sidecar files. A path is a function
of (partition id, batch id, time): a retry with the same three finds the earlier files.

Invalid ids are rejected and never normalised: two ids could become the same directory.

Source: `filesystem-outbox.txt`, "Naming, layout, and the partition directory tree".
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from msgspec import Struct

from penstock.outbox.errors import InvalidBatchId, InvalidPartitionId, InvalidPath, shown
from penstock.outbox.paths import PATH_CHARS_MAX

PARTITION_ID_CHARS_MAX: Final = 200
"""Longest partition id; a file name has at most 255 bytes, some reserved for sidecars."""
BATCH_ID_CHARS_MAX: Final = 64
"""Longest batch id: twice a UUID in hexadecimal digits."""
AT_MS_MAX: Final = 253_402_300_799_999
"""Last millisecond of the year 9999, the last with four digits."""

DATA_FILE: Final = "data.bin"
TEMPORARY_PREFIX: Final = "data.bin.tmp."
BATCH_PREFIX: Final = "batch-"
HOUR_MS: Final = 3_600_000

PARTITION_PATTERN: Final = rf"[A-Za-z0-9._=\-]{{1,{PARTITION_ID_CHARS_MAX}}}"
BATCH_PATTERN: Final = rf"[A-Za-z0-9_\-]{{1,{BATCH_ID_CHARS_MAX}}}"

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_PARTITION: Final = re.compile(PARTITION_PATTERN, re.ASCII)
_BATCH: Final = re.compile(BATCH_PATTERN, re.ASCII)
_TOKEN: Final = re.compile(r"[A-Za-z0-9]{1,32}", re.ASCII)
_TEMPORARY: Final = re.compile(
    r"data\.bin\.tmp\.(?P<token>[A-Za-z0-9]{1,32})\.(?P<attempt>[0-9]{1,9})", re.ASCII
)
_DIRECTORY: Final = re.compile(
    rf"(?P<partition>{PARTITION_PATTERN})"
    r"/year=(?P<year>\d{4})/month=(?P<month>\d{2})/day=(?P<day>\d{2})/hour=(?P<hour>\d{2})"
    rf"/batch-(?P<batch>{BATCH_PATTERN})",
    re.ASCII,
)


class PayloadLocation(Struct, frozen=True, kw_only=True):
    """Location of a payload by its path. `hour_start_ms`: the hour's first millisecond, UTC."""

    partition_id: str
    hour_start_ms: int
    batch_id: str

    @property
    def directory(self) -> str:
        return batch_directory(self.partition_id, self.batch_id, self.hour_start_ms)


def check_partition_id(text: object) -> str:
    """Return a valid partition id.

    Raises:
        InvalidPartitionId: it is not 1 to 200 of `A-Z a-z 0-9 . _ = -`, or is `.` or `..`.
    """
    if not isinstance(text, str):
        raise InvalidPartitionId(text, "must be text")
    if not _PARTITION.fullmatch(text):
        raise InvalidPartitionId(
            text,
            f"must be 1 to {PARTITION_ID_CHARS_MAX} characters of A-Z a-z 0-9 . _ = -"
            f" and has {len(text)}",
        )
    if text in {".", ".."}:
        raise InvalidPartitionId(text, "must not be . or ..")
    return text


def check_batch_id(text: object) -> str:
    """Return a valid batch id.

    Raises:
        InvalidBatchId: it is not 1 to 64 of `A-Z a-z 0-9 _ -`.
    """
    if not isinstance(text, str):
        raise InvalidBatchId(text, "must be text")
    if not _BATCH.fullmatch(text):
        raise InvalidBatchId(
            text,
            f"must be 1 to {BATCH_ID_CHARS_MAX} characters of A-Z a-z 0-9 _ - and has {len(text)}",
        )
    return text


def hour_directory(partition_id: str, at_ms: int) -> str:
    """Return the hour's directory, relative to the root.

    Raises:
        InvalidPartitionId: see `check_partition_id`.
        InvalidPath: `at_ms` is before 1970 or after the year 9999.
    """
    check_partition_id(partition_id)
    if not isinstance(at_ms, int) or not 0 <= at_ms <= AT_MS_MAX:
        raise InvalidPath(at_ms, f"at_ms must be a whole number from 0 to {AT_MS_MAX}")
    at = _EPOCH + timedelta(milliseconds=at_ms)
    return f"{partition_id}/year={at.year:04}/month={at.month:02}/day={at.day:02}/hour={at.hour:02}"


def batch_directory(partition_id: str, batch_id: str, at_ms: int) -> str:
    """Return the batch's directory, relative to the root; `at_ms` counts only by its hour in UTC.

    Raises:
        InvalidPartitionId, InvalidBatchId: see the checks.
        InvalidPath: `at_ms` is before 1970 or after the year 9999.
    """
    return f"{hour_directory(partition_id, at_ms)}/{BATCH_PREFIX}{check_batch_id(batch_id)}"


def data_path(partition_id: str, batch_id: str, at_ms: int) -> str:
    """Return the payload's path, relative to the root; raise as `batch_directory` does."""
    return f"{batch_directory(partition_id, batch_id, at_ms)}/{DATA_FILE}"


def temporary_name(token: str, attempt: int) -> str:
    """Return an attempt's file name; `token` is unique to the call, 1 to 32 of A-Za-z0-9.

    Raises:
        InvalidPath: the token or the attempt cannot be part of a name.
    """
    if not _TOKEN.fullmatch(token) or not 0 <= attempt < 10**9:
        raise InvalidPath(f"{token}.{attempt}", "is not a token and an attempt of a temporary file")
    return f"{TEMPORARY_PREFIX}{token}.{attempt}"


def is_temporary(name: str) -> bool:
    return _TEMPORARY.fullmatch(name) is not None


def parse_directory(relative: str) -> PayloadLocation:
    """Read the path of a batch directory, relative to the root.

    Raises:
        InvalidPath: the path is not a result of `batch_directory`.
    """
    if len(relative) > PATH_CHARS_MAX:
        raise InvalidPath(relative, f"has {len(relative)} of {PATH_CHARS_MAX} characters")
    found = _DIRECTORY.fullmatch(relative)
    if found is None:
        raise InvalidPath(relative, "is not <partition>/year=/month=/day=/hour=/batch-<id>")
    year, month, day, hour = (int(found[name]) for name in ("year", "month", "day", "hour"))
    try:
        start = datetime(year, month, day, hour, tzinfo=UTC)
    except ValueError as error:
        raise InvalidPath(relative, str(error)) from None
    if start < _EPOCH:
        raise InvalidPath(relative, "is before 1970")
    if found["partition"] in {".", ".."}:
        raise InvalidPath(relative, f"has no partition id but {shown(found['partition'])}")
    return PayloadLocation(
        partition_id=found["partition"],
        hour_start_ms=int((start - _EPOCH).total_seconds()) * 1000,
        batch_id=found["batch"],
    )


def parse_path(relative: str) -> PayloadLocation:
    """Read a payload's path, relative to the root.

    Raises:
        InvalidPath: the path is not a result of `data_path`.
    """
    directory, slash, name = relative.rpartition("/")
    if not slash or name != DATA_FILE:
        raise InvalidPath(relative, f"does not end in /{DATA_FILE}")
    return parse_directory(directory)
