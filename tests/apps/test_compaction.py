"""Compaction findings of `penstock doctor`, also with damaged files."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa

from penstock.testing import Broker
from tests.apps.conftest import Run
from tests.apps.test_doctor import examined
from tests.apps.test_tiers import until

SETTINGS = {"log.checkpoint.interval.ms": 100, "log.cleaner.backoff.ms": 50}
COMPACTED = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.0",
    "internal.segment.bytes": "4000",
}


def produce(broker: Broker, times: int) -> None:
    keys = [b"key %d" % number for number in range(20)]
    table = pa.table({"key": keys, "value": [bytes(100)] * len(keys)})
    with broker.client() as client:
        for _ in range(times):
            client.write_arrow("t", table)


def figures(bare: Run, *words: str) -> tuple[int, float]:
    ran = bare("--output", "json", "log", "stats", "t", *words)
    assert ran.status == 0, ran.err
    (row,) = json.loads(ran.out)
    return row["clean_offset"], row["dirty_ratio"]


def test_stats_say_how_clean_logs_are(bare: Run, tmp_path: Path) -> None:
    with Broker({**SETTINGS, "log.cleaner.backoff.ms": 20}, directory=tmp_path) as broker:
        broker.create_topic("t", 1, COMPACTED)
        broker.create_topic("plain", 1)
        produce(broker, 20)
        where = ("-b", broker.bootstrap, "--admin", broker.admin_url.removeprefix("http://"))
        clean = until(lambda: (found := figures(bare, *where))[0] and found)
        assert clean[0] <= 400
        text = bare("log", "stats", "t", *where).out
        assert "clean to" in text.lower()
        assert str(clean[0]) in text
        assert "clean to" not in bare("log", "stats", "plain", *where).out.lower()
        with broker.client() as client:
            client.alter_configs("topic", "t", {"min.cleanable.dirty.ratio": "1.0"})
        produce(broker, 10)
        dirty = until(lambda: (found := figures(bare, *where))[1] > 0 and found)
        assert dirty[0] >= clean[0]
        broker.stop()
        offset, ratio = figures(bare, "--data-dir", str(tmp_path))
        assert offset == dirty[0]
        assert 0 < ratio < 1


def test_a_log_that_is_compacted_no_further_is_named(bare: Run) -> None:
    with Broker(SETTINGS) as broker:
        words = ("-b", broker.bootstrap, "--admin", broker.admin_url.removeprefix("http://"))
        assert examined(bare, *words)[1]["compaction"][:2] == ("ok", "no topic is compacted")
        broker.create_topic("t", 1, COMPACTED)
        produce(broker, 20)
        directory = broker.directory / "log" / "t-0"

        def compacted() -> bool:
            size = sum(path.stat().st_size for path in directory.glob("*.log"))
            return 0 < size < 10_000

        assert until(compacted)
        status, cause, _ = examined(bare, *words)[1]["compaction"]
        assert (status, cause[:20]) == ("ok", "1 compacted logs, hi")
        first = min(path for path in directory.glob("*.log") if path.stat().st_size)
        with first.open("r+b") as file:
            file.seek(30)
            file.write(b"rot")
        produce(broker, 5)
        found = until(lambda: examined(bare, *words)[1].get("compaction of broker 1"))
        assert found[0] == "warn"
        assert "compaction of t-0 stopped: CorruptLog" in found[1]
