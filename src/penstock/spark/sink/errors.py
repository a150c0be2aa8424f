"""Errors of the sink to the log, each with what to do about it.

`StagingRefused` and `CommitRefused` are permanent; after `CommitUnfinished` the same batch is safe
to repeat. The message has the broker's response.
"""

from __future__ import annotations

from typing import ClassVar

from penstock.base.errors import FencedError, InvalidError, RetriableError


class InvalidRows(InvalidError):
    """Rows that cannot become records: found by a task, raised on the driver."""

    code: ClassVar[str] = "invalid_record"


class StagingRefused(InvalidError):
    """Rejection of a blob of staged records by the broker."""


class CommitRefused(InvalidError):
    """Permanent rejection of the commit by the broker."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.broker_code = code


class SinkOwnerChanged(FencedError):
    """Commits of the application by another query: a checkpoint was copied or replaced."""

    code: ClassVar[str] = "producer_fenced"


class CommitUnfinished(RetriableError):
    """Timeout of the commit; the same batch may be written again."""

    code: ClassVar[str] = "request_timed_out"
