"""Benchmark of the throughput of many records, in both directions, and of the broker's CPU time.

Throughput is in bytes of record values, with the columnar client. Client and broker share the cores
of this host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from penstock.apps.bench.broker import Bed
from penstock.apps.bench.steps import Figures, Step
from penstock.apps.loads.figures import values
from penstock.base.errors import UnavailableError
from penstock.base.system import SYSTEM_CLOCK

PARTITIONS: Final = 4
PILOT_BYTES: Final = 4 << 20
PILOT_GROWTH: Final = 4
PILOT_SHARE: Final = 0.25
"""Part of a run's time that the pilot run must take at least; a shorter one would time a single
batch.
"""
RUN_BYTES_MIN: Final = 1 << 20
RUN_BYTES_MAX: Final = 256 << 20
"""Most bytes of values in one run. Its topic is deleted before the next run begins."""
DISKLESS_BYTES_MAX: Final = 64 << 20
"""Most bytes of values in one run of a diskless topic, whose objects remain after the deletion of
the topic until a broker sweeps them.
"""
KIBIBYTE: Final = 1_024
SMALL_BYTES: Final = 100
_LOCAL: Final[Mapping[str, str]] = {}

_now = SYSTEM_CLOCK.monotonic


class Load:
    """Load of a topic: tables of values that are produced and, with `read`, consumed.

    Its figures are named `<stem>produce_<infix>mb_per_s` and `<stem>produce_<infix>cpu_s_per_gb`,
    and with `consume` in place of `produce`.
    """

    def __init__(
        self,
        bed: Bed,
        *,
        value_bytes: int = KIBIBYTE,
        partitions: int = PARTITIONS,
        stem: str = "",
        infix: str = "",
        read: bool = False,
        run_bytes_max: int = RUN_BYTES_MAX,
        configs: Mapping[str, str] = _LOCAL,
    ) -> None:
        self._bed = bed
        self._value_bytes = value_bytes
        self._partitions = partitions
        self._names = {way: f"{stem}{way}_{infix}" for way in ("produce", "consume")}
        self._read = read
        self._run_bytes_max = run_bytes_max
        self._configs = configs
        self._rate = 0.0

    def run(self, seconds: float) -> Figures:
        """Run the load once, for about `seconds`, and return its figures."""
        if not self._rate:
            self._pilot(seconds)
        share = 2 if self._read else 1
        size_bytes = min(max(self._rate * seconds / share, RUN_BYTES_MIN), self._run_bytes_max)
        return self._once(int(size_bytes), read=self._read)

    def _pilot(self, seconds: float) -> None:
        """Produce increasing amounts until the rate is known that determines the size of runs."""
        size_bytes, elapsed = PILOT_BYTES // PILOT_GROWTH, 0.0
        while elapsed < seconds * PILOT_SHARE and size_bytes < self._run_bytes_max:
            size_bytes = min(size_bytes * PILOT_GROWTH, self._run_bytes_max)
            self._once(size_bytes, read=False)
            elapsed = size_bytes / self._rate

    def _once(self, size_bytes: int, *, read: bool) -> Figures:
        table = values(self._value_bytes, size_bytes)
        found: dict[str, float] = {}
        with self._bed.topic(self._partitions, self._configs) as topic:
            self._rate = self._timed(
                "produce", table.num_rows, lambda: self._bed.client.write_arrow(topic, table), found
            )
            if read:
                self._timed(
                    "consume", table.num_rows, lambda: self._consume(topic, table.num_rows), found
                )
        return found

    def _timed(
        self, way: str, records: int, work: Callable[[], object], found: dict[str, float]
    ) -> float:
        """Run `work`, add its figures to `found`, and return the bytes of values per second."""
        size_bytes = records * self._value_bytes
        cpu_before, began = self._bed.cpu_seconds(), _now()
        work()
        rate = size_bytes / (_now() - began)
        cpu_after = self._bed.cpu_seconds()
        found[f"{self._names[way]}mb_per_s"] = rate / 1e6
        if cpu_before is not None and cpu_after is not None:
            found[f"{self._names[way]}cpu_s_per_gb"] = (cpu_after - cpu_before) / size_bytes * 1e9
        return rate

    def _consume(self, topic: str, expected: int) -> None:
        batches = self._bed.client.iter_arrow(topic, columns=("value",))
        found = sum([batch.num_rows for batch in batches])
        if found != expected:
            raise UnavailableError(f"topic {topic}: read {found} of {expected} records")

    def hows(self, where: str) -> dict[str, str]:
        """Return the descriptions of the figures; `where` names the kind of topic."""
        partitions = "1 partition" if self._partitions == 1 else f"{self._partitions} partitions"
        what = f"values of {self._value_bytes} B over {partitions} of {where}"
        ways = {
            "produce": f"columnar client, acks=all, no compression, {what}",
            "consume": f"columnar client, from the start of the records just written: {what}",
        }
        return {
            f"{self._names[way]}{figure}": f"{said}{how}"
            for way, how in ways.items()
            for figure, said in (("mb_per_s", ""), ("cpu_s_per_gb", "CPU time of the broker; "))
        }


def load_steps(bed: Bed, *, where: str) -> list[Step]:
    loads = {
        "1 KiB values": (0.16, Load(bed, read=True)),
        "100 B values": (0.16, Load(bed, value_bytes=SMALL_BYTES, infix="100b_", read=True)),
        "one partition": (0.08, Load(bed, partitions=1, stem="partition_")),
    }
    return [
        Step(label=label, share=share, run=load.run, hows=load.hows(where))
        for label, (share, load) in loads.items()
    ]


def diskless_step(bed: Bed, *, where: str) -> Step:
    load = Load(
        bed, stem="diskless_", run_bytes_max=DISKLESS_BYTES_MAX, configs={"diskless.enable": "true"}
    )
    return Step(label="diskless produce", share=0.08, run=load.run, hows=load.hows(where))
