"""Errors of administrative requests, by the Kafka error that each one becomes.

Messages name the topic or resource, the limit and the value that was asked for.
"""

from __future__ import annotations

from typing import ClassVar

from penstock.base.errors import InvalidError


class BadRequest(InvalidError):
    """The request contradicts itself or names something that cannot be."""

    code: ClassVar[str] = "invalid_request"


class InvalidPartitions(InvalidError):
    """A number of partitions that is not positive, too large, or no increase."""

    code: ClassVar[str] = "invalid_partitions"


class InvalidReplicationFactor(InvalidError):
    """A number of replicas that is not positive or above the number of brokers."""

    code: ClassVar[str] = "invalid_replication_factor"


class InvalidReplicaAssignment(InvalidError):
    """A manual placement that no set of brokers can hold."""

    code: ClassVar[str] = "invalid_replica_assignment"


class InvalidConfig(InvalidError):
    """A configuration that is unknown or out of its bounds."""

    code: ClassVar[str] = "invalid_config"


class PolicyViolation(InvalidError):
    """A limit of this cluster forbids what was asked for."""

    code: ClassVar[str] = "policy_violation"


class TopicNameCollision(InvalidError):
    """A name that differs from an existing one in '.' and '_' only."""

    code: ClassVar[str] = "invalid_topic_exception"


class TopicDeletionDisabled(InvalidError):
    """`delete.topic.enable` is off."""

    code: ClassVar[str] = "topic_deletion_disabled"
