"""Errors of requests to migrate a topic."""

from __future__ import annotations

from typing import ClassVar

from penstock.base.errors import RetriableError


class MigrationRunning(RetriableError):
    """The migration is still running; the same request joins it."""

    code: ClassVar[str] = "request_timed_out"


class MigrationFailed(RetriableError):
    """The migration failed, and the topic is unchanged."""

    code: ClassVar[str] = "kafka_storage_error"
