"""Filesystem outbox: payloads are files on a shared file system, and a topic has pointers to them.

`OutboxWriter` (asyncio) and `Outbox` (threads) write a payload as a file and publish a pointer to
it. A small payload is put into the record itself. `OutboxReader` reads payloads by their pointers,
and `OutboxConsumer` reads the topic. Names are imported on first use, so that a consumer does not
load the writer.
"""

from typing import TYPE_CHECKING

from penstock.base.extras import required

if TYPE_CHECKING:
    from penstock.outbox.errors import BatchIdentity
    from penstock.outbox.gc.audit import Auditor
    from penstock.outbox.gc.pointer_index import TopicPointers
    from penstock.outbox.gc.sweeper import Sweeper, SweepRules
    from penstock.outbox.pointer import Pointer, decode_pointer, encode_pointer
    from penstock.outbox.pointer_table import decode_pointers
    from penstock.outbox.reader.consumer import OutboxConsumer, OutboxMessage
    from penstock.outbox.reader.consuming import ConsumerLimits
    from penstock.outbox.reader.policy import ReadPolicy
    from penstock.outbox.reader.reader import OutboxReader, PayloadStream
    from penstock.outbox.settings import OutboxSettings
    from penstock.outbox.writer.blocking import Outbox
    from penstock.outbox.writer.jobs import SendResult, WriteResult
    from penstock.outbox.writer.publisher import PointerPublisher, TopicPublisher
    from penstock.outbox.writer.writer import OutboxWriter

_HOMES = {
    "Auditor": "gc.audit",
    "BatchIdentity": "errors",
    "ConsumerLimits": "reader.consuming",
    "Outbox": "writer.blocking",
    "OutboxConsumer": "reader.consumer",
    "OutboxMessage": "reader.consumer",
    "OutboxReader": "reader.reader",
    "OutboxSettings": "settings",
    "OutboxWriter": "writer.writer",
    "PayloadStream": "reader.reader",
    "Pointer": "pointer",
    "PointerPublisher": "writer.publisher",
    "ReadPolicy": "reader.policy",
    "SendResult": "writer.jobs",
    "SweepRules": "gc.sweeper",
    "Sweeper": "gc.sweeper",
    "TopicPointers": "gc.pointer_index",
    "TopicPublisher": "writer.publisher",
    "WriteResult": "writer.jobs",
    "decode_pointer": "pointer",
    "decode_pointers": "pointer_table",
    "encode_pointer": "pointer",
}

__all__ = [
    "Auditor",
    "BatchIdentity",
    "ConsumerLimits",
    "Outbox",
    "OutboxConsumer",
    "OutboxMessage",
    "OutboxReader",
    "OutboxSettings",
    "OutboxWriter",
    "PayloadStream",
    "Pointer",
    "PointerPublisher",
    "ReadPolicy",
    "SendResult",
    "SweepRules",
    "Sweeper",
    "TopicPointers",
    "TopicPublisher",
    "WriteResult",
    "decode_pointer",
    "decode_pointers",
    "encode_pointer",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(required(f"penstock.outbox.{home}", "client"), name)
