"""Whether a topic may have a share group's dead letters, and how large their batches may be.

A broker writes them by its own right, whoever wrote the records: so the topic must say that it
takes them, and its name must begin as the broker's settings say.

Source: KIP-1191, "Security".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from penstock.base.errors import InvalidError, InvalidSetting
from penstock.broker.configs import Levels, topic_config
from penstock.broker.group_configs import check_letter_topic

if TYPE_CHECKING:
    from penstock.broker.settings import BrokerSettings
    from penstock.control import Topic

ENABLE: Final = "errors.deadletterqueue.group.enable"


class DeadLettersRefused(InvalidError):
    """A topic that cannot have dead letters; what waits for them goes on waiting."""

    code: ClassVar[str] = "invalid_config"


class DeadLetterTopicMissing(DeadLettersRefused):
    """There is no such topic."""

    code: ClassVar[str] = "unknown_topic_or_partition"


class DeadLetterTooLarge(DeadLettersRefused):
    """Dead letters that are larger than the batches that their topic takes."""

    code: ClassVar[str] = "message_too_large"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where the dead letters of a group go."""

    topic: str
    partitions: int
    batch_bytes_max: int

    def partition(self, of_source: int) -> int:
        """Which partition has the dead letters of one of the source."""
        return of_source % self.partitions


def target_of(
    group: str,
    name: str,
    topics: Mapping[str, Topic],
    *,
    settings: BrokerSettings,
    levels: Levels,
) -> Target:
    """Where they go.

    Raises:
        DeadLettersRefused: the topic is not there, or must not have them; the message names the
            group, the topic and the remedy.
    """
    subject = f"dead letters of group {group!r}"
    try:
        check_letter_topic(settings, name)
    except InvalidSetting as error:
        raise DeadLettersRefused(f"{subject}: {error}") from None
    topic = topics.get(name)
    if topic is None:
        raise DeadLetterTopicMissing(
            f"{subject}: there is no topic {name!r}; create it with {ENABLE}=true"
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
