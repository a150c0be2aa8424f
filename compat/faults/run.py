"""Faults one after the other, some two at a time, while clients go on; then the history is checked.

After each fault all clients must get on again within `RECOVER_SECONDS`. In the end all brokers are
up: what was acknowledged is there, in its order and once; what was read is there still; all copies
come in sync, and have the same bytes; of a compacted topic, the last value of each key.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
import traceback
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from tests.postgres import postgres_server

from compat.drivers.port import WAIT_SECONDS
from compat.faults import latest
from compat.faults.kinds import KINDS, Kind, World, fail_mark
from compat.faults.machine import Machine
from compat.faults.network import DATABASE, Network, address
from compat.history import History
from compat.security import HOSTS, grant, harness, realm
from compat.servers import PenstockProcess, bootstrap_of, running_brokers
from compat.survivors import (
    PARTITIONS,
    Client,
    Ends,
    Load,
    Member,
    Reader,
    await_progress,
    check_history,
)

BROKERS = 3
TOPIC = "copied"
CONFIG = {"min.insync.replicas": "2", "segment.bytes": str(1 << 20)}
TOPICS = {TOPIC: CONFIG, latest.TOPIC: latest.CONFIG}
SESSION_MS = 2_000
LAG_MS = 1_000
HOLD_SECONDS = 10.0
TWO_AT_ONCE = 0.25
VIEW_SECONDS = 5.0
CALM_SECONDS = SESSION_MS / 1000 + 1
WHOLE_SHARE = 0.7
EPOCHS_SHOWN = 3
LINES_SHOWN = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is asked for: faults from a seed until so many were there, or so much time is over."""

    seed: int
    faults: int
    seconds: float
    kinds: frozenset[str] = frozenset(kind.name for kind in KINDS)


class Broken(Exception):
    """Something that must hold does not."""


@contextmanager
def running(directory: Path, *, cuts: bool, dice: random.Random) -> Iterator[World]:
    """Three brokers, whose sessions are short, with racks, and disks that can be made to fail."""
    with ExitStack() as stack:
        machine = stack.enter_context(Machine(directory))
        network = stack.enter_context(Network(BROKERS)) if cuts else None
        postgres = stack.enter_context(postgres_server(host=DATABASE if cuts else "127.0.0.1"))
        if network and (own_realm := realm()) is not None:
            own_realm.keystore("broker", (*HOSTS, *map(address, range(1, BROKERS + 1))))
        configs = {
            "broker.session.timeout.ms": str(SESSION_MS),
            "broker.heartbeat.interval.ms": "250",
            "replica.lag.time.max.ms": str(LAG_MS),
            "log.checkpoint.interval.ms": "1000",
            "log.cleaner.backoff.ms": "200",
        }

        def make(place: Path, *, configs: dict[str, str]) -> PenstockProcess:
            node = int(configs["node.id"])
            own = address(node) if network else "127.0.0.1"
            program = network.program(node) if network else []
            mark = str(fail_mark(place))
            return PenstockProcess(
                place,
                listener=f"{own}:9092" if network else "",
                configs={
                    **configs,
                    "replication.listener": f"{own}:0",
                    "broker.rack": f"rack-{node}",
                },
                program=[*program, sys.executable, "-m", "compat.faults.broker", mark],
                clock=lambda: machine.seconds,
            )

        brokers = stack.enter_context(running_brokers(postgres, directory, BROKERS, configs, make))
        yield World(brokers=brokers, postgres=postgres, machine=machine, network=network, dice=dice)


