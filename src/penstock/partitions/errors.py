"""What keeps a partition from taking appends, whatever kind it is of."""

from __future__ import annotations

from typing import ClassVar

from penstock.base.errors import RetriableError


class NotEnoughReplicas(RetriableError):
    """Fewer replicas are in sync than `min.insync.replicas` asks for."""

    code: ClassVar[str] = "not_enough_replicas"
