"""The filesystem outbox: payloads on a shared file system, pointers on the log.

`OutboxWriter` (asyncio) and `Outbox` (threads) write a payload as a file and publish a pointer to
it, or put a small one into the record itself; `OutboxReader` and `OutboxConsumer` are the other
end. Names are looked up when they are first used, so that a consumer does not load the writer.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.outbox.audit import Auditor
    from penstock.outbox.blocking import Outbox
    from penstock.outbox.consumer import OutboxConsumer, OutboxMessage
    from penstock.outbox.consuming import ConsumerLimits
    from penstock.outbox.errors import BatchIdentity
    from penstock.outbox.jobs import SendResult, WriteResult
    from penstock.outbox.pointer import Pointer, decode_pointer, decode_pointers, encode_pointer
    from penstock.outbox.publisher import PointerPublisher, TopicPublisher
    from penstock.outbox.read_policy import ReadPolicy
    from penstock.outbox.reader import OutboxReader, PayloadStream
    from penstock.outbox.settings import OutboxSettings
    from penstock.outbox.sweep_rules import SweepRules
    from penstock.outbox.sweeper import Sweeper
    from penstock.outbox.topic_pointers import TopicPointers
    from penstock.outbox.writer import OutboxWriter

_HOMES = {
    "Auditor": "audit",
    "BatchIdentity": "errors",
    "ConsumerLimits": "consuming",
    "Outbox": "blocking",
    "OutboxConsumer": "consumer",
    "OutboxMessage": "consumer",
    "OutboxReader": "reader",
    "OutboxSettings": "settings",
    "OutboxWriter": "writer",
    "PayloadStream": "reader",
    "Pointer": "pointer",
    "PointerPublisher": "publisher",
    "ReadPolicy": "read_policy",
    "SendResult": "jobs",
    "SweepRules": "sweep_rules",
    "Sweeper": "sweeper",
    "TopicPointers": "topic_pointers",
    "TopicPublisher": "publisher",
    "WriteResult": "jobs",
    "decode_pointer": "pointer",
    "decode_pointers": "pointer",
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
    return getattr(import_module(f"penstock.outbox.{home}"), name)
