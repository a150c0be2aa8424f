"""A standalone Spark cluster as processes of this machine: one master, workers of one core each.

Everything comes from the PySpark wheel; executors are Java processes of their own, children of
their worker. Ports are chosen by the system and read from the logs. Only processes that were
started here are ended, by their ids.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import psutil

from tests.spark.cluster.java import END_SECONDS, JavaProcess

WORKER_MEMORY = "1g"
_ENVIRONMENT = {
    "SPARK_DAEMON_MEMORY": "256m",
    "SPARK_DAEMON_JAVA_OPTS": (
        "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dspark.master.rest.enabled=false"
    ),
}
_PLACE = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")


class StandaloneCluster:
    """A master and its workers; `with StandaloneCluster(tmp_path, workers=2) as cluster`."""

    def __init__(self, directory: Path, *, workers: int = 2) -> None:
        self._directory = directory
        self._master: JavaProcess | None = None
        self._workers: list[JavaProcess] = []
        self._wanted = workers
        self.url = ""

    def __enter__(self) -> StandaloneCluster:
        try:
            self._master = self._launch("master", "master.Master")
            self.url = self._master.await_word(r"Starting Spark master at (spark://\S+)").group(1)
            for _ in range(self._wanted):
                self._launch_worker()
            for worker in self._workers:
                worker.await_word("registered with master")
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def add_worker(self) -> None:
        """Add a worker, registered when this returns."""
        self._launch_worker().await_word("registered with master")

    def executors(self) -> list[psutil.Process]:
        """The executors' Java processes."""
        found: list[psutil.Process] = []
        for worker in self._workers:
            if worker.alive:
                with contextlib.suppress(psutil.NoSuchProcess):
                    children = psutil.Process(worker.pid).children()
                    found += [child for child in children if _is_executor(child)]
        return found

    def stop(self) -> None:
        """End everything that was started here, the executors included."""
        executors = self.executors()
        processes = [*self._workers, *([self._master] if self._master else [])]
        for process in processes:
            process.ask_to_end()
        for process in processes:
            process.end()
        _, alive = psutil.wait_procs(executors, timeout=END_SECONDS)
        for executor in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                executor.kill()
        self._workers.clear()
        self._master = None

    def _launch_worker(self) -> JavaProcess:
        name = f"worker-{len(self._workers)}"
        resources = ("--cores", "1", "--memory", WORKER_MEMORY)
        work = ("--work-dir", str(self._directory / name))
        worker = self._launch(name, "worker.Worker", *resources, *work, self.url)
        self._workers.append(worker)
        return worker

    def _launch(self, name: str, kind: str, *arguments: str) -> JavaProcess:
        full = f"org.apache.spark.deploy.{kind}"
        return JavaProcess(
            self._directory, name, full, *_PLACE, *arguments, environment=_ENVIRONMENT
        )


def _is_executor(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
        return any("ExecutorBackend" in word for word in process.cmdline())
    return False
