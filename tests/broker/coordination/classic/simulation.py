"""Seeded simulation of one group: clients, a lossy network, a failing store, restarts.

Time is virtual, and one generator draws all events. Faults occur for a while, then stop, and every
live client must reach a stable group within a time limit. After every effect:

- a partition has one owner in a generation (a static member that returns counts as the same); - a
new generation is above all that were handed out, also after a restart from an older save; - every
request is answered at most once, at most one save is under way, queues stay bounded.

Run as a module with a first seed and a count, it prints a digest of all events, so that runs under
different hash seeds can be compared.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import sys
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from msgspec.structs import replace

from penstock.broker.groups.classic import (
    Assignment,
    GroupLimits,
    Heartbeat,
    Joined,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    Protocol,
    Synced,
    SyncGroup,
)
from penstock.broker.groups.classic.states import GroupState
from penstock.broker.groups.runtime.core import (
    Effect,
    Refused,
    Reply,
    Save,
    Saved,
    SaveFailed,
    Stored,
    Tick,
)
from penstock.broker.groups.runtime.kinds import Accepted, CommitCheck, DescribeGroup, Prune
from tests.broker.coordination.classic.driver import Core

PARTITIONS = 6
SESSION_MS = 600
REBALANCE_MS = 1_500
FAULTS_MS = 6_000
SETTLE_MS = 20_000
HEARTBEAT_MS = 200
REQUEST_TIMEOUT_MS = 500
JOIN_TIMEOUT_MS = REBALANCE_MS + 500
TIMER_ENTRIES_MAX = 500
LIMITS = GroupLimits(
    group_min_session_timeout_ms=100,
    group_initial_rebalance_delay_ms=100,
    group_max_size=20,
)


class Violation(AssertionError):
    """An invariant does not hold."""


class Client:
    """A consumer like Kafka's clients: joins, syncs, heartbeats, and rejoins on request."""

    def __init__(self, world: World, number: int, instance: str | None) -> None:
        self.world = world
        self.number = number
        self.instance = instance
        self.protocols = world.protocols()
        self.skip_known = world.random.random() < 0.5
        self.id_required = world.random.random() < 0.8
        self.member_id = ""
        self.generation = -1
        self.owned: tuple[int, ...] = ()
        self.alive = True
        self.settled = False
        self.request = 0

    # A request counts up; answers and timers of earlier ones are stale.

    def ask(self, event: Any, timeout_ms: int, on_answer: Callable[[Any], None]) -> None:
        self.request += 1
        request = self.request

        def answered(response: Any) -> None:
            if self.alive and request == self.request:
                self.request += 1
                on_answer(response)

        def timed_out() -> None:
            if self.alive and request == self.request:
                self.world.after(10, self.join)

        self.world.send(event, answered)
        self.world.after(timeout_ms, timed_out)

    def join(self) -> None:
        if not self.alive:
            return
        self.settled = False
        event = JoinGroup(
            group_id="g",
            member_id=self.member_id,
            group_instance_id=self.instance,
            client_id=f"c{self.number}",
            client_host="h",
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            protocol_type="consumer",
            protocols=self.protocols,
            fresh_id=self.world.fresh_id(),
            member_id_required=self.id_required,
            skip_assignment_known=self.skip_known,
        )
        self.ask(event, JOIN_TIMEOUT_MS, self._joined)

    def _joined(self, response: Any) -> None:
        if not isinstance(response, Joined):
            self._refused(response)
            return
        self.member_id = response.member_id
        self.generation = response.generation
        shares: dict[str, list[int]] = {member.member_id: [] for member in response.members}
        if shares and not response.skip_assignment:
            ids = sorted(shares)
            for partition in range(PARTITIONS):
                shares[ids[partition % len(ids)]].append(partition)
        assignments = tuple(
            Assignment(member_id=member_id, assignment=json.dumps(share).encode())
            for member_id, share in shares.items()
            if not response.skip_assignment
        )
        event = SyncGroup(
            group_id="g",
            generation=response.generation,
            member_id=self.member_id,
            group_instance_id=self.instance,
            protocol_type="consumer",
            protocol=response.protocol,
            assignments=assignments,
        )
        self.ask(event, JOIN_TIMEOUT_MS, self._synced)

    def _synced(self, response: Any) -> None:
        if not isinstance(response, Synced):
            self._refused(response)
            return
        self.owned = tuple(json.loads(response.assignment or b"[]"))
        self.settled = True
        self.world.after(HEARTBEAT_MS, self._beat)

    def _beat(self) -> None:
        if not self.alive or not self.settled:
            return
        fields: dict[str, Any] = {
            "group_id": "g",
            "generation": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self.instance,
        }
        commits = self.world.random.random() < 0.2
        event = CommitCheck(**fields) if commits else Heartbeat(**fields)
        self.ask(event, REQUEST_TIMEOUT_MS, self._beaten)

    def _beaten(self, response: Any) -> None:
        if isinstance(response, Accepted):
            self.world.after(HEARTBEAT_MS, self._beat)
        else:
            self._refused(response)

    def _refused(self, response: Any) -> None:
        if not isinstance(response, Refused):
            raise Violation(f"client {self.number} cannot read {response}")
        self.settled = False
        error = response.error
        if error == "fenced_instance_id":
            self.alive = False
            return
        if error == "member_id_required":
            self.member_id = response.member_id
            self.join()
            return
        if error == "unknown_member_id":
            self.member_id = ""
        elif error not in RETRIED:
            raise Violation(f"client {self.number} got {error}: {response.message}")
        self.world.after(self.world.random.randint(1, 50), self.join)

    def leave(self) -> None:
        self.alive = False
        leaving = LeavingMember(member_id=self.member_id, group_instance_id=self.instance)
        self.world.send(LeaveGroup(group_id="g", members=(leaving,)), lambda response: None)


