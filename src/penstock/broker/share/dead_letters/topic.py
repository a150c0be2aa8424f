"""Checks of a dead letter topic, and the size limit of its batches.

The broker writes dead letters with its own identity, not with that of a client. The topic must
therefore allow dead letters in its config, and its name must have the prefix from the broker's
settings.

Source: KIP-1191, "Security".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Final

from msgspec import Struct

from penstock.base.errors import InvalidError, InvalidSetting
from penstock.broker.configs import Levels, topic_config
from penstock.broker.group_configs import check_letter_topic

if TYPE_CHECKING:
    from penstock.broker.settings import BrokerSettings
    from penstock.control import Topic

ENABLE: Final = "errors.deadletterqueue.group.enable"


class DeadLettersRefused(InvalidError):
    """The topic does not accept dead letters; the archived records wait."""

    code: ClassVar[str] = "invalid_config"


class DeadLetterTopicMissing(DeadLettersRefused):
    code: ClassVar[str] = "unknown_topic_or_partition"


class DeadLetterTooLarge(DeadLettersRefused):
    code: ClassVar[str] = "message_too_large"


class Target(Struct, frozen=True, kw_only=True):
    topic: str
    partitions: int
    batch_bytes_max: int

    def partition(self, of_source: int) -> int:
        return of_source % self.partitions


def target_of(
    group: str,
    name: str,
    topics: Mapping[str, Topic],
    *,
    settings: BrokerSettings,
    levels: Levels,
) -> Target:
    """Return the topic of a group's dead letters, with its partition count and size limit.

    Raises:
        DeadLettersRefused: the topic is missing, or does not allow dead letters.
    """
    subject = f"dead letters of group {group!r}"
    try:
        check_letter_topic(settings, name)
    except InvalidSetting as error:
        raise DeadLettersRefused(f"{subject}: {error}") from None
    topic = topics.get(name)
    if topic is None:
        raise DeadLetterTopicMissing(
            f"{subject}: topic {name!r} does not exist; create it with {ENABLE}=true"
        )
    try:
        config = topic_config(levels, topic.configs)
    except InvalidSetting as error:
        raise DeadLettersRefused(f"{subject}: topic {name!r}: {error}") from None
    if not config.errors_deadletterqueue_group_enable:
        raise DeadLettersRefused(f"{subject}: topic {name!r} must have {ENABLE}=true")
    return Target(
        topic=name,
        partitions=len(topic.partitions),
        batch_bytes_max=config.max_message_bytes,
    )
