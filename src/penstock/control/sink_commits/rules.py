"""Rules of sink commits: valid successors of a record, and size limits. Pure functions.

| there is          | intent of b        | done with b        |
|-------------------|--------------------|--------------------|
| nothing           | saved              | saved              |
| an intent of b    | saved: other targets | saved              |
| an intent below b | refused            | refused            |
| b done            | refused            | refused            |
| less than b done  | saved              | saved              |
| more than b       | refused            | refused            |

An end without an intent before it is a commit in one write: a batch without rows, or one whose
offsets the control plane assigns.
"""

from __future__ import annotations

from penstock.control.errors import StaleSink, TooLarge
from penstock.control.limits import SINK_MANIFEST_BYTES_MAX, SINK_TARGETS_MAX, SINKS_MAX
from penstock.control.values import SinkCommit


def check_sink_commit(
    record: SinkCommit, *, found: SinkCommit | None, expected: int, count: int
) -> None:
    """Check that a record may follow the stored one; `count` is the number of queries with a
    record.

    Raises:
        StaleSink: it may not.
        TooLarge: the record is too large, or there are too many queries.
    """
    check_sink_version(record.query_id, found=found, expected=expected)
    _check_size(record, new=found is None, count=count)
    if found is not None and not _follows(record, found):
        raise StaleSink(
            record.query_id,
            f"is batch {found.batch_id}, {found.state}: batch {record.batch_id}, {record.state},"
            f" cannot follow on it",
        )


def check_sink_version(query_id: str, *, found: SinkCommit | None, expected: int) -> None:
    version = 0 if found is None else found.version
    if version != expected:
        raise StaleSink(query_id, f"is at version {version}, the change expected {expected}")


def _follows(record: SinkCommit, found: SinkCommit) -> bool:
    if found.state == "intent":
        return record.batch_id == found.batch_id
    return record.batch_id > found.batch_id


def _check_size(record: SinkCommit, *, new: bool, count: int) -> None:
    if new and count >= SINKS_MAX:
        raise TooLarge(
            f"{count} queries commit to the log, the limit is {SINKS_MAX}: forget some of them"
        )
    if len(record.targets) > SINK_TARGETS_MAX:
        raise TooLarge(
            f"query {record.query_id!r} writes to {len(record.targets)} partitions,"
            f" the limit is {SINK_TARGETS_MAX}"
        )
    if len(record.manifest) > SINK_MANIFEST_BYTES_MAX:
        raise TooLarge(
            f"the manifest of query {record.query_id!r}, batch {record.batch_id}, has"
            f" {len(record.manifest)} bytes compressed, the limit is {SINK_MANIFEST_BYTES_MAX}"
        )
