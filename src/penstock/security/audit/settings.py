"""What is audited where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from penstock.base.settings import INT_MAX, LONG_MAX, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSettings:
    """Where the audit log goes, and how much of it is kept."""

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
        10_000, "Events that may wait to be written; more are dropped and counted.", 1, INT_MAX,
        name="audit.queue.max.events",
    )  # fmt: skip
