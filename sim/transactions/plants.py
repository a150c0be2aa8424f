"""Bugs to be found: each breaks one rule of the core."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from penstock.broker.groups.runtime.core import Effect, Saved, SaveFailed, Stored
from penstock.broker.transactions import (
    Added,
    AddToTransaction,
    Ended,
    EndTransaction,
    Initialised,
    InitProducerId,
    MarkersWritten,
    TransactionMetadata,
    Transactions,
    TransactionState,
    Verified,
    VerifyPartitions,
)
from penstock.broker.transactions.events import WriteMarkers
from penstock.broker.transactions.rules import Change, Decision, Pending, Request, Transaction
from sim.transactions.bounds import Bounds

CRASH = Bounds(crashes=1)
TWO = Bounds(partitions=2)
RIVALS = Bounds(clients=2)
NEXT = Bounds(transactions=2, crashes=1)


class LosesMarkers(Transactions):
    def _write_markers(self, transaction: Transaction, metadata: TransactionMetadata) -> None:
        kept = frozenset(sorted(metadata.partitions, key=str)[:1])
        super()._write_markers(transaction, replace(metadata, partitions=kept))


class ForgetsMarkersAtLoad(Transactions):
    def load(self, stored: Stored, now_ms: int) -> list[Effect]:
        effects = super().load(stored, now_ms)
        return [effect for effect in effects if not isinstance(effect, WriteMarkers)]


class CompletesAtFirstMarker(Transactions):
    def _marked(self, event: MarkersWritten, token: int) -> None:
        transaction = self._transactions[event.transactional_id]
        super()._marked(replace(event, partitions=set(transaction.unmarked)), token)


class MarksBeforeSave(Transactions):
    def _save(self, transaction: Transaction, pending: Pending) -> None:
        super()._save(transaction, pending)
        self._write_markers(transaction, pending.after)


class AnswersBeforeSave(Transactions):
    def _save(self, transaction: Transaction, pending: Pending) -> None:
        super()._save(transaction, pending)
        for token, response in pending.answers:
            self._reply(token, response)
        pending.answers = []


class TakesFailedForNever(Transactions):
    def _save_failed(self, event: SaveFailed, token: int) -> None:
        super()._save_failed(event, token)
        transaction = self._transactions[event.key]
        transaction.pending = None


class TakesFailedForDurable(Transactions):
    def _save_failed(self, event: SaveFailed, token: int) -> None:
        self._saved(Saved(key=event.key), token)


class EndsInTheSameEpoch(Transactions):
    def _decide(self, known: TransactionMetadata | None, event: Any) -> Decision:
        decision = super()._decide(known, event)
        if isinstance(event, EndTransaction) and isinstance(decision, Change) and known:
            after = replace(decision.after, producer=known.producer, last=known.last)
            return Change(after=after, answer=Ended(producer=known.producer))
        return decision


class BeginsInTheSameEpoch(Transactions):
    def _decide(self, known: TransactionMetadata | None, event: Any) -> Decision:
        decision = super()._decide(known, event)
        if not isinstance(event, InitProducerId) or not isinstance(decision, Change):
            return decision
        if known is not None and decision.answer is not None:
            after = replace(decision.after, producer=known.producer)
            return Change(after=after, answer=Initialised(producer=known.producer))
        return decision


class FencesInTheSameEpoch(Transactions):
    def _decide(self, known: TransactionMetadata | None, event: Any) -> Decision:
        decision = super()._decide(known, event)
        if isinstance(decision, Change) and decision.answer is None and known:
            after = replace(decision.after, producer=known.producer)
            return replace(decision, after=after)
        return decision


class TimesOutInTheSameEpoch(Transactions):
    def _due(self, transaction: Transaction) -> None:
        super()._due(transaction)
        pending, known = transaction.pending, transaction.metadata
        if pending is not None and known is not None and not pending.sent:
            pending.after = replace(pending.after, producer=known.producer)


class BeginsOverAnOpenTransaction(Transactions):
    def _decide(self, known: TransactionMetadata | None, event: Any) -> Decision:
        if isinstance(event, InitProducerId) and known is not None and known.partitions:
            known = replace(
                known, state=TransactionState.EMPTY, partitions=frozenset(), groups=frozenset()
            )
        return super()._decide(known, event)


class AddsAfterTheDecision(Transactions):
    def _consider(self, transaction: Transaction, request: Request) -> None:
        known = transaction.metadata
        if isinstance(request.event, AddToTransaction) and known and known.state.prepared:
            self._reply(request.token, Added())
            return
        super()._consider(transaction, request)


class AddsForAnyEpoch(Transactions):
    def _decide(self, known: TransactionMetadata | None, event: Any) -> Decision:
        if isinstance(event, AddToTransaction) and known is not None:
            event = replace(event, producer=known.producer)
        return super()._decide(known, event)


class AddsInMemory(Transactions):
    def _consider(self, transaction: Transaction, request: Request) -> None:
        pending = transaction.pending
        if isinstance(request.event, AddToTransaction) and pending is not None:
            parts = pending.after.partitions | request.event.partitions
            pending.after = replace(pending.after, partitions=parts)
            self._reply(request.token, Added())
            return
        super()._consider(transaction, request)


class EndsForAnyEpoch(Transactions):
    def _decide(self, known: TransactionMetadata | None, event: Any) -> Decision:
        if isinstance(event, EndTransaction) and known is not None:
            event = replace(event, producer=known.producer)
        return super()._decide(known, event)


class CompletesTheOtherWay(Transactions):
    def _save(self, transaction: Transaction, pending: Pending) -> None:
        if pending.completes_offsets is not None:
            pending.completes_offsets = "commit"
        super()._save(transaction, pending)


class CompletesBeforeTheDecision(Transactions):
    def _save(self, transaction: Transaction, pending: Pending) -> None:
        known = transaction.metadata
        if known is not None and known.groups and pending.after.state is TransactionState.ONGOING:
            pending.after = replace(pending.after, groups=frozenset())
            pending.completes_offsets = "commit"
        super()._save(transaction, pending)


class NeverTimesOut(Transactions):
    def _due(self, transaction: Transaction) -> None:
        known = transaction.metadata
        if known is None or known.state is not TransactionState.ONGOING or transaction.pending:
            super()._due(transaction)


class VerifiesAnything(Transactions):
    def _verify(self, event: VerifyPartitions, token: int) -> None:
        self._reply(token, Verified(missing=frozenset()))


class RunsOutOfEpochs(Transactions):
    def _decide(self, known: TransactionMetadata | None, event: Any) -> Decision:
        decision = super()._decide(known, event)
        if not isinstance(decision, Change) or not isinstance(event, EndTransaction):
            return decision
        if known is not None and known.producer.exhausted:
            after = replace(decision.after, next_producer_id=-1)
            return Change(after=after, answer=Ended(producer=after.producer))
        return decision


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """A core with a bug, and the bounds in which it shows."""

    what: str
    kind: type[Transactions]
    bounds: Bounds = CRASH


PLANTS = {
    "marker-lost": Plant(what="only one partition gets its marker", kind=LosesMarkers, bounds=TWO),
    "markers-not-resumed": Plant(
        what="a new owner leaves what is prepared as it is", kind=ForgetsMarkersAtLoad
    ),
    "complete-at-first-marker": Plant(
        what="a transaction is complete with its first marker",
        kind=CompletesAtFirstMarker,
        bounds=Bounds(partitions=2, transactions=2, crashes=1),
    ),
    "marker-before-save": Plant(
        what="markers are written before the decision is durable", kind=MarksBeforeSave
    ),
    "answer-before-save": Plant(
        what="a client is told of an end that is not durable", kind=AnswersBeforeSave
    ),
    "failed-is-never": Plant(
        what="another outcome may follow one whose save is in doubt",
        kind=TakesFailedForNever,
        bounds=Bounds(group=True, failures=1),
    ),
    "failed-is-durable": Plant(
        what="a save that failed counts as one that did not",
        kind=TakesFailedForDurable,
        bounds=Bounds(failures=1, crashes=1),
    ),
    "epoch-not-raised": Plant(
        what="an end of version 2 leaves the epoch", kind=EndsInTheSameEpoch, bounds=NEXT
    ),
    "begin-in-same-epoch": Plant(
        what="two producers get one epoch", kind=BeginsInTheSameEpoch, bounds=RIVALS
    ),
    "fence-in-same-epoch": Plant(
        what="an abort for another producer leaves the epoch",
        kind=FencesInTheSameEpoch,
        bounds=Bounds(clients=2, crashes=1),
    ),
    "timeout-in-same-epoch": Plant(
        what="a transaction that has timed out is aborted in its own epoch",
        kind=TimesOutInTheSameEpoch,
        bounds=Bounds(ticks=1),
    ),
    "begin-over-open": Plant(
        what="a producer begins while another's transaction is open",
        kind=BeginsOverAnOpenTransaction,
        bounds=RIVALS,
    ),
    "added-after-decision": Plant(
        what="a partition is added after the decision",
        kind=AddsAfterTheDecision,
        bounds=Bounds(partitions=2, transactions=2),
    ),
    "added-for-any-epoch": Plant(
        what="a fenced producer's partitions are added", kind=AddsForAnyEpoch, bounds=RIVALS
    ),
    "added-in-memory": Plant(
        what="a partition is added to a save that is on its way already",
        kind=AddsInMemory,
        bounds=Bounds(partitions=2, crashes=1),
    ),
    "end-for-any-epoch": Plant(
        what="a fenced producer ends another's transaction", kind=EndsForAnyEpoch, bounds=RIVALS
    ),
    "offsets-always-committed": Plant(
        what="the offsets of an aborted transaction are committed",
        kind=CompletesTheOtherWay,
        bounds=Bounds(group=True),
    ),
    "offsets-before-decision": Plant(
        what="offsets are committed while their transaction is open",
        kind=CompletesBeforeTheDecision,
        bounds=Bounds(group=True),
    ),
    "never-times-out": Plant(
        what="an open transaction is open for ever", kind=NeverTimesOut, bounds=Bounds()
    ),
    "verifies-anything": Plant(
        what="partitions are part of any transaction",
        kind=VerifiesAnything,
        bounds=Bounds(version=1, clients=2),
    ),
    "out-of-epochs": Plant(
        what="the producer id is not changed when its epochs are used up",
        kind=RunsOutOfEpochs,
        bounds=Bounds(epoch=32_766),
    ),
}
