"""Advice on moves of replicas and leaders that balance bytes and leaders over brokers.

Goals, in order; a later goal does not undo an earlier one:

1. Excluded brokers hold no replica.
2. The replicas of a partition are in as many racks as exist.
3. The bytes of each broker are within `TOLERANCE` of the mean: the largest suitable replica moves
   from the fullest broker to the emptiest one.
4. The numbers of partitions that brokers lead differ by at most one: another replica becomes
   leader, and nothing is copied.

The search is greedy and bounded by the number of moves that the caller allows. Brokers that are
offline keep their replicas and get no new ones. The caller omits partitions that are being moved.

Source: Cruise Control's goals (replica distribution on dead brokers, RackAwareGoal,
DiskUsageDistributionGoal with its balance threshold of 1.10, LeaderReplicaDistributionGoal).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final, Literal

from msgspec import Struct, field

from penstock.replication.placement import Replicas, Site

TOLERANCE: Final = 0.1
"""Maximum deviation of a broker's bytes from the mean of all brokers, as a share of the mean."""
TARGETS_MAX: Final = 8
"""Number of brokers, the emptiest first, to which a replica of the fullest one may move."""
STEPS_PER_MOVE: Final = 4
"""Maximum number of replica moves in the search, per move that may be advised."""

Place = tuple[str, int]
Why = Literal["broker is to go", "racks", "bytes", "leaders"]


class Held(Struct, frozen=True, kw_only=True):
    """Partition with its replicas, the preferred leader first, and the bytes of each replica."""

    place: Place
    replicas: Replicas
    size_bytes: int


class Load(Struct, frozen=True, kw_only=True):
    """Numbers of replicas and leaders, and bytes of one broker, if preferred leaders lead."""

    broker_id: int
    copies: int
    leads: int
    size_bytes: int


class Move(Struct, frozen=True, kw_only=True):
    """Change of a partition: other replicas, or another preferred leader (the first replica)."""

    place: Place
    before: Replicas
    after: Replicas
    why: tuple[Why, ...]
    copied_bytes: int


class Advice(Struct, frozen=True, kw_only=True):
    """Moves, the loads before and after them, and the bytes that pass the busiest broker's disk.

    `unfinished`: whether `moves_max` has ended the search.
    """

    moves: tuple[Move, ...]
    before: tuple[Load, ...]
    after: tuple[Load, ...]
    busiest_bytes: int
    unfinished: bool


def advise(
    brokers: Collection[Site],
    partitions: Sequence[Held],
    *,
    excluded: Collection[int] = (),
    moves_max: int = 100,
) -> Advice:
    """Return moves of at most `moves_max` partitions that balance the load of the brokers.

    `excluded` are the ids of brokers that should hold no replica.
    """
    search = _Search(
        racks={broker.broker_id: broker.rack or "" for broker in brokers},
        targets=sorted(broker.broker_id for broker in brokers if broker.broker_id not in excluded),
        held={partition.place: partition for partition in partitions},
        now={partition.place: partition.replicas for partition in partitions},
        moves_max=moves_max,
    )
    before = search.loads()
    if search.targets:
        search.leave(excluded)
        search.spread_over_racks()
        search.even_out_bytes()
        search.even_out_leaders()
    moves = tuple(search.moves())
    through = Counter[int]()
    for move in moves:
        size_bytes = search.held[move.place].size_bytes
        came = {*move.after} - {*move.before}
        through.update(dict.fromkeys(came, size_bytes))
        through[move.before[0]] += size_bytes * len(came)
    return Advice(
        moves=moves,
        before=before,
        after=search.loads(),
        busiest_bytes=max(through.values(), default=0),
        unfinished=search.unfinished,
    )


