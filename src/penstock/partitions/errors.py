"""Errors of partitions of every kind."""

from __future__ import annotations

from typing import ClassVar

from penstock.base.errors import RetriableError


class NotEnoughReplicas(RetriableError):
    """Fewer replicas are in sync than `min.insync.replicas` asks for."""

    code: ClassVar[str] = "not_enough_replicas"


class DeletionTimedOut(RetriableError):
    """Copies on other brokers have not deleted records in the time that the client waits."""

    code: ClassVar[str] = "request_timed_out"
