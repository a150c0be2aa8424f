"""Partitions on several brokers: who holds them, and how their copies stay alike.

`Epoch` is the leader's side of one partition, from the claim of an epoch to the end of its
leadership; `Replica` is the side of each copy, the leader's own included. Neither has I/O: shells
perform what they say. `sim/replication` tries these very classes in every order of events.
"""

from penstock.replication.chain import Chain, Link, parts_at
from penstock.replication.effects import (
    Committed,
    Compare,
    EndFound,
    Halt,
    MarkMoved,
    PersistLimbo,
    PersistPromise,
    SealAndOpen,
    StartAt,
    Stopped,
    TruncateTo,
    Write,
)
from penstock.replication.epoch import Claim, Epoch, Phase, Terms
from penstock.replication.messages import (
    Ack,
    Append,
    Fence,
    FenceAnswer,
    Fenced,
    Join,
    JoinFirst,
    LogEnd,
    Position,
)
from penstock.replication.quorum import Quorum
from penstock.replication.replica import Disk, Replica, Sync

__all__ = [
    "Ack",
    "Append",
    "Chain",
    "Claim",
    "Committed",
    "Compare",
    "Disk",
    "EndFound",
    "Epoch",
    "Fence",
    "FenceAnswer",
    "Fenced",
    "Halt",
    "Join",
    "JoinFirst",
    "Link",
    "LogEnd",
    "MarkMoved",
    "PersistLimbo",
    "PersistPromise",
    "Phase",
    "Position",
    "Quorum",
    "Replica",
    "SealAndOpen",
    "StartAt",
    "Stopped",
    "Sync",
    "Terms",
    "TruncateTo",
    "Write",
    "parts_at",
]