class Run:
    """Clients at work, and faults."""

    def __init__(self, world: World, plan: Plan) -> None:
        self.world = world
        self.plan = plan
        self.bootstrap = bootstrap_of(world.brokers)
        self.history = History(PARTITIONS)
        self.worst: dict[str, float] = {}
        """The longest time without an acknowledgement, by what was done."""
        at = self.bootstrap, TOPIC, self.history
        self.loads = [
            Load(*at, producer=0, burst=4, rest=0.01),
            Load(*at, producer=1, burst=400, rest=0.5, padding=500),
        ]
        self.keyed = latest.KeyedLoad(self.bootstrap, self.loads[0])
        self.producers = [*self.loads, self.keyed]
        self.member = Member(*at, group="survivors")
        self.readers = [
            Reader(*at, who=f"beside broker {node}", rack=f"rack-{node}")
            for node in range(1, BROKERS + 1)
        ]
        self.ends = Ends(*at)
        self.doing = "before the first fault"

    def go(self) -> int:
        """All of it; the number of faults. Raises Broken, AssertionError."""
        with AdminClient({**harness(self.bootstrap), "log_level": 0}) as admin:
            wanted = [NewTopic(name, PARTITIONS, BROKERS, config=TOPICS[name]) for name in TOPICS]
            for made in admin.create_topics(wanted).values():
                made.result(WAIT_SECONDS)
        grant(self.bootstrap, "ANONYMOUS", [("describe", "topic", TOPIC)])  # to the admin interface
        clients: list[Client] = [*self.producers, self.member, *self.readers, self.ends]
        with ExitStack() as stack:
            for client in clients:
                stack.enter_context(client)
            self._get_on(*self.producers, self.member, *self.readers)
            number = self._faults()
            self.doing = "in the end"
            readers = [self.member, *self.readers]
            check_history(self.bootstrap, self.history, self.loads, readers, self.world.clock)
            self.ends.end()
            self.keyed.end()
            self._look()
        self._compare_copies()
        return number

    def _faults(self) -> int:
        dice, plan = self.world.dice, self.plan
        deadline = time.monotonic() + plan.seconds
        kinds = [
            kind
            for kind in KINDS
            if kind.name in plan.kinds and (self.world.network or not kind.needs_network)
        ]
        number = 0
        while number < plan.faults and time.monotonic() < deadline:
            number += 1
            weights = [kind.weight for kind in kinds]
            kind, other = dice.choices(kinds, weights, k=2)
            two = dice.random() < TWO_AT_ONCE and not (
                kind.alone or other.alone or kind.of == other.of == "the database"
            )
            drawn = [kind, other] if two else [kind]
            drawn.sort(key=lambda kind: kind.of == "the database")  # last, and back first
            if kind.alone:
                self._await_all_in_sync()
            if any([kind_drawn.of == "the database" for kind_drawn in drawn]):
                self._await_calm()  # without it nobody can become a leader
            brokers = dice.sample(list(self.world.brokers), 2)
            self._fault(number, list(zip(drawn, brokers, strict=False)))
        return number

    def _fault(self, number: int, faults: list[tuple[Kind, PenstockProcess]]) -> None:
        dice = self.world.dice
        names = [
            f"broker {self.world.number(broker)} {kind.name}"
            if kind.of == "a broker"
            else kind.name
            for kind, broker in faults
        ]
        hold, apart = HOLD_SECONDS * dice.random() ** 2, dice.uniform(0, 1)
        what = ", ".join(names)
        self.doing = f"fault {number}, while there is: {what}"
        self.loads[0].pause_seconds()
        begin, given = time.monotonic(), self.world.clock()
        with ExitStack() as stack:
            for kind, broker in faults:
                stack.enter_context(kind.make(self.world, broker))
                time.sleep(apart)
            if len(faults) == 1 and faults[0][0].goes_on:
                self._get_on(*self.producers)
            time.sleep(max(0.0, begin + hold - time.monotonic()))
        ended = time.monotonic()
        self.doing = f"after fault {number}: {what}"
        self._get_on(*self.producers, self.member, *self.readers)
        if any([kind.alone for kind, _ in faults]):
            self._await_all_in_sync()  # two of three are lost with the next one before that
        pause = self.loads[0].pause_seconds()  # the other one rests for longer
        now = time.monotonic()
        share = (self.world.clock() - given) / (now - begin)
        print(
            f"{time.strftime('%H:%M:%S')} {number:4} {what}: {ended - begin:.1f} s, all clients on"
            f" after {now - ended:.1f} s; longest time without an ack {pause:.2f} s"
            + (f" ({share:.0%} of the machine)" if share < WHOLE_SHARE else ""),
            flush=True,
        )
        if len(faults) == 1:
            name = faults[0][0].name
            self.worst[name] = max(pause, self.worst.get(name, 0.0))
        self._look()

    def _get_on(self, *clients: Client) -> None:
        await_progress(*clients, clock=self.world.clock)

    def _look(self) -> None:
        """Raise Broken if the history has something that cannot be, or a record was refused."""
        refused = [str(error) for load in self.producers for error in load.failures[:5]]
        found = [*map(str, self.history.violations), *refused]
        if found:
            raise Broken("\n".join(found))

    def _await_all_in_sync(self) -> None:
        """Until all copies have had all that was there a moment ago."""

        def counts(admin: AdminClient) -> list[int]:
            try:
                topics = admin.list_topics(timeout=VIEW_SECONDS).topics
            except KafkaException:
                return []
            return [len(row.isrs) for topic in TOPICS for row in topics[topic].partitions.values()]

        time.sleep(LAG_MS / 1000)  # who counts as in sync after this has had the last record
        with AdminClient({**harness(self.bootstrap), "log_level": 0}) as admin:
            self.world.await_that(
                lambda: counts(admin) == [BROKERS] * PARTITIONS * len(TOPICS),
                lambda: f"replicas in sync: {counts(admin)}",
            )

    def _await_calm(self) -> None:
        """Until all brokers have agreed on the leaders for longer than a session."""
        seen: list[list[tuple[int, int]]] = []
        since = 0.0

        def holds() -> bool:
            nonlocal seen, since
            try:
                rows = [_rows(broker) for broker in self.world.brokers]
            except OSError:
                return False
            led = [[(row["leader"], row["leader_epoch"]) for row in each] for each in rows]
            if led != seen or any([each != led[0] for each in led]):
                seen, since = led, self.world.clock()
            return self.world.clock() - since > CALM_SECONDS

        self.world.await_that(holds, lambda: f"leaders and epochs: {seen}")
        self._get_on(*self.producers)

    def _compare_copies(self) -> None:
        self._await_all_in_sync()
        for broker in self.world.brokers:
            assert broker.stop() == 0, broker.log[-4000:]
        for part in range(PARTITIONS):
            logs = {_bytes_of(broker, part) for broker in self.world.brokers}
            if len(logs) != 1:
                raise Broken(f"the copies of partition {part} differ")
        self._compare_keys()

    def _compare_keys(self) -> None:
        left = 0
        for part, values in enumerate(self.keyed.values):
            for broker in self.world.brokers:
                held = latest.held(broker.directory / "data", part)
                left += held.records
                wrong = {
                    key: (held.values.get(key), values.get(key))
                    for key in held.values.keys() | values.keys()
                    if held.values.get(key) != values.get(key)
                }
                if wrong:
                    key, (has, sent) = wrong.popitem()
                    raise Broken(
                        f"the copy of {latest.TOPIC}-{part} of broker {self.world.number(broker)}"
                        f" has {has!r} of key {key!r}, and {sent!r} was sent last; so are"
                        f" {len(wrong)} others"
                    )
        share = left / BROKERS / self.keyed.sent
        print(f"{self.keyed.sent:,} records with keys, of which {share:.1%} are left")
        if share == 1:
            raise Broken("nothing was compacted")


