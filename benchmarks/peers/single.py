"""One broker of each kind on this machine: Penstock twice, by what it promises; Apache Kafka."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from compat.servers import PenstockProcess

from benchmarks.peers.apache_kafka import ApacheKafka

PENSTOCK, FROM_CACHE, APACHE = "penstock", "penstock, policy os", "Apache Kafka"
_CONFIGS = {PENSTOCK: {}, FROM_CACHE: {"log.flush.policy": "os"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """A running broker."""

    bootstrap: str
    pid: int
    start_seconds: float = 0.0
    """From the start of the process until it answers."""

    @property
    def port(self) -> int:
        """Its port on loopback."""
        return int(self.bootstrap.rpartition(":")[2])


@contextmanager
def brokers(*names: str, configs: Mapping[str, str] | None = None) -> Iterator[dict[str, Broker]]:
    """The brokers of these names, each with an empty directory and with `configs`."""
    own = configs or {}
    with ExitStack() as stack:
        found = {}
        for name in names:
            running: PenstockProcess | ApacheKafka
            if name == APACHE:
                running = stack.enter_context(ApacheKafka(configs=own))
            else:
                directory = tempfile.TemporaryDirectory(prefix="penstock-bench-")
                place = Path(stack.enter_context(directory))
                running = PenstockProcess(place, configs={**_CONFIGS[name], **own}).start()
                stack.callback(running.stop)
            found[name] = Broker(
                bootstrap=running.bootstrap,
                pid=running.pid,
                start_seconds=running.start_seconds,
            )
        yield found
