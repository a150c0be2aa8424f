"""Errors of administrative requests, each with its Kafka error code."""

from __future__ import annotations

from typing import ClassVar

from penstock.base.errors import InvalidError


class BadRequest(InvalidError):
    code: ClassVar[str] = "invalid_request"


class InvalidPartitions(InvalidError):
    code: ClassVar[str] = "invalid_partitions"


class InvalidReplicationFactor(InvalidError):
    code: ClassVar[str] = "invalid_replication_factor"


class InvalidReplicaAssignment(InvalidError):
    code: ClassVar[str] = "invalid_replica_assignment"


class InvalidConfig(InvalidError):
    code: ClassVar[str] = "invalid_config"


class PolicyViolation(InvalidError):
    """Request that exceeds a limit of this cluster."""

    code: ClassVar[str] = "policy_violation"


class TopicNameCollision(InvalidError):
    """Topic name that differs from an existing one in '.' and '_' only."""

    code: ClassVar[str] = "invalid_topic_exception"


class TopicDeletionDisabled(InvalidError):
    """Request to delete a topic while `delete.topic.enable` is false."""

    code: ClassVar[str] = "topic_deletion_disabled"
