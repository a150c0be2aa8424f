"""Bugs to be found: each lets readers of committed records go too far, or holds them back."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.base.settings import LONG_MAX
from penstock.partitions.local import ReplicaState
from penstock.storage.files.producers import OpenTransactions
from sim.stable.world import Kinds


class PassesOpenOnes(OpenTransactions):
    """The newest open transaction counts, not the oldest."""

    def _find_first(self) -> None:
        super()._find_first()
        self.first_unstable_offset = max(self._open, default=self.first_unstable_offset)


class BelievesAnyMarker(OpenTransactions):
    """A marker counts before it is committed."""

    def decided(self, first_offset: int, marker_offset: int) -> int:
        below = super().decided(first_offset, marker_offset)
        self._decided.pop()
        self._find_first()
        return below

    def decided_not(self, first_offset: int) -> None:
        self._open = dict.fromkeys(sorted([first_offset, *self._open]))
        self._find_first()


class ForgetsWhatIsTakenBack(OpenTransactions):
    """A transaction whose marker was not to be is closed all the same."""

    def decided_not(self, first_offset: int) -> None:
        super().decided_not(first_offset)
        self._open.pop(first_offset)
        self._find_first()

    def decided(self, first_offset: int, marker_offset: int) -> int:
        self._open.setdefault(first_offset)
        return super().decided(first_offset, marker_offset)


class ForgetsAtRestart(OpenTransactions):
    """What a snapshot says to be open is not."""

    def __init__(self, first_offsets: Iterable[int] = ()) -> None:
        super().__init__()

    def decided(self, first_offset: int, marker_offset: int) -> int:
        self._open.setdefault(first_offset)
        return super().decided(first_offset, marker_offset)


class HoldsBackForEver(OpenTransactions):
    """Markers that are committed free nobody."""

    def committed_to(self, offset: int) -> None:
        return


class KeepsWhatNeverBegan(OpenTransactions):
    """A transaction whose first batch was taken back is open for ever."""

    def began_not(self, first_offset: int) -> None:
        self.first_unstable_offset = min(first_offset, self.first_unstable_offset, LONG_MAX)


class TakesTheMarkForStable(ReplicaState):
    """What is committed counts as stable."""

    __slots__ = ()

    def committed_to(self, offset: int) -> bool:
        more = super().committed_to(offset)
        self.last_stable_offset = self.high_watermark
        return more


PLANTS = {
    "past-open": Kinds(transactions=PassesOpenOnes),
    "any-marker": Kinds(transactions=BelievesAnyMarker),
    "taken-back": Kinds(transactions=ForgetsWhatIsTakenBack),
    "restart": Kinds(transactions=ForgetsAtRestart),
    "for-ever": Kinds(transactions=HoldsBackForEver),
    "never-began": Kinds(transactions=KeepsWhatNeverBegan),
    "all-is-stable": Kinds(replica=TakesTheMarkForStable),
}
