"""Why a request to make a topic diskless is answered with an error."""

from __future__ import annotations

from typing import ClassVar

from penstock.base.errors import RetriableError


class MigrationRunning(RetriableError):
    """A topic is still becoming diskless; the same request asks for it again."""

    code: ClassVar[str] = "request_timed_out"


class MigrationFailed(RetriableError):
    """A topic could not become diskless for now, and is local as before."""

    code: ClassVar[str] = "kafka_storage_error"
