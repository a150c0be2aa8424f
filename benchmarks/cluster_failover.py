"""Three brokers of which one goes and comes back: Penstock beside three nodes of Apache Kafka.

Topics and sessions are those of `cluster`: three copies, two in sync, a session of 2 s in both.

Predicted, before the first run. When a leader is killed, its partitions wait for its registration
to grow old, except that Penstock's followers ask the address of a broker whose link broke, and
claim at once when nobody listens there: a probe, one claim, fences, one compare-and-set and the
clients' refresh of metadata, 0.3 s. A broker that is stopped hands over first: the client's
refresh, 0.2 s. A thousand partitions are one claim and one opening for each of the two that are
left, and each partition's fence is a row in a frame: 1 ms each, so that 10,000 take 10 s less what
two brokers do at the same time. A copy that was away takes what it missed at the pace of a broker
that receives and writes twice, a third of what the disk could take.

`PENSTOCK_BENCH_KILLS` says of how many kills the longest gap is the worst (10; `--quick`: 1).
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from compat.servers import bootstrap_of
from confluent_kafka.admin import AdminClient

from benchmarks.harness import Row, seconds
from benchmarks.peers.cluster import (
    APACHE,
    OURS,
    SESSION_SECONDS,
    Broker,
    cluster,
    leaders,
)
from benchmarks.peers.load import Shape, create_topic, produce
from benchmarks.peers.steady_load import SteadyLoad, longest_gap

PARTITIONS = 6
CALM_SECONDS = 3.0
WAIT_SECONDS = 180.0
POLL_SECONDS = 0.02
KILLED = "longest time without acknowledgements, a leader killed"
STOPPED = "longest time without acknowledgements, a leader stopped"
WORST = "the longest of all kills"
BACKFILL = "a copy that was away catches up"
PREDICTED = {KILLED: 0.3, STOPPED: 0.2}


def measure(*, quick: bool) -> list[Row]:
    """Gaps of acknowledgements, time until all partitions are led, pace of a copy's return."""
    counts = (1, 100, 1_000) if quick else (1, 100, 1_000, 10_000)
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    kills = int(os.environ.get("PENSTOCK_BENCH_KILLS", "1" if quick else "10"))
    for _ in range(1 if quick else 3):
        for name in (OURS, APACHE):
            with cluster(name) as brokers:
                found[name, KILLED] += [
                    _gap(brokers, f"killed-{number}", lambda broker: broker.kill())
                    for number in range(kills)
                ]
                found[name, STOPPED].append(_gap(brokers, "stopped", lambda broker: broker.stop()))
                for count in counts:
                    found[name, _led(count)].append(_time_to_lead(brokers, count))
                found[name, BACKFILL].append(_backfill(brokers, 100_000 if quick else 400_000))
    disk = _disk_megabytes_per_second()
    medians = {key: statistics.median(runs) for key, runs in found.items()}
    worst = {(name, WORST): max(found[name, KILLED]) for name in (OURS, APACHE)}
    return list(_rows(medians | worst, counts, disk))


def _led(partitions: int) -> str:
    return f"all of {partitions:,} partitions led again, a broker killed"


def _gap(brokers: Sequence[Broker], topic: str, end: Callable[[Broker], object]) -> float:
    """The longest time without an acknowledgement, in any partition, when a leader goes."""
    create_topic(bootstrap_of(brokers), topic, PARTITIONS)
    load = SteadyLoad(bootstrap_of(brokers), topic, PARTITIONS)
    try:
        _wait(load.flows, "every partition is consumed from")
        time.sleep(CALM_SECONDS)
        begin = time.monotonic()
        gone = brokers[leaders(brokers, topic)[0] - 1]
        end(gone)
        time.sleep(SESSION_SECONDS * 2 + CALM_SECONDS)
        stop = time.monotonic()
    finally:
        load.stop()
    _come_back(brokers, gone, topic)
    return longest_gap(load.acked, begin, stop)


def _time_to_lead(brokers: Sequence[Broker], partitions: int) -> float:
    """Seconds from the kill of a leader until every partition of a topic has another one."""
    topic = f"led-{partitions}"
    create_topic(bootstrap_of(brokers), topic, partitions)
    _wait(lambda: -1 not in leaders(brokers, topic), f"{partitions} partitions have leaders")
    _wait(lambda: _whole(brokers, topic), "all copies are in sync")
    number = leaders(brokers, topic)[0]
    gone = brokers[number - 1]
    left = [broker for broker in brokers if broker is not gone]
    begin = time.monotonic()
    gone.kill()
    _wait(lambda: not {-1, number} & set(leaders(left, topic)), "all partitions are led again")
    taken = time.monotonic() - begin
    _come_back(brokers, gone, topic)
    admin = AdminClient({"bootstrap.servers": bootstrap_of(brokers), "log_level": 0})
    for future in admin.delete_topics([topic]).values():
        future.result(WAIT_SECONDS)
    return taken


def _backfill(brokers: Sequence[Broker], records: int) -> float:
    """MB/s of values at which a broker that was away takes what it missed."""
    topic = "missed"
    create_topic(bootstrap_of(brokers), topic, PARTITIONS)
    shape = Shape(records=records, value_bytes=1024, partitions=PARTITIONS, linger_ms=50)
    away = brokers[-1]
    away.stop()
    left = brokers[:-1]
    produce(bootstrap_of(left), [broker.pid for broker in left], topic, shape)
    begin = time.monotonic()
    _come_back(brokers, away, topic)
    return shape.gigabytes * 1000 / (time.monotonic() - begin)


def _come_back(brokers: Sequence[Broker], gone: Broker, topic: str) -> None:
    gone.start()
    _wait(lambda: _whole(brokers, topic), "all copies are in sync again")


def _whole(brokers: Sequence[Broker], topic: str) -> bool:
    """Whether every copy of a topic is in sync."""
    admin = AdminClient({"bootstrap.servers": bootstrap_of(brokers), "log_level": 0})
    partitions = admin.list_topics(topic, timeout=30).topics[topic].partitions.values()
    return all(len(partition.isrs) == len(brokers) for partition in partitions)


def _wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within {WAIT_SECONDS:.0f} s: {what}")
        time.sleep(POLL_SECONDS)


def _disk_megabytes_per_second() -> float:
    """A new file, written and synced, which is the least that a copy does."""
    size, piece = 256 << 20, bytes(1 << 20)
    with tempfile.TemporaryFile(prefix="penstock-bench-") as file:

        def work() -> None:
            for _ in range(size // len(piece)):
                file.write(piece)
            file.flush()
            os.fdatasync(file.fileno())

        return size / 1e6 / seconds(work)


def _rows(found: dict[tuple[str, str], float], counts: Sequence[int], disk: float) -> Iterator[Row]:
    for what in (KILLED, WORST, STOPPED, *map(_led, counts)):
        yield Row(
            name=what,
            value=found[OURS, what],
            unit="s",
            prediction=PREDICTED.get(what),
            reference=found[APACHE, what],
            reference_name=APACHE,
            lower_is_better=True,
        )
    yield Row(
        name=BACKFILL,
        value=found[OURS, BACKFILL],
        unit="MB/s",
        prediction=disk / 3,
        reference=found[APACHE, BACKFILL],
        reference_name=APACHE,
        note=f"from its start on, which is in it; a new file takes {disk:.0f} MB/s here",
    )
