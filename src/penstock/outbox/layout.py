"""Layout of the directories below a root: from the identity of a batch to its path, and back.

    <root>/<partition id>/year=2026/month=05/day=24/hour=14/batch-<batch id>/
        data.bin                           the payload, complete, after one rename
        data.bin.tmp.<token>.<attempt>     file of an attempt before its rename

The partition id comes first, so that readers and the sweeper can process one partition without
walking the others. The hour (UTC) follows in Hive's format, so that query engines can prune by it,
and no directory gets millions of entries. Each batch has a directory of its own, with space for
sidecar files. A path is a function of (partition id, batch id, time), so a retry with the same
three finds the earlier files.

Invalid ids are rejected and never normalised, because two ids could become the same directory.

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
"""Characters of a partition id. A file name has up to 255 bytes; some are for sidecars."""
BATCH_ID_CHARS_MAX: Final = 64
"""Characters of a batch id: twice a UUID in hexadecimal digits."""
AT_MS_MAX: Final = 253_402_300_799_999
"""Last millisecond of the year 9999, the last year with four digits."""

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
    """The parts of a payload's path.

    `hour_start_ms` is the first millisecond of the hour, in UTC.
    """

    partition_id: str
    hour_start_ms: int
    batch_id: str

    @property
    def directory(self) -> str:
        return batch_directory(self.partition_id, self.batch_id, self.hour_start_ms)


def check_partition_id(text: object) -> str:
    """Return a partition id after checking it.

    Raises:
        InvalidPartitionId: it is not 1 to 200 of `A-Z a-z 0-9 . _ = -`, or is `.` or `..`.
    """
    if not isinstance(text, str):
        raise InvalidPartitionId(text, "must be text")
    if not _PARTITION.fullmatch(text):
        raise InvalidPartitionId(
            text,
            f"must be 1 to {PARTITION_ID_CHARS_MAX} characters of A-Z a-z 0-9 . _ = -,"
            f" but has {len(text)} characters",
        )
    if text in {".", ".."}:
        raise InvalidPartitionId(text, "must not be . or ..")
    return text


def check_batch_id(text: object) -> str:
    """Return a batch id after checking it.

    Raises:
        InvalidBatchId: it is not 1 to 64 of `A-Z a-z 0-9 _ -`.
    """
    if not isinstance(text, str):
        raise InvalidBatchId(text, "must be text")
    if not _BATCH.fullmatch(text):
        raise InvalidBatchId(
            text,
            f"must be 1 to {BATCH_ID_CHARS_MAX} characters of A-Z a-z 0-9 _ -,"
            f" but has {len(text)} characters",
        )
    return text


def hour_directory(partition_id: str, at_ms: int) -> str:
    """Return the directory of an hour, relative to the root.

    `at_ms` is any millisecond of the hour.

    Raises:
        InvalidPartitionId: as in `check_partition_id`.
        InvalidPath: `at_ms` is before 1970 or after the year 9999.
    """
    check_partition_id(partition_id)
    if not isinstance(at_ms, int) or not 0 <= at_ms <= AT_MS_MAX:
        raise InvalidPath(at_ms, f"at_ms must be a whole number from 0 to {AT_MS_MAX}")
    at = _EPOCH + timedelta(milliseconds=at_ms)
    return f"{partition_id}/year={at.year:04}/month={at.month:02}/day={at.day:02}/hour={at.hour:02}"


def batch_directory(partition_id: str, batch_id: str, at_ms: int) -> str:
    """Return the directory of a batch, relative to the root.

    `at_ms` is any millisecond of its hour.

    Raises:
        InvalidPartitionId, InvalidBatchId: as in `check_partition_id` and `check_batch_id`.
        InvalidPath: `at_ms` is before 1970 or after the year 9999.
    """
    return f"{hour_directory(partition_id, at_ms)}/{BATCH_PREFIX}{check_batch_id(batch_id)}"


def data_path(partition_id: str, batch_id: str, at_ms: int) -> str:
    """Return the path of a payload, relative to the root. Raises as `batch_directory` does."""
    return f"{batch_directory(partition_id, batch_id, at_ms)}/{DATA_FILE}"


def temporary_name(token: str, attempt: int) -> str:
    """Return the file name of an attempt.

    `token` identifies the call that writes the batch: 1 to 32 characters of A-Za-z0-9.

    Raises:
        InvalidPath: the token or the number of the attempt is invalid.
    """
    if not _TOKEN.fullmatch(token) or not 0 <= attempt < 10**9:
        raise InvalidPath(f"{token}.{attempt}", "is not a valid token and attempt number")
    return f"{TEMPORARY_PREFIX}{token}.{attempt}"


def is_temporary(name: str) -> bool:
    return _TEMPORARY.fullmatch(name) is not None


def parse_directory(relative: str) -> PayloadLocation:
    """Return the parts of a batch directory's path, relative to the root.

    Raises:
        InvalidPath: `batch_directory` does not return such paths.
    """
    if len(relative) > PATH_CHARS_MAX:
        raise InvalidPath(
            relative, f"has {len(relative)} characters; the limit is {PATH_CHARS_MAX}"
        )
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
        raise InvalidPath(relative, f"has an invalid partition id: {shown(found['partition'])}")
    return PayloadLocation(
        partition_id=found["partition"],
        hour_start_ms=int((start - _EPOCH).total_seconds()) * 1000,
        batch_id=found["batch"],
    )


def parse_path(relative: str) -> PayloadLocation:
    """Return the parts of a payload's path, relative to the root.

    Raises:
        InvalidPath: `data_path` does not return such paths.
    """
    directory, slash, name = relative.rpartition("/")
    if not slash or name != DATA_FILE:
        raise InvalidPath(relative, f"does not end in /{DATA_FILE}")
    return parse_directory(directory)