class _Search(Struct, kw_only=True):
    racks: Mapping[int, str]
    targets: Sequence[int]
    held: Mapping[Place, Held]
    now: dict[Place, Replicas]
    moves_max: int
    why: dict[Place, dict[Why, None]] = field(default_factory=dict)
    unfinished: bool = False
    size_bytes: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        for held in self.held.values():
            self.size_bytes.update(dict.fromkeys(held.replicas, held.size_bytes))

    # -- what is found

    def loads(self) -> tuple[Load, ...]:
        copies = Counter(chain.from_iterable(self.now.values()))
        leads = Counter(replicas[0] for replicas in self.now.values() if replicas)
        return tuple(
            Load(
                broker_id=broker,
                copies=copies[broker],
                leads=leads[broker],
                size_bytes=self.size_bytes[broker],
            )
            for broker in sorted({*self.racks, *copies})
        )

    def moves(self) -> Iterator[Move]:
        for place, why in self.why.items():
            before, after = self.held[place].replicas, self.now[place]
            if before != after:
                came = len({*after} - {*before})
                yield Move(
                    place=place,
                    before=before,
                    after=after,
                    why=tuple(why),
                    copied_bytes=self.held[place].size_bytes * came,
                )

    # -- goals

    def leave(self, excluded: Collection[int]) -> None:
        """Move all replicas away from excluded brokers."""
        for place in sorted(self.now, key=self._smallest_first):
            for broker in self.now[place]:
                if broker in excluded:
                    self._replace(place, broker, "broker is to go")

    def spread_over_racks(self) -> None:
        """Move replicas that share a rack to racks without a replica of their partition."""
        for place in sorted(self.now, key=self._smallest_first):
            for broker in reversed(self.now[place]):  # the leader stays, if it can
                replicas = self.now[place]
                others = [self._rack(other) for other in replicas if other != broker]
                free = {self.racks[it] for it in self.targets} - {*others, self._rack(broker)}
                if broker in self.racks and self._rack(broker) in others and free:
                    self._replace(place, broker, "racks")

    def even_out_bytes(self) -> None:
        """Move replicas until the bytes of each broker are close to the mean."""
        for _ in range(STEPS_PER_MOVE * self.moves_max):
            found = self._next_step()
            if found is None or not self._put(*found, "bytes"):
                return

    def _next_step(self) -> tuple[Place, int, int] | None:
        """Return the next move from the fullest broker that has a suitable replica."""
        order = sorted(self.targets, key=lambda broker: (self.size_bytes[broker], broker))
        slack = 2 * TOLERANCE * sum(self.size_bytes[broker] for broker in order) / len(order)
        for source in reversed(order):
            if self.size_bytes[source] - self.size_bytes[order[0]] <= slack:
                return None
            found = self._best(source, order[:TARGETS_MAX])
            if found is not None:
                return found
        return None

    def _best(self, source: int, targets: Sequence[int]) -> tuple[Place, int, int] | None:
        """Return the move of the largest replica that brings a broker and a target closer."""
        mine = [place for place, replicas in self.now.items() if source in replicas]
        mine.sort(key=lambda place: (-self.held[place].size_bytes, place))
        for target in targets:
            room = self.size_bytes[source] - self.size_bytes[target]
            for place in mine:
                size_bytes = self.held[place].size_bytes
                if 0 < size_bytes < room and self._fits(place, source, target):
                    return place, source, target
        return None

    def even_out_leaders(self) -> None:
        """Change preferred leaders until brokers lead equally many partitions, if possible."""
        leads = Counter(replicas[0] for replicas in self.now.values() if replicas)
        led: dict[int, list[Place]] = {}
        for place in sorted(self.now):
            led.setdefault(self.now[place][0], []).append(place)
        stuck: set[int] = set()
        while left := [target for target in self.targets if target not in stuck]:
            most = max(left, key=lambda broker: (leads[broker], broker))
            found = self._other_leader(led.get(most, ()), leads, most)
            if found is None:
                stuck.add(most)
                continue
            place, leader = found
            others = [replica for replica in self.now[place] if replica != leader]
            if not self._set(place, (leader, *others), "leaders"):
                return
            led[most].remove(place)
            led.setdefault(leader, []).append(place)
            leads[most] -= 1
            leads[leader] += 1
            stuck.clear()

    def _other_leader(
        self, led: Sequence[Place], leads: Mapping[int, int], most: int
    ) -> tuple[Place, int] | None:
        """Return one of the partitions `led` by a broker, and the replica that should lead instead.

        That replica's broker leads the fewest partitions, at least two fewer than the broker.
        """
        found: tuple[int, int, Place] | None = None
        for place in led:
            for replica in self.now[place][1:]:
                if replica in self.targets and leads[replica] < leads[most] - 1:
                    found = min(
                        found or (leads[replica], replica, place), (leads[replica], replica, place)
                    )
        return None if found is None else (found[2], found[1])

    # -- steps

    def _replace(self, place: Place, one: int, why: Why) -> None:
        """Move a replica to the emptiest broker, if possible in a rack without another replica."""
        replicas = self.now[place]
        others = {self._rack(other) for other in replicas if other != one}
        order = sorted(self.targets, key=lambda target: (self.size_bytes[target], target))
        order = [target for target in order if target not in replicas]
        apart = [target for target in order if self._rack(target) not in others]
        if apart or (order and why == "broker is to go"):
            self._put(place, one, (apart or order)[0], why)

    def _fits(self, place: Place, source: int, target: int) -> bool:
        """Return whether a replica can move to `target` without reducing its partition's racks."""
        replicas = self.now[place]
        if target in replicas:
            return False
        others = {self._rack(replica) for replica in replicas if replica != source}
        return self._rack(target) not in others or self._rack(source) in others

    def _put(self, place: Place, source: int, target: int, why: Why) -> bool:
        replicas = tuple([target if replica == source else replica for replica in self.now[place]])
        if not self._set(place, replicas, why):
            return False
        size_bytes = self.held[place].size_bytes
        self.size_bytes[source] -= size_bytes
        self.size_bytes[target] += size_bytes
        return True

    def _set(self, place: Place, replicas: Replicas, why: Why) -> bool:
        """Set the replicas of a partition; return False if this would exceed `moves_max`."""
        if place not in self.why and len(self.why) >= self.moves_max:
            self.unfinished = True
            return False
        self.why.setdefault(place, {})[why] = None
        self.now[place] = replicas
        return True

    def _rack(self, broker_id: int) -> str | None:
        return self.racks.get(broker_id)

    def _smallest_first(self, place: Place) -> tuple[int, Place]:
        return self.held[place].size_bytes, place
