"""Settings of the audit log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from penstock.base.errors import InvalidSetting, InvalidTopicName
from penstock.base.ids import validate_topic_name
from penstock.base.settings import INT_MAX, LONG_MAX, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSettings:
    """Settings of the audit log: its file, its topic, and limits."""

    PREFIX: ClassVar = "audit."

    log_file: str = setting(
        "", "Path of the audit log file, with one line of JSON for each authentication, denial and"
        " administrative change. Only its owner can read it. If empty, no file is written.",
    )  # fmt: skip
    log_file_bytes: int = setting(
        64 << 20, "Size in bytes at which a new file is started; older files get the suffixes .1,"
        " .2 and so on.",
        4096, LONG_MAX, name="audit.log.file.max.bytes",
    )  # fmt: skip
    log_files: int = setting(10, "Number of files to keep, including the current one.", 1, 1000)
    queue_events: int = setting(
        10_000, "Most events that wait to be written, separately for file and topic; further events"
        " are dropped and counted.", 1, INT_MAX,
        name="audit.queue.max.events",
    )  # fmt: skip
    topic: str = setting(
        "", "Topic to which brokers write the same lines as records, such as __audit. Brokers"
        " create it as an internal topic with one partition. If empty, no topic is written.",
    )  # fmt: skip

    def __post_init__(self) -> None:
        try:
            if self.topic:
                validate_topic_name(self.topic)
        except InvalidTopicName as error:
            raise InvalidSetting("audit.topic", self.topic, error.reason) from None
