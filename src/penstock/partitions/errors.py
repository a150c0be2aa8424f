"""Errors of partitions of every kind."""

from __future__ import annotations

from typing import ClassVar

from penstock.base.errors import RetriableError


class NotEnoughReplicas(RetriableError):
    """Fewer replicas are in sync than `min.insync.replicas` demands."""

    code: ClassVar[str] = "not_enough_replicas"


class DeletionTimedOut(RetriableError):
    """Replicas did not delete the records within the client's timeout."""

    code: ClassVar[str] = "request_timed_out"
