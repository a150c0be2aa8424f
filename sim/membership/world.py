"""A story: brokers that gossip, and all that can go wrong; then all is well, and all know it.

Kinds of stories: in a *calm* one brokers only come and go; in one with a *cut* one link is cut in
one or both directions, and the others are whole; in a *rough* one datagrams are lost (up to 40 %),
doubled and overtaken, brokers are killed, stopped for 1 to 120 s, restarted, cut off in either
direction, and hear late of each other's registrations. `watch.py` says what must hold.
"""

from __future__ import annotations

import hashlib
from collections import Counter

from penstock.replication.members import GossipTerms
from penstock.replication.membership import Membership
from sim.diskless.plane import SeededDice
from sim.host.scheduler import Scheduler, Violation
from sim.membership.network import Network, hostile
from sim.membership.plants import PLANTS
from sim.membership.process import Process
from sim.membership.watch import Watch

FAULTS_MS = 15_000.0
QUIET_MS = 3_000.0
STEP_MS = 250.0
SESSION_MS = 10_000.0
TRACE_TAIL = 60


class World(Scheduler):
    """Everything in one story. `plant` names a bug that the checks have to find."""

    def __init__(self, seed: int, plant: str = "", *, members: int = 0) -> None:
        """`members` is the number of brokers to begin with; 0 draws one."""
        super().__init__(seed)
        random = self.random
        self.kind: type[Membership] = PLANTS[plant] if plant else Membership
        self.terms = GossipTerms()
        self.dice = SeededDice(random)
        self.network = Network(self)
        self.watch = Watch(self)
        self.plot = random.choice(("calm", "cut", "rough", "rough", "rough"))
        self.members_first = members or random.choice((3, 3, 3, 4, 4, 5, 7))
        self.members_max = self.members_first + 2
        self.registry: dict[int, int] = {}
        """What the control plane says: epochs by broker."""
        self.running: dict[int, Process] = {}
        """Whose process is there, stopped or not."""
        self._epochs: Counter[int] = Counter()
        self.images_late_ms = random.choice((100.0, 1_000.0, 4_000.0))
        if self.plot != "rough":
            self.images_late_ms = 100.0

    # Brokers come and go

    def start(self, broker_id: int) -> None:
        if broker_id in self.running:
            return
        self.running[broker_id] = Process(self, broker_id, self._register(broker_id))
        self._announce()

    def _announce(self) -> None:
        """All hear of registrations, some later."""
        for process in list(self.running.values()):
            self._tell(process)

    def _tell(self, process: Process) -> None:
        def hears() -> None:
            if not process.stopped:
                process.learn_registrations()

        self.after(self.images_late_ms * self.random.random() ** 2, hears)

    def kill(self) -> None:
        """A broker dies; most come back, as another process."""
        process = self._any()
        if process is None or len(self.running) < 2:
            return
        self._end(process, "is killed")
        if self.random.random() < 0.6:
            broker_id = process.broker_id
            self.after(12_000 * self.random.random(), lambda: self._restart(broker_id))

    def _restart(self, broker_id: int) -> None:
        if self.faults:
            self.start(broker_id)

    def leave(self) -> None:
        """A broker ends in good order, and is perhaps unregistered some time later."""
        process = self._any()
        if process is None or len(self.running) < 3:
            return
        process.leave()
        self._end(process, "leaves")
        if self.random.random() < 0.5:
            self.after(3_000 * self.random.random(), lambda: self._unregister(process.broker_id))

    def _unregister(self, broker_id: int) -> None:
        if self.faults and broker_id not in self.running:
            self.note("unregister", broker_id)
            self.registry.pop(broker_id, None)
            self._announce()

    def _end(self, process: Process, how: str) -> None:
        self.note("broker", process.broker_id, how)
        self.watch.seen[how] += 1
        process.over = True
        del self.running[process.broker_id]
        self.watch.died(process.broker_id)

    def join(self) -> None:
        if len(self._epochs) < self.members_max:
            self.watch.seen["joins"] += 1
            self.start(1 + len(self._epochs))

    # What goes wrong

    def stop(self) -> None:
        """A broker is stopped for 1 to 120 s, mostly for short; where there are many, to 15 s."""
        process = self._any()
        if process is None:
            return
        longest = 120 if self.members_first < 10 else 15
        stopped_ms = 1_000 * longest ** (self.random.random() ** 2)
        self.note("broker", process.broker_id, "is stopped for", round(stopped_ms))
        self.watch.seen["is stopped"] += 1
        self.watch.seen["is stopped for a minute"] += stopped_ms > 60_000
        process.stop()
        if self.random.random() < 0.5:
            self.after(SESSION_MS, lambda: self._expire(process))
        self.after(stopped_ms, lambda: self._resume(process))

    def _expire(self, process: Process) -> None:
        """The control plane has not heard of a broker for long."""
        if process.stopped and not process.over:
            self.note("broker", process.broker_id, "expires")
            self.watch.seen["expires"] += 1
            self.registry.pop(process.broker_id, None)
            self._announce()

    def _resume(self, process: Process) -> None:
        """A broker goes on, and registers anew when it finds itself expired."""
        process.resume()
        if not process.over and process.broker_id not in self.registry:
            process.registered_anew(self._register(process.broker_id))
            self._announce()

    def _register(self, broker_id: int) -> int:
        self._epochs[broker_id] += 1
        self.registry[broker_id] = self._epochs[broker_id]
        self.note("register", broker_id, self._epochs[broker_id])
        return self._epochs[broker_id]

    def cut(self) -> None:
        """Some brokers are cut off from the others, in one direction or both."""
        ids = list(self.running)
        self.random.shuffle(ids)
        here = ids[: self.random.randint(1, max(1, len(ids) // 2))]
        there = [one for one in ids if one not in here]
        ways = self.random.choice(("out", "in", "both"))
        self.note("cut", ways, here, there)
        self.watch.seen[f"cut {ways}"] += 1
        pairs = [(one, other) for one in here for other in there]
        cut = pairs if ways != "in" else []
        cut = cut + [(other, one) for one, other in pairs] if ways != "out" else cut
        self.network.cuts.update(cut)
        self.after(6_000 * self.random.random(), lambda: self._mend(cut))

    def _mend(self, cut: list[tuple[int, int]]) -> None:
        if self.plot != "cut":
            self.network.cuts.difference_update(cut)

    def be_hostile(self) -> None:
        process = self._any()
        if process is None:
            return
        data, refused = hostile(self, process), process.core.refused.total()
        before = process.core.views()
        process.receive(data)
        if process.core.refused.total() != refused + 1 or process.core.views() != before:
            raise Violation(f"broker {process.broker_id} takes {data[:60].hex()}")
        self.watch.seen["hostile"] += 1

    def _any(self) -> Process | None:
        there = [process for process in self.running.values() if process.runs]
        return self.random.choice(there) if there else None

    def disturb(self) -> None:
        """One thing goes wrong, or somebody comes or goes."""
        if not self.faults:
            return
        draw = self.random.random()
        for weight, action in _FAULTS if self.plot == "rough" else _CALM:
            if draw < weight:
                action(self)
                break
            draw -= weight
        self.after(5_000 * self.random.random(), self.disturb)

    # The plot

    def run_story(self) -> None:
        for number in range(self.members_first):
            self.start(number + 1)
        for process in self.running.values():
            process.learn_registrations()
        self._begin()
        self.run(FAULTS_MS)
        self.faults = False
        self.network.heal()
        self._wait_for_the_stopped()
        for process in self.running.values():
            process.learn_registrations()
        self.note("healed")
        self._settle()
        self._be_quiet()

    def _begin(self) -> None:
        random = self.random
        if self.plot == "rough":
            self.network.loss = random.choice((0.0, 0.0, 0.05, 0.2, 0.4))
            self.network.doubled = random.choice((0.0, 0.2))
            self.network.late = random.random() < 0.5
        else:
            self.watch.strict = True
        if self.plot == "cut":
            one, other = random.sample(list(self.running), 2)
            self.network.cuts.add((one, other))
            if random.random() < 0.5:
                self.network.cuts.add((other, one))
        else:
            self.after(3_000 * random.random(), self.disturb)

    def _wait_for_the_stopped(self) -> None:
        def all_run() -> bool:
            return not any(process.stopped for process in self.running.values())

        if not self.run(self.now_ms + 121_000, all_run):
            raise Violation("somebody is stopped for ever")

    def _settle(self) -> None:
        """Within twice the bound of a death, as last words may come late, all views are right."""
        self.run(self.now_ms + self._period_ms_max)  # what began before may still fail
        bound_ms = 2 * max(one.core.death_bound_ms for one in self.running.values())
        end_ms = self.now_ms + bound_ms
        while wrong := self.watch.wrong_views():
            if self.now_ms >= end_ms:
                raise Violation(f"{bound_ms:.0f} ms after healing {wrong}")
            self.run(self.now_ms + STEP_MS)

    def _be_quiet(self) -> None:
        """Soon nothing is told any more, and what is thought stays as it is.

        Who has missed a refutation, and what it refutes, hears of it from the member itself.
        """
        there = self.running.values()
        rumours = self.terms.retransmit_multiplier * self.members_max.bit_length()
        end_ms = self.now_ms + 2 * rumours * self._period_ms_max
        end_ms += max(one.core.death_bound_ms for one in there)
        self.watch.strict = True
        while self.now_ms < end_ms and not all(map(self._is_settled, there)):
            self.run(self.now_ms + STEP_MS)
        self.watch.quiet = True
        self.run(self.now_ms + QUIET_MS)
        if wrong := self.watch.wrong_views():
            raise Violation(f"when all was quiet {wrong}")

    def _is_settled(self, process: Process) -> bool:
        """Whether a process has nothing to tell, and knows the incarnations of all others."""
        return not process.has_news and all(
            process.views[one.broker_id].incarnation == one.incarnation
            for one in self.running.values()
        )

    @property
    def _period_ms_max(self) -> float:
        return self.terms.probe_interval_ms * (1 + self.terms.health_max)

    def digest(self) -> str:
        return hashlib.sha256(repr(self.trace).encode()).hexdigest()


_CALM = ((0.4, World.kill), (0.3, World.leave), (0.2, World.join), (0.1, World.be_hostile))
_FAULTS = (
    (0.22, World.kill),
    (0.06, World.leave),
    (0.10, World.join),
    (0.26, World.stop),
    (0.20, World.cut),
    (0.16, World.be_hostile),
)


def run(seed: int, plant: str = "", *, members: int = 0) -> World:
    """Run one seed; a violation names it and tells how the story ended."""
    world = World(seed, plant, members=members)
    try:
        world.run_story()
    except Exception as error:
        tail = "\n".join(" ".join(map(str, line)) for line in world.trace[-TRACE_TAIL:])
        raise Violation(f"seed {seed}: {error!r}\n{tail}") from error
    return world
