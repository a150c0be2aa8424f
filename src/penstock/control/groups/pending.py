"""Offsets of open transactions: they wait beside those that are committed until the decision.

A transaction's record has a row for each group whose offsets belong to it, with the producer's id
and epoch. Offsets are staged under a lock of that row. The save that decides the transaction
deletes it, and settles what was staged, in the same transaction of the database: an offset is there
by then, or is refused, so that none waits for ever and none comes late.

Of a partition the offset that was brought last counts, by whatever way, as in Kafka: ordinals say
in which order transactions brought theirs, and what is committed overtakes what was brought before.

Source: Kafka's `OffsetMetadataManager`; KIP-98, KIP-447, KIP-890.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.control.coordination import statements as records
from penstock.control.coordination.values import (
    GROUP_MEMBER,
    TRANSACTION,
    OffsetsEnd,
    OpenTransaction,
    producer_of_group_row,
)
from penstock.control.drivers.statements import Operation
from penstock.control.errors import NotInTransaction, StaleProducerEpoch
from penstock.control.groups import pending_statements as statements
from penstock.control.groups import statements as offsets
from penstock.control.groups.operations import newest
from penstock.control.values import CommittedOffset


def stage(
    transaction: OpenTransaction, group_id: str, committed: Sequence[CommittedOffset]
) -> Operation[None]:
    """Store offsets of an open transaction, of a partition's the newest."""
    key = transaction.transactional_id.encode()
    row = yield records.lock_member(TRANSACTION, key, (GROUP_MEMBER + group_id).encode())
    _check(transaction, group_id, row)
    brought = yield from newest(committed)
    yield statements.write([statements.values_of(one) for one in brought], group_id, key)


def _check(transaction: OpenTransaction, group_id: str, row: bytes | None) -> None:
    if row is None:
        raise NotInTransaction(transaction.transactional_id, group_id)
    producer_id, producer_epoch = producer_of_group_row(row)
    if producer_id != transaction.producer_id or producer_epoch < transaction.producer_epoch:
        raise NotInTransaction(transaction.transactional_id, group_id)
    if producer_epoch > transaction.producer_epoch:
        raise StaleProducerEpoch(
            transaction.transactional_id, transaction.producer_epoch, producer_epoch
        )


def settle(ends: Mapping[str, OffsetsEnd]) -> Operation[None]:
    """Commit or drop what transactions have brought, by transactional id.

    Whoever stages has ended by now: the rows of the transactions' groups are deleted before.
    """
    keys = [(key.encode(),) for key in ends]
    found = yield statements.take(keys)
    if not found:
        return
    yield statements.drop(keys)
    committed: dict[tuple[str, str, int], tuple[int, statements.PendingOffset]] = {}
    for transactional_id, ordinal, overtaken, *values in found:
        one = statements.PendingOffset(*values)
        place = one.group_id, one.topic, one.partition
        if (
            ends[transactional_id.decode()] == "commit"
            and not overtaken
            and ordinal >= committed.get(place, (0,))[0]
        ):
            committed[place] = ordinal, one
    ordered = [committed[place] for place in sorted(committed)]
    yield offsets.overtake_older([(*one[:4], ordinal) for ordinal, one in ordered])
    yield offsets.write_settled([(*one, None) for _, one in ordered])
