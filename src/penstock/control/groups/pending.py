"""Pending offsets of open transactions, stored beside the committed ones until the decision.

A transaction's record has a row with the producer's id and epoch for each group in it. Offsets are
staged under a lock of that row. The save that decides the transaction deletes the row and completes
the staged offsets in the same database transaction, so no offset is staged after the decision.

The newest offset of a partition wins, as in Kafka: ordinals order the offsets of transactions, and
a commit outside of transactions supersedes all earlier pending ones.

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
    key = transaction.transactional_id.encode()
    row = yield records.lock_member(TRANSACTION, key, (GROUP_MEMBER + group_id).encode())
    _check(transaction, group_id, row)
    brought = yield from newest(committed)
    yield statements.write([statements.values_of(offset) for offset in brought], group_id, key)


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


def complete(ends: Mapping[str, OffsetsEnd]) -> Operation[None]:
    """Commit or drop the pending offsets of transactions, by transactional id.

    The caller has deleted the rows of their groups, so nothing is staged concurrently.
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
    yield offsets.overtake_older([(*offset[:4], ordinal) for ordinal, offset in ordered])
    yield offsets.write_completed([(*offset, None) for _, offset in ordered])
