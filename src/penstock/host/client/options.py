"""Options of a client of the host agent, with bounds; both clients have the same."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from penstock.base.errors import InvalidSetting
from penstock.base.ids import validate_topic_name
from penstock.base.settings import INT_MAX, LONG_MAX, describe, parse, setting, unknown
from penstock.host import limits
from penstock.host.client_machine import ClientTerms
from penstock.host.delivery import Delivery
from penstock.host.port import NO_PRODUCER_ID
from penstock.host.ring import RING_BYTES_MAX

DEFAULT_PATH: Final = "/var/run/penstock/host.sock"
PATH_BYTES_MAX: Final = 107
"""A socket's address has 108 bytes, the last of which is zero."""

_MIB: Final = 1 << 20
_DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """The options of `HostClient` and `AsyncHostClient`."""

    PREFIX: ClassVar = "host.client."

    path: str = setting(DEFAULT_PATH, "The agent's socket file; at most 107 bytes.")
    topics: tuple[str, ...] = setting(
        (), "Topics that are published to, so that the agent says how many partitions they have."
    )
    client_name: str = setting(
        "", "Name of this producer in the agent's log and status.", name="host.client.name"
    )
    resend: bool = setting(
        True, "Whether frames are kept and sent again when the connection ends or the agent fails"
        " them for now; without it every such frame ends with its error, and publishing without"
        " credit fails at once.",
    )  # fmt: skip
    idempotent: bool = setting(
        True, "With resend: whether frames with a topic and a partition are numbered, so that the"
        " log has them once however often they are sent.",
    )  # fmt: skip
    checksum: bool = setting(
        False, "Whether payloads are sent with a checksum. The kernel's copy does not need one."
    )
    ring_bytes: int = setting(
        0, "Shared memory for payloads, taken when a connection is made; 0 for none.", 0,
        RING_BYTES_MAX,
    )  # fmt: skip
    ring_payload_bytes_min: int = setting(
        64 << 10, "Payloads below this travel on the socket though there is a ring.", 1,
        RING_BYTES_MAX, name="host.client.ring.payload.min.bytes",
    )  # fmt: skip
    connect_timeout_ms: int = setting(
        5_000, "How long the agent may take to answer HELLO, and how long a first publish that"
        " needs an agent waits for one.", 1, _DAY_MS,
    )  # fmt: skip
    publish_timeout_ms: int = setting(
        30_000, "Without resend: how long the agent may take to answer a frame. With resend: how"
        " long publish waits for room in the buffer.", 1, _DAY_MS,
    )  # fmt: skip
    delivery_timeout_ms: int = setting(
        120_000, "With resend: how long after publish a frame may be sent again before it ends"
        " with an error.", 1, _DAY_MS,
    )  # fmt: skip
    drain_timeout_ms: int = setting(
        20_000, "How long a draining agent is waited for; the agent's own deadline counts if"
        " sooner.", 0, _DAY_MS,
    )  # fmt: skip
    exit_timeout_ms: int = setting(
        5_000, "How long the end of the interpreter waits for what has not been delivered.", 0,
        _DAY_MS,
    )  # fmt: skip
    buffer_bytes: int = setting(
        64 * _MIB, "Payload bytes that may be without an answer.", 1, INT_MAX
    )
    buffer_frames: int = setting(65_536, "Frames that may be without an answer.", 1, INT_MAX)
    socket_buffer_bytes: int = setting(
        4 * _MIB, "Send and receive buffer of the socket; the kernel caps it (net.core.wmem_max).",
        4096, INT_MAX // 2,
    )  # fmt: skip

    def terms(self) -> ClientTerms:
        """Return the requirements that are sent to the agent."""
        return ClientTerms(
            topics=self.topics,
            client_name=self.client_name,
            publish_timeout_ms=self.publish_timeout_ms,
            drain_timeout_ms=self.drain_timeout_ms,
            checksum=self.checksum,
            ring_bytes=self.ring_bytes,
            ring_payload_bytes_min=self.ring_payload_bytes_min,
        )

    def delivery(self, producer_id: int, producer_epoch: int) -> Delivery:
        """The core that does what the options say.

        Raises:
            InvalidSetting: an id or epoch that no producer has.
        """
        for name, value, minimum, maximum in (
            ("producer_id", producer_id, NO_PRODUCER_ID, LONG_MAX),
            ("producer_epoch", producer_epoch, 0, limits.PRODUCER_EPOCH_MAX),
        ):
            if type(value) is not int or not minimum <= value <= maximum:
                raise InvalidSetting(name, value, f"must be from {minimum} to {maximum}")
        return Delivery(
            self.terms(),
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            resend=self.resend,
            idempotent=self.idempotent,
            buffer_bytes_max=self.buffer_bytes,
            buffer_frames_max=self.buffer_frames,
            delivery_timeout_ms=self.delivery_timeout_ms,
        )


def client_options(path: str | os.PathLike[str], **values: Any) -> ClientOptions:
    """Check options given by their attribute names.

    Raises:
        InvalidSetting: an option that is unknown, of the wrong type or out of its bounds.
        InvalidTopicName: a topic that cannot be.
    """
    values["path"] = os.fspath(path)
    topics = values.get("topics", ())
    if isinstance(topics, str):
        raise InvalidSetting("host.client.topics", topics, "must be a list of topics")
    values["topics"] = tuple(topics)
    known = {info.attribute: info for info in describe(ClientOptions)}
    arguments: dict[str, Any] = {}
    for name, value in values.items():
        if name not in known:
            raise InvalidSetting(name, value, unknown(name, known))
        arguments[name] = parse(known[name], value)
    options = ClientOptions(**arguments)
    size = len(os.fsencode(options.path))
    if not 0 < size <= PATH_BYTES_MAX or "\0" in options.path:
        raise InvalidSetting(
            "host.client.path", options.path, f"must have 1 to {PATH_BYTES_MAX} bytes"
        )
    if len(options.topics) > limits.TOPICS_PER_HELLO_MAX:
        raise InvalidSetting(
            "host.client.topics",
            f"{len(options.topics)} topics",
            f"at most {limits.TOPICS_PER_HELLO_MAX}",
        )
    for topic in options.topics:
        validate_topic_name(topic)
    return options
