"""Bugs to be found: each breaks one rule of the cores, or of what their shells do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.replication.epoch import Epoch
from penstock.replication.replica import Replica
from sim.replication import copies
from sim.replication import planted_epochs as epochs
from sim.replication import planted_replicas as replicas
from sim.replication.bounds import Bounds
from sim.replication.copies import Live

SMALL = Bounds(claims=1, syncs="separate")
BEGUN = Bounds(claims=1, syncs="begun")
WIPED = Bounds(claims=1, wipes=1)
FOLDED = Bounds()
MOVES = Bounds(claims=1, entries=1, placement=(0, 1), target=(0, 2))
TOLD = Bounds(claims=1, refusals=True)
COMPACTED = Bounds(claims=1, compacts=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """What is replaced, and the bounds in which it shows; nothing by default.

    `own`: the first leader's own copy, where it is another kind than the others. `seal`: when the
    compare-and-set succeeds. `reuses_epochs`: a restarted leader goes on in its epoch.
    `literal_fences`: the invariant that after f promises nothing below completes a quorum at all.
    `moves_blindly`: the compare-and-set does not ask whether a move is still wanted.
    `deletes_early`: removed copies go when an epoch without them is claimed.
    `forgets_start`: after a crash there is what was there before the log began anew. `deletes_all`:
    copies delete what is durable there. `compacts_all`: they compact so. `ends_at_holes`: a
    claimant takes a hole for the end of what it found. `drops_newest`: a leader keeps no record of
    a key, as if that were a tombstone whose time is over. `loses`: it must show in what is sealed,
    not in what a wiped disk lacks.
    """

    what: str = ""
    bounds: Bounds = SMALL
    replica: type[Replica] = Replica
    own: type[Replica] | None = None
    epoch: type[Epoch] = Epoch
    seal: Literal["reserved", "unchanged", "always"] = "reserved"
    reuses_epochs: bool = False
    literal_fences: bool = False
    forgets_limbo: bool = False
    deletes_early: bool = False
    moves_blindly: bool = False
    forgets_start: bool = False
    deletes_all: bool = False
    compacts_all: bool = False
    ends_at_holes: bool = False
    drops_newest: bool = False
    loses: bool = False

    def crash(self, live: Live) -> None:
        """A replica restarts over what is on disk."""
        if self.forgets_limbo:
            live.disk = live.disk._replace(limbo=0)
        if self.forgets_start:
            log, before = live.disk.log, live.disk.before
            kept = [
                old if entry is None else entry for entry, old in zip(log, before, strict=False)
            ]
            live.disk = live.disk._replace(log=(*kept, *log[len(kept) :]), before=())
        copies.crash(live)


SOUND = Plant()

PLANTS = {
    "ack-before-sync": Plant(
        what="a replica acknowledges before its sync", replica=replicas.AcksBeforeSync
    ),
    "promise-not-synced": Plant(
        what="a replica answers a fence before the promise is synced",
        replica=replicas.AnswersBeforePromiseIsSynced,
    ),
    "answer-before-sync": Plant(
        what="a fence's answer tells of the durable end of before the promise's sync",
        replica=replicas.AnswersWithEndOfBeforeSync,
    ),
    "leader-counts-before-sync": Plant(
        what="a leader counts its own copy before it is synced", own=replicas.LeaderAcksBeforeSync
    ),
    "leader-skips-own-fence": Plant(
        what="a leader's own copy takes its appends whatever it promised",
        own=replicas.LeaderSkipsItsFence,
    ),
    "accept-lower-epoch": Plant(
        what="a replica takes appends of epochs below its promise",
        replica=replicas.AcceptsLowerEpochs,
    ),
    "stale-leader-keeps-committing": Plant(
        what="a leader counts a fenced answer as an acknowledgement",
        epoch=epochs.CountsRefusals,
        bounds=TOLD,
    ),
    "lower-ack-quorum": Plant(
        what="a leader commits with one acknowledgement less", epoch=epochs.CommitsWithOneLess
    ),
    "answer-client-early": Plant(
        what="a leader answers clients at the highest acknowledged offset",
        epoch=epochs.AnswersClientsEarly,
    ),
    "end-found-without-fencing-reads": Plant(
        what="reads of the recovery are answered without a promise",
        replica=replicas.AnswersWithoutPromise,
    ),
    "absent-from-too-few": Plant(
        what="an offset is taken for absent with less than f answers", epoch=epochs.AsksTooFew
    ),
    "seal-at-one-mark": Plant(
        what="an epoch is sealed at the highest commit mark of the answers",
        epoch=epochs.SealsAtMark,
    ),
    "no-write-back": Plant(
        what="an epoch is sealed before what was found is durable on a replicas",
        epoch=epochs.WritesNothingBack,
    ),
    "adopt-tail-without-rereplication": Plant(
        what="a recovered tail counts as committed before it is written back",
        epoch=epochs.CommitsWhatItFound,
    ),
    "present-by-offset": Plant(
        what="a recovered offset is read without looking at its epoch",
        replica=replicas.AnswersByOffset,
        bounds=FOLDED,
    ),
    "open-without-compare": Plant(
        what="seal and open overwrites whatever the chain has become", seal="always", bounds=FOLDED
    ),
    "reuse-epoch": Plant(what="a restarted leader goes on in its epoch", reuses_epochs=True),
    "no-truncation": Plant(
        what="a replica keeps, at an offset, what it has, whatever its epoch",
        replica=replicas.NeverTruncates,
    ),
    "truncate-at-start-only": Plant(
        what="a replica cuts at the newest epoch's start, not where chains part",
        replica=replicas.TruncatesAtNewestStart,
        bounds=FOLDED,
    ),
    "truncate-below-commit": Plant(
        what="a replica that learns of a new epoch cuts its log to its commit mark",
        replica=replicas.TruncatesToMark,
    ),
    "mark-before-truncation": Plant(
        what="a replica takes a commit mark before it has cut its stale tail",
        replica=replicas.TakesMarkBeforeCut,
    ),
    "commit-mark-ahead": Plant(
        what="a leader tells replicas the end of its log as commit mark",
        epoch=epochs.TellsItsEndAsMark,
    ),
    "read-uncommitted": Plant(
        what="replicas serve reads up to the end of their log", replica=replicas.ReadsToItsEnd
    ),
    "limbo-answers-absent": Plant(
        what="a replica that lost its disk answers as if it had been empty",
        replica=replicas.AnswersAbsent,
        bounds=WIPED,
        loses=True,
    ),
    "limbo-forgets-promise": Plant(
        what="a replica in limbo has no promise until it gives a new one",
        replica=replicas.LosesPromise,
        bounds=WIPED,
        loses=True,
    ),
    "limbo-not-durable": Plant(
        what="a replica that crashes in limbo comes back without it",
        forgets_limbo=True,
        bounds=Bounds(claims=1, entries=1, wipes=1, syncs="separate"),
        loses=True,
    ),
    "limbo-ends-at-mark": Plant(
        what="a replica leaves limbo at the commit mark, and what its former life had still counts",
        epoch=epochs.TellsMarkAndCountsFormerLives,
        bounds=WIPED,
        loses=True,
    ),
    "stream-outlives-promise": Plant(
        what="a replica that promised more goes on taking the stream that it had joined",
        replica=replicas.KeepsStreamAfterPromise,
    ),
    "late-write-back": Plant(
        what="a replica joins a stream of before its leader opened its epoch, and cuts the new one",
        replica=replicas.TakesLateJoins,
        bounds=Bounds(claims=1),
    ),
    "write-back-counts-for-appends": Plant(
        what="a leader counts acknowledgements of before its epoch was open",
        epoch=epochs.CountsAcksOfWriteBack,
        bounds=Bounds(claims=1),
    ),
    "cut-stays-durable": Plant(
        what="a replica takes for durable what it has cut off",
        replica=replicas.AcknowledgesWhatItCut,
    ),
    "sync-covers-all": Plant(
        what="a sync counts for what was written after it began",
        replica=replicas.SyncCoversAll,
        bounds=BEGUN,
    ),
    "learner-counts": Plant(
        what="a leader counts learners in its quorum",
        epoch=epochs.CountsLearners,
        bounds=MOVES,
    ),
    "move-before-learnt": Plant(
        what="a placement takes over before a quorum of it holds all of the log",
        epoch=epochs.MovesTooEarly,
        bounds=MOVES,
    ),
    "new-placement-fenced": Plant(
        what="a claimant asks the placement to come, not that of the epoch which it seals",
        epoch=epochs.AsksPlacementToCome,
        bounds=MOVES,
    ),
    "move-after-cancel": Plant(
        what="a placement takes over that is not wanted any more, or is wanted anew",
        moves_blindly=True,
        bounds=MOVES,
    ),
    "removed-copy-deleted-early": Plant(
        what="a removed copy is deleted when an epoch without it is claimed",
        deletes_early=True,
        bounds=MOVES,
    ),
    "copy-begins-at-end": Plant(
        what="a copy begins at its leader's end, and counts for what it has skipped",
        epoch=epochs.StartsCopiesAtItsEnd,
        bounds=Bounds(claims=0, deletes=1),
    ),
    "start-forgotten-by-crash": Plant(
        what="a crash brings back what a copy had before its log began anew",
        forgets_start=True,
        bounds=Bounds(claims=1, deletes=1),
    ),
    "retention-above-mark": Plant(
        what="a copy deletes what is durable there, and was never committed",
        deletes_all=True,
        bounds=Bounds(claims=0, deletes=1),
    ),
    "compaction-above-mark": Plant(
        what="a copy takes records for old by newer ones that were never committed",
        compacts_all=True,
        bounds=COMPACTED,
    ),
    "hole-ends-the-log": Plant(
        what="a claimant that finds a compacted log takes its first hole for its end",
        ends_at_holes=True,
        bounds=COMPACTED,
    ),
    "compaction-drops-newest": Plant(
        what="a leader keeps no record of a key, as if its tombstone's time were over",
        drops_newest=True,
        bounds=COMPACTED,
    ),
    "literal-fence-invariant": Plant(
        what="not a bug: after f promises, no quorum at all below (too strict)", literal_fences=True
    ),
}

HARMLESS = {
    "open-below-reserved": Plant(
        what="seal and open asks for an unchanged chain, not for the reservation",
        seal="unchanged",
        bounds=FOLDED,
    ),
    "answer-below-promise": Plant(
        what="a replica that promised more answers a lower fence as well",
        replica=replicas.AnswersBelowPromise,
        bounds=Bounds(entries=1),
    ),
    "limbo-ends-at-mark-alone": Plant(
        what="a replica leaves limbo when it has all up to the commit mark",
        epoch=epochs.TellsItsMarkAsEnd,
        bounds=WIPED,
        loses=True,
    ),
    "former-lives-count": Plant(
        what="what a replica acknowledged before its disk was lost still counts",
        epoch=epochs.CountsFormerLives,
        bounds=WIPED,
        loses=True,
    ),
}
"""What the model shows to be safe as long as the rest holds.

Where the specification needs one rule, these cores have two: a replica refuses a stream of before
its log's epoch was opened (`Replica.join`), beside the condition on the reservation; and a leader
forgets what a replica's former life acknowledged, beside a limbo up to the end of its log.
"""
