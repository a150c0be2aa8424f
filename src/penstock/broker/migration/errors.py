"""Why a request to make a topic diskless, or local again, is answered with an error."""

from __future__ import annotations

from typing import ClassVar

from penstock.base.errors import RetriableError


class MigrationRunning(RetriableError):
    """A topic is still on its way; the same request asks for it again."""

    code: ClassVar[str] = "request_timed_out"


class MigrationFailed(RetriableError):
    """A topic could not become what was asked for now, and is as before."""

    code: ClassVar[str] = "kafka_storage_error"