def _bytes_of(broker: PenstockProcess, partition: int) -> bytes:
    """The log of a partition, of a broker that was stopped in good order."""
    directory = broker.directory / "data" / "log" / f"{TOPIC}-{partition}"
    return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))


def run(plan: Plan, directory: Path, *, cuts: bool) -> Run:
    """Do what is planned.

    Raises:
        Broken: with the seed, what was found, and how each broker saw it.
    """
    dice = random.Random(plan.seed)
    with running(directory, cuts=cuts, dice=dice) as world:
        done = Run(world, plan)
        begin = time.monotonic()
        try:
            number = done.go()
        except Exception as error:
            where = f"{time.strftime('%H:%M:%S')} seed {plan.seed}, {done.doing}"
            told = isinstance(error, Broken | AssertionError)
            what = str(error) if told else traceback.format_exc()
            raise Broken(f"{where}:\n{what}\n{_views(world)}") from error
        records, seconds = sum(done.history.acknowledged), time.monotonic() - begin
        print(
            f"{number} faults in {seconds:.0f} s, {records:,} records acknowledged,"
            f" {sum(done.history.read_counts.values()):,} read, ends asked {done.ends.count:,}"
            " times: no violation"
        )
        for name, pause in sorted(done.worst.items(), key=lambda item: item[1]):
            print(f"  {name}: at most {pause:.2f} s without an acknowledgement")
    return done


def _views(world: World) -> str:
    """Each broker's view of the topic, and the database's chain of epochs."""
    lines = []
    for broker in world.brokers:
        try:
            rows = _rows(broker)
        except OSError as error:
            lines.append(f"broker {world.number(broker)}: {error}")
            continue
        lines += [
            f"broker {world.number(broker)}, partition {row['partition']}: leader {row['leader']},"
            f" epoch {row['leader_epoch']}, in sync {row['isr']}, commit mark"
            f" {row['high_watermark']}, log end {row['log_end_offset']}"
            for row in rows
        ]
    try:
        lines += asyncio.run(_chains(world.brokers[0].configs["control.url"]))
    except (OSError, TimeoutError, asyncpg.PostgresError) as error:
        lines.append(f"database: {error}")
    for broker in world.brokers:
        told = [line for line in broker.log.splitlines() if "no notices of" not in line]
        lines += [f"broker {world.number(broker)}: {line}" for line in told[-LINES_SHOWN:]]
    return "\n".join(lines)


def _rows(broker: PenstockProcess) -> list[dict[str, Any]]:
    """The partitions as a broker sees them; raises OSError."""
    url = f"{broker.admin_url}/v1/topics/{TOPIC}"
    with urllib.request.urlopen(url, timeout=VIEW_SECONDS) as answer:
        rows: list[dict[str, Any]] = json.load(answer)["partitions"]
    return rows


async def _chains(url: str) -> list[str]:
    connection = await asyncpg.connect(url, timeout=VIEW_SECONDS)
    try:
        rows = await connection.fetch(
            "SELECT number, epoch, start_offset, end_offset, leader, reserved, claimant"
            " FROM partition_epochs JOIN replicated_partitions USING (topic_id, number)"
            " ORDER BY number, epoch DESC"
        )
        brokers = await connection.fetch(
            "SELECT broker_id, registered, penstock_now_ms() - renewed_ms AS ago FROM brokers"
            " ORDER BY broker_id"
        )
    finally:
        await connection.close()
    shown: Counter[int] = Counter()
    lines = [
        f"broker {row['broker_id']} is {'' if row['registered'] else 'not '}registered, renewed"
        f" {row['ago']} ms ago"
        for row in brokers
    ]
    for row in rows:
        shown[row["number"]] += 1
        if shown[row["number"]] <= EPOCHS_SHOWN:
            lines.append(
                f"partition {row['number']}, epoch {row['epoch']} of broker {row['leader']}:"
                f" {row['start_offset']} to {row['end_offset']}; {row['reserved']} reserved by"
                f" broker {row['claimant']}"
            )
    return lines
