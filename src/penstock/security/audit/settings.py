from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from penstock.base.errors import InvalidSetting, InvalidTopicName
from penstock.base.ids import validate_topic_name
from penstock.base.settings import INT_MAX, LONG_MAX, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSettings:
    """Settings of the audit log."""

    PREFIX: ClassVar = "audit."

    log_file: str = setting(
        "", "File of the audit log: a line of JSON for each authentication, denial and"
        " administrative change, readable by its owner alone; empty writes none.",
    )  # fmt: skip
    log_file_bytes: int = setting(
        64 << 20, "Size at which a new file is begun; the others get .1, .2 behind their names.",
        4096, LONG_MAX, name="audit.log.file.max.bytes",
    )  # fmt: skip
    log_files: int = setting(10, "Files that are kept, the current one included.", 1, 1000)
    queue_events: int = setting(
        10_000, "Events that may wait to be written, of file and topic each; more are dropped and"
        " counted.", 1, INT_MAX,
        name="audit.queue.max.events",
    )  # fmt: skip
    topic: str = setting(
        "", "Topic that has the same lines as records, as __audit: brokers make it, internal, with"
        " one partition, and write to it after each event. Empty writes none.",
    )  # fmt: skip

    def __post_init__(self) -> None:
        try:
            if self.topic:
                validate_topic_name(self.topic)
        except InvalidTopicName as error:
            raise InvalidSetting("audit.topic", self.topic, error.reason) from None
