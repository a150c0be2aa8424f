"""Records are given up while the brokers that lead them die: each is accepted, or a dead letter."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from time import monotonic

import numpy as np
import pyarrow as pa
import pytest
from tests.postgres import postgres_server

from compat.security import administrator, ours, read, write
from compat.servers import COPIES, bootstrap_of, running_brokers
from penstock.client import LocksLost, Taken

RECORDS = 240
KILLS = 3
SECONDS = 200
SETTINGS = {
    "group.share.record.lock.duration.ms": "2000",
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.assignment.interval.ms": "0",
    "group.share.heartbeat.interval.ms": "1000",
    "group.share.min.heartbeat.interval.ms": "1000",
}
GROUP = {
    "share.auto.offset.reset": "earliest",
    "share.delivery.count.limit": "2",
    "errors.deadletterqueue.topic.name": "dlq.g",
}


class History:
    """What was said, and taken as said; `unsure` of which nobody knows whether it was taken."""

    def __init__(self) -> None:
        self.accepted: Counter[bytes] = Counter()
        self.rejected: set[bytes] = set()
        self.unsure: set[bytes] = set()

    def work_off(self, taken: Taken) -> None:
        """A third is accepted, a third rejected, a third handed back until it is given up."""
        values = taken.table["value"].to_pylist()
        assert not self.accepted.keys() & set(values), "accepted, and delivered again"
        assert not self.rejected & set(values), "rejected, and delivered again"
        kinds = np.array([int(value) % 3 for value in values])
        for kind, say in enumerate((taken.ack, taken.reject, taken.release)):
            marked = (kinds == kind) & taken.open
            lost = np.zeros(len(taken), np.bool_)
            try:
                say(marked)
            except LocksLost as error:
                lost = error.rows
            said = [values[row] for row in np.flatnonzero(marked & ~lost)]
            self.unsure |= {values[row] for row in np.flatnonzero(lost)}
            if kind == 0:
                self.accepted.update(said)
            elif kind == 1:
                self.rejected |= set(said)


@pytest.mark.long
@pytest.mark.timeout(400)
def test_no_record_is_lost_while_the_leaders_of_its_partition_and_its_letters_die(
    tmp_path: Path,
) -> None:
    wanted = {b"%d" % number for number in range(RECORDS)}
    with (
        postgres_server() as server,
        running_brokers(server, tmp_path, 3, {**COPIES, **SETTINGS}) as brokers,
        administrator(bootstrap := bootstrap_of(brokers)) as admin,
        ours(bootstrap, write("t"), *read("t", "g"), *read("dlq.g")) as client,
    ):
        admin.create_topic("t", partitions=3, replication_factor=3)
        enabled = {"errors.deadletterqueue.group.enable": "true"}
        admin.create_topic("dlq.g", partitions=2, replication_factor=3, configs=enabled)
        admin.alter_configs("group", "g", GROUP)
        client.write_arrow("t", pa.table({"value": sorted(wanted)}))
        history, kills, end = History(), 0, monotonic() + SECONDS
        letters: Counter[bytes] = Counter()
        with client.queue("g", "t") as queue:
            while history.accepted.keys() | letters.keys() != wanted:
                assert monotonic() < end, wanted - history.accepted.keys() - letters.keys()
                history.work_off(queue.take(max_records=15, wait_ms=500))
                letters = Counter(client.read_arrow("dlq.g")["value"].to_pylist())
                done = len(history.accepted) + len(letters)
                if kills < KILLS and done > RECORDS * (kills + 1) // (KILLS + 2):
                    brokers[kills].kill()
                    brokers[kills].start()
                    kills += 1
        assert kills == KILLS
        assert max(history.accepted.values()) == 1
        assert history.rejected <= letters.keys()
        assert not history.accepted.keys() & letters.keys()
        assert letters.keys() <= {value for value in wanted if int(value) % 3} | history.unsure
        print(f"{letters.total() - len(letters)} dead letters were written twice")
