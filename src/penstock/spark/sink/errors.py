"""What the sink to the log can be told, each with what to do about it.

`StagingRefused` and `CommitRefused` can never succeed as they are; `CommitUnfinished` may, and the
same batch is safe to repeat. The broker's own words travel in the message.
"""

from __future__ import annotations

from typing import ClassVar

from penstock.base.errors import FencedError, InvalidError, RetriableError


class InvalidRows(InvalidError):
    """Rows that cannot become records: found by a task, raised on the driver."""

    code: ClassVar[str] = "invalid_record"


class StagingRefused(InvalidError):
    """The broker does not take a blob of staged records."""


class CommitRefused(InvalidError):
    """The broker refused the commit; it can never succeed as it is."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.broker_code = code


class SinkOwnerChanged(FencedError):
    """The application's commits belong to another query: a checkpoint was copied or replaced."""

    code: ClassVar[str] = "producer_fenced"


class CommitUnfinished(RetriableError):
    """The broker did not finish the commit in time; the same batch may be written again."""

    code: ClassVar[str] = "request_timed_out"
