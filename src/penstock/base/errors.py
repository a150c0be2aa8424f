"""Root of all errors and six kinds, by what the caller should do.

| kind                | the caller should                                               |
|---------------------|-----------------------------------------------------------------|
| `RetriableError`    | retry the same call after a pause                               |
| `FencedError`       | stop: a newer owner exists, or the component was closed         |
| `UnavailableError`  | wait for the named component, or use another one                |
| `InvalidError`      | change the call: it can never succeed in this form              |
| `CorruptError`      | stop and inspect: stored or received bytes are damaged          |
| `BugError`          | report it: an invariant of Penstock does not hold               |

Every subclass has the name of its Kafka error in `code`: a key of Kafka's `Errors` enum in lower
case, as in `kio.schema.errors.ErrorCode`. A message names the object, the value and the limit.

Source: the error taxonomy of slatedb's RFC-0007; Kafka's `org.apache.kafka.common.protocol.Errors`.
"""

from __future__ import annotations

from typing import ClassVar


class PenstockError(Exception):
    """Root of every error that Penstock raises on purpose."""

    code: ClassVar[str] = "unknown_server_error"


class RetriableError(PenstockError):
    """Failure of a call that may succeed if it is repeated later."""

    code: ClassVar[str] = "request_timed_out"


class FencedError(PenstockError):
    """Call of, or by, a component that has been closed or replaced by a newer one."""

    code: ClassVar[str] = "not_leader_or_follower"


class UnavailableError(PenstockError):
    """Failure because a required component cannot be reached or has stopped permanently."""

    code: ClassVar[str] = "kafka_storage_error"


class InvalidError(PenstockError):
    """Call that can never succeed in this form."""

    code: ClassVar[str] = "invalid_request"


class CorruptError(PenstockError):
    """Damage of stored or received bytes."""

    code: ClassVar[str] = "corrupt_message"


class BugError(PenstockError):
    """Violation of an invariant of Penstock itself."""

    code: ClassVar[str] = "unknown_server_error"


class InvalidTopicName(InvalidError):
    """Topic name that Kafka's rules do not allow."""

    code: ClassVar[str] = "invalid_topic_exception"

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"topic name {name!r}: {reason}")
        self.name = name
        self.reason = reason


class InvalidSetting(InvalidError):
    """Setting that is unknown, of the wrong type, or out of its bounds."""

    code: ClassVar[str] = "invalid_config"
    subject: ClassVar[str] = "setting"

    def __init__(self, name: str, value: object, reason: str) -> None:
        super().__init__(f"{self.subject} {name} = {value!r}: {reason}")
        self.name = name
        self.value = value
        self.reason = reason
