"""Apache Kafka as a peer: one KRaft node from Maven's jars, on loopback, in a directory of its own.

The node is broker and controller at once, with free ports, a modest heap, the garbage collector
that its own start script chooses, and Kafka's defaults everywhere else except what one node needs
(replication factors of one) and what keeps tests quick (no initial rebalance delay, a low floor
under session timeouts).

    with ApacheKafka() as kafka:
        print(kafka.bootstrap, kafka.pid)
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

from compat.parts import class_path, jars

START_TIMEOUT_SECONDS = 60
STOP_TIMEOUT_SECONDS = 20
_VOTERS = "controller.quorum.voters"
CLUSTER_ID = "cGVuc3RvY2stcGVlci0wMQ"
LOGGING = [
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
]
# As Kafka's own start script chooses them.
COLLECTOR = [
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
]


class ApacheKafka:
    """A running Apache Kafka. `configs` override the properties of the node."""

    def __init__(
        self,
        directory: Path | None = None,
        *,
        heap: str = "1g",
        configs: Mapping[str, str] | None = None,
        ports: Sequence[int] = (),
    ) -> None:
        """`ports` are the broker's and the controller's, free ones by default."""
        self._owned = directory is None
        self.directory = directory or Path(tempfile.mkdtemp(prefix="penstock-apache-kafka-"))
        self.heap = heap
        self.configs = dict(configs or {})
        self.bootstrap = ""
        self.start_seconds = 0.0
        self._ports = list(ports)
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id of the running node."""
        if self._process is None:
            raise RuntimeError("Apache Kafka is not running")
        return self._process.pid

    @property
    def log(self) -> str:
        """What the node has said so far, warnings and worse."""
        return (self.directory / "kafka.log").read_text(errors="replace")

    def start(self) -> ApacheKafka:
        """Format the storage when it is new, start the node, wait until it accepts connections."""
        begun = self.launch()
        self.wait_until_ready()
        self.start_seconds = time.perf_counter() - begun
        return self

    def launch(self) -> float:
        """Format the storage when it is new and start the node; when that was, formatted."""
        self._ports = self._ports or _free_ports(2)  # the same ones after a restart
        port, controller = self._ports
        self.bootstrap = f"127.0.0.1:{port}"
        properties = self.directory / "server.properties"
        properties.write_text(self._properties(port, controller))
        java = ["java", "-cp", class_path(jars("kafka")), *LOGGING]
        self._log = (self.directory / "kafka.log").open("ab")
        if not (self.directory / "data" / "meta.properties").exists():
            tool = ["kafka.tools.StorageTool", "format", "--cluster-id", CLUSTER_ID]
            command = [*java, "-XX:TieredStopAtLevel=1", *tool, "--config", str(properties)]
            alone = [] if _VOTERS in self.configs else ["--standalone"]
            subprocess.run(
                [*command, *alone],
                check=True,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                timeout=START_TIMEOUT_SECONDS,
            )
        begun = time.perf_counter()
        self._process = subprocess.Popen(
            [
                *java,
                f"-Xmx{self.heap}",
                f"-Xms{self.heap}",
                *COLLECTOR,
                "kafka.Kafka",
                str(properties),
            ],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            cwd=self.directory,
        )
        return begun

    def stop(self) -> None:
        """End the node in good order, by force where that takes too long."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        if self._log is not None:
            self._log.close()
            self._log = None

    def kill(self) -> None:
        """End the node at once."""
        if self._process is not None:
            self._process.kill()
        self.stop()

    def __enter__(self) -> ApacheKafka:
        try:
            return self.start()
        except BaseException:
            self.discard()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.discard()

    def discard(self) -> None:
        """End the node; its directory goes if it was made here."""
        self.stop()
        if self._owned:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _properties(self, port: int, controller: int) -> str:
        properties = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
            "log.dirs": str(self.directory / "data"),
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "4",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "group.min.session.timeout.ms": "1000",
            **self.configs,
        }
        if _VOTERS in properties:
            del properties["controller.quorum.bootstrap.servers"]
        return "".join(f"{name}={value}\n" for name, value in properties.items())

    def wait_until_ready(self) -> None:
        """Poll the port (a listener opens when the broker is unfenced), and watch the process."""
        assert self._process is not None
        host, _, port = self.bootstrap.rpartition(":")
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            try:
                socket.create_connection((host, int(port)), timeout=1).close()
            except OSError:
                time.sleep(0.02)
            else:
                return
        said = "\n".join(self.log.splitlines()[-20:])
        raise RuntimeError(f"Apache Kafka did not start within {START_TIMEOUT_SECONDS} s:\n{said}")


def _free_ports(count: int) -> list[int]:
    holders = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [holder.getsockname()[1] for holder in holders]
    for holder in holders:
        holder.close()
    return ports
