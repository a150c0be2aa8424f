"""Options of a client of the host agent, with their bounds; both clients have the same options."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from penstock.base.errors import InvalidSetting
from penstock.base.ids import validate_topic_name
from penstock.base.settings import INT_MAX, LONG_MAX, describe, parse, setting, unknown
from penstock.host import errors
from penstock.host.client_machine import ClientTerms
from penstock.host.delivery import Delivery
from penstock.host.port import NO_PRODUCER_ID
from penstock.host.ring import RING_BYTES_MAX

DEFAULT_PATH: Final = "/var/run/penstock/host.sock"
PATH_BYTES_MAX: Final = 107
"""Maximum bytes of a socket path: a socket address has 108 bytes, of which the last is zero."""

_MIB: Final = 1 << 20
_DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """Options of `HostClient` and `AsyncHostClient`."""

    PREFIX: ClassVar = "host.client."

    path: str = setting(DEFAULT_PATH, "Path of the agent's socket file, at most 107 bytes.")
    topics: tuple[str, ...] = setting(
        (),
        "Topics to which the client publishes. The agent then sends their numbers of partitions.",
    )
    client_name: str = setting(
        "", "Name of this producer in the agent's log and status.", name="host.client.name"
    )
    resend: bool = setting(
        True, "Whether frames are kept and sent again if the connection ends or the agent fails"
        " them as retryable. Without it such a frame ends with its error, and publishing"
        " without credit fails at once.",
    )  # fmt: skip
    idempotent: bool = setting(
        True, "With resend: whether frames with a topic and a partition are numbered. The log"
        " then stores each once, even if it is sent several times.",
    )  # fmt: skip
    checksum: bool = setting(
        False, "Whether payloads are sent with a checksum. Copies by the kernel do not need one."
    )
    ring_bytes: int = setting(
        0, "Size of a ring of shared memory for payloads, allocated for each connection. 0 means"
        " no ring.", 0,
        RING_BYTES_MAX,
    )  # fmt: skip
    ring_payload_bytes_min: int = setting(
        64 << 10, "Size from which payloads use the ring; smaller payloads are sent on the socket.",
        1,
        RING_BYTES_MAX, name="host.client.ring.payload.min.bytes",
    )  # fmt: skip
    connect_timeout_ms: int = setting(
        5_000, "Maximum time for the agent's answer to HELLO, and for a first publish that waits"
        " for an agent.", 1, _DAY_MS,
    )  # fmt: skip
    publish_timeout_ms: int = setting(
        30_000, "Without resend: maximum time for the agent's answer to a frame. With resend:"
        " maximum time that publish waits for space in the buffer.", 1, _DAY_MS,
    )  # fmt: skip
    delivery_timeout_ms: int = setting(
        120_000, "With resend: time after publish until which a frame is sent again. After it"
        " the frame ends with an error.", 1, _DAY_MS,
    )  # fmt: skip
    drain_timeout_ms: int = setting(
        20_000, "Maximum time to wait for answers of a draining agent. An earlier deadline of"
        " the agent applies instead.", 0, _DAY_MS,
    )  # fmt: skip
    exit_timeout_ms: int = setting(
        5_000, "Maximum time that the end of the interpreter waits for outstanding publications.",
        0,
        _DAY_MS,
    )  # fmt: skip
    buffer_bytes: int = setting(
        64 * _MIB, "Maximum payload bytes of frames that have not ended.", 1, INT_MAX
    )
    buffer_frames: int = setting(
        65_536, "Maximum number of frames that have not ended.", 1, INT_MAX
    )
    socket_buffer_bytes: int = setting(
        4 * _MIB, "Size of the socket's send and receive buffers. The kernel caps it"
        " (net.core.wmem_max).",
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
        """Return a `Delivery` core with these options, for a producer id and its epoch.

        Raises:
            InvalidSetting: the producer id or the epoch is out of its bounds.
        """
        for name, value, minimum, maximum in (
            ("producer_id", producer_id, NO_PRODUCER_ID, LONG_MAX),
            ("producer_epoch", producer_epoch, 0, errors.PRODUCER_EPOCH_MAX),
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
    """Return options from values by attribute name, after checking them.

    Raises:
        InvalidSetting: an option is unknown, of the wrong type or out of its bounds.
        InvalidTopicName: a topic name is invalid.
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
    if len(options.topics) > errors.TOPICS_PER_HELLO_MAX:
        raise InvalidSetting(
            "host.client.topics",
            f"{len(options.topics)} topics",
            f"must be at most {errors.TOPICS_PER_HELLO_MAX} topics",
        )
    for topic in options.topics:
        validate_topic_name(topic)
    return options