RETRIED = {
    "rebalance_in_progress",
    "illegal_generation",
    "coordinator_not_available",
    "not_coordinator",
    "group_max_size_reached",
}


class World:
    """The group's coordinator, its store and network, and the clients."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.now_ms = 0
        self.faults = True
        self.limits = LIMITS if seed % 2 else replace(LIMITS, group_initial_rebalance_delay_ms=0)
        """Every second run has no initial delay."""
        self.core = Core(self.limits)
        self.incarnation = 0
        self.rows: Mapping[str, bytes] = {}
        self.saving: Save | None = None
        self.clients: list[Client] = []
        self.waiting: dict[int, Callable[[Any], None]] = {}
        self.trace = hashlib.sha256()
        self.events = 0
        self.owners: dict[tuple[int, int], str] = {}
        self.highest_generation = 0
        self.core_generation = -1
        self._token = 0
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0
        self._tick_at: int | None = None
        self._identity = 0

    # -- time and chance --------------------------------------------------------------------

    def after(self, delay_ms: int, action: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._agenda, (self.now_ms + delay_ms, self._sequence, action))

    def run_until(self, end_ms: int, done: Callable[[], bool] = lambda: False) -> bool:
        while not done():
            when = self._agenda[0][0] if self._agenda else end_ms
            deadline = self.core.next_deadline_ms()
            if deadline is not None and deadline <= when:
                if deadline > end_ms:
                    break
                self.now_ms = max(self.now_ms, deadline)
                self.happen(Tick(), 0)
                continue
            if not self._agenda or when > end_ms:
                break
            self.now_ms, _, action = heapq.heappop(self._agenda)
            action()
        else:
            return True
        self.now_ms = max(self.now_ms, end_ms)
        return done()

    def chance(self, probability: float) -> bool:
        return self.faults and self.random.random() < probability

    def delay_ms(self) -> int:
        return self.random.randint(1, 400 if self.chance(0.05) else 15)

    def fresh_id(self) -> str:
        self._identity += 1
        return str(self._identity)

    def protocols(self) -> tuple[Protocol, ...]:
        both = [Protocol(name=name, metadata=b"s") for name in ("range", "sticky")]
        if self.random.random() < 0.3:
            both.reverse()
        return tuple(both)

    # -- the network ------------------------------------------------------------------------

    def send(self, event: Any, on_answer: Callable[[Any], None]) -> None:
        if self.chance(0.03):
            return
        self.after(self.delay_ms(), lambda: self._arrive(event, on_answer))

    def _arrive(self, event: Any, on_answer: Callable[[Any], None]) -> None:
        self._token += 1
        self.waiting[self._token] = on_answer
        self.happen(event, self._token)

    def happen(self, event: Any, token: int) -> None:
        self.events += 1
        effects = self.core.handle(event, self.now_ms, token)
        self.trace.update(f"{self.now_ms} {event!r} {effects!r}\n".encode())
        self.perform(effects)
        self.check_bounds()

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Reply):
                self._answer(effect)
            else:
                assert isinstance(effect, Save)
                self._store(effect)

    def _answer(self, reply: Reply) -> None:
        on_answer = self.waiting.pop(reply.token, None)
        if on_answer is None:
            raise Violation(f"token {reply.token} is answered twice")
        response = reply.response
        if isinstance(response, Synced):
            self.check_owners(response)
        if not self.chance(0.03):
            self.after(self.delay_ms(), lambda: on_answer(response))

    # -- the store --------------------------------------------------------------------------

    def _store(self, effect: Save) -> None:
        if self.saving is not None:
            raise Violation("two saves of a group are under way")
        self.saving = effect
        self.after(self.delay_ms(), lambda: self._stored(effect))

    def _stored(self, effect: Save) -> None:
        if self.saving is not effect:
            return  # the coordinator that wanted it is gone, see restart()
        self.saving = None
        fails = self.chance(0.1)
        if not fails or self.random.random() < 0.5:
            self.rows = effect.rows
        self.happen(SaveFailed(key="g", reason="unknown") if fails else Saved(key="g"), 0)

    def restart(self) -> None:
        """Lose the coordinator; its waiting clients time out."""
        self.incarnation += 1
        if self.saving is not None and self.random.random() < 0.5:
            self.rows = self.saving.rows
        self.saving = None
        self.waiting.clear()
        self.core = Core(self.limits, epoch=self.incarnation)
        self.core_generation = -1
        if self.rows:
            self.perform(self.core.load(Stored(key="g", rows=self.rows), self.now_ms))
        else:
            self.highest_generation = 0  # the group is unknown, and so are its members
        self.trace.update(b"restart\n")

    # -- what must hold ---------------------------------------------------------------------

    def check_owners(self, synced: Synced) -> None:
        group = self.core.rebalancer.groups["g"]
        for member in group.members.values():
            identity = member.group_instance_id or member.member_id
            for partition in json.loads(member.assignment or b"[]"):
                key = (group.generation, partition)
                if self.owners.setdefault(key, identity) != identity:
                    raise Violation(f"{key} belongs to {self.owners[key]} and to {identity}")

    def check_bounds(self) -> None:
        entries = len(self.core.timers)
        if entries > TIMER_ENTRIES_MAX:
            raise Violation(f"{entries} timer entries")
        group = self.core.rebalancer.groups.get("g")
        if group is None:
            self.core_generation = -1
            return
        if group.generation < self.core_generation:
            raise Violation(f"generation fell from {self.core_generation} to {group.generation}")
        began = -1 < self.core_generation < group.generation
        if began and group.generation <= self.highest_generation:
            raise Violation(f"generation {group.generation} comes again")
        self.core_generation = group.generation
        self.highest_generation = max(self.highest_generation, group.generation)
        if group.joined_count != sum(m.join_token is not None for m in group.members.values()):
            raise Violation("joined_count is wrong")
        if group.leader and group.leader not in group.members:
            raise Violation(f"the leader {group.leader} is not a member")
        if (group.state is GroupState.EMPTY) and group.members:
            raise Violation("members in an empty group")

    def settled(self) -> bool:
        alive = [client for client in self.clients if client.alive]
        group = self.core.rebalancer.groups.get("g")
        if group is None or group.state is not GroupState.STABLE:
            return not alive
        if not all(client.settled for client in alive):
            return False
        if {client.generation for client in alive} != {group.generation}:
            return False
        owned = sorted(partition for client in alive for partition in client.owned)
        return owned == list(range(PARTITIONS)) and len(group.members) == len(alive)

    # -- the plot ---------------------------------------------------------------------------

    def start_client(self, instance: str | None = None) -> None:
        client = Client(self, len(self.clients), instance)
        self.clients.append(client)
        self.after(self.random.randint(0, 100), client.join)

    def disturb(self) -> None:
        """Inject one fault, or start or stop a client."""
        if not self.faults:
            return
        alive = [client for client in self.clients if client.alive]
        draw = self.random.random()
        if draw < 0.35 and len(alive) < 6:
            self.start_client(self.random.choice([None, None, "i1", "i2"]))
        elif draw < 0.55 and alive:
            self.random.choice(alive).alive = False
        elif draw < 0.7 and alive:
            self.random.choice(alive).leave()
        elif draw < 0.85:
            static = [client for client in alive if client.instance is not None]
            if static:
                old = self.random.choice(static)
                old.alive = self.random.random() < 0.3  # the old process may linger
                self.start_client(old.instance)
        elif draw < 0.95:
            self.restart()
        self.after(self.random.randint(50, 800), self.disturb)

    def run(self) -> str:
        """Run to the end; return the digest of all events."""
        for _ in range(self.random.randint(1, 4)):
            self.start_client(self.random.choice([None, None, "i1", "i2"]))
        self.after(300, self.disturb)
        self.run_until(FAULTS_MS)
        self.faults = False
        if not self.run_until(self.now_ms + SETTLE_MS, self.settled):
            answer = self.core.handle(DescribeGroup(group_id="g"), self.now_ms, -1)
            states = [(c.number, c.alive, c.settled, c.generation) for c in self.clients]
            raise Violation(f"not stable after {SETTLE_MS} ms: {answer} {states}")
        self.end()
        return self.trace.hexdigest()

    def end(self) -> None:
        """Stop all clients; no group may be left."""
        for client in self.clients:
            client.alive = False
        self.run_until(self.now_ms + 10 * SESSION_MS)
        self.now_ms += 120_000
        self.happen(Prune(with_offsets=()), 0)
        self.run_until(self.now_ms + 1_000)
        left = self.core.next_deadline_ms()
        if left is not None or self.core.classic.counts() != dict.fromkeys(GroupState, 0):
            raise Violation(f"left over: {left}, {self.core.classic.counts()}")
        if self.waiting or self.rows:
            raise Violation(f"{len(self.waiting)} answers owed, rows {self.rows}")


def run(seed: int) -> str:
    """Run one seed; a violation names it."""
    try:
        return World(seed).run()
    except Exception as error:
        raise Violation(f"seed {seed}: {error}") from error


def main() -> None:
    first, count = int(sys.argv[1]), int(sys.argv[2])
    digest = hashlib.sha256()
    for seed in range(first, first + count):
        digest.update(run(seed).encode())
    print(digest.hexdigest())


if __name__ == "__main__":
    main()
